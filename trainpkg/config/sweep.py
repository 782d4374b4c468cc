"""The block `sweep` of a recipe: a grid and random samples, as the runs that one row of the sheet stands for.

What is drawn depends on nothing but the seed, the key and the sample's number, and a run's name on nothing but its own
values: more values, more samples and further keys leave the runs that are there as they are. Reading files and saying
where a mistake stands belong to `sheet`.
"""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from trainpkg.config.keys import Section, execution

Scalar = bool | int | float | str | None
MAX_NAME = 200  # a name is a directory, and logs add to it


class Range(Section):
    """Where a random key is drawn from."""

    draw: Literal["uniform", "log", "int", "choice"] = execution(
        "uniform",
        "log: uniform in the logarithm; int: whole numbers, both ends too; choice: one of values.",
    )
    low: float | None = execution(None, "Lower end.")
    high: float | None = execution(None, "Upper end.")
    values: tuple[Scalar, ...] = execution((), "What choice draws from.")

    @model_validator(mode="after")
    def _ends_make_sense(self) -> Range:
        if self.draw == "choice":
            if not self.values or self.low is not None or self.high is not None:
                raise ValueError("draw: choice needs values, and neither low nor high")
            return self
        if self.low is None or self.high is None or self.values:
            raise ValueError(f"draw: {self.draw} needs low and high, and no values")
        if not self.low < self.high:
            raise ValueError(f"low = {self.low:g} is not below high = {self.high:g}")
        if self.draw == "log" and self.low <= 0:
            raise ValueError(f"low = {self.low:g}: draw: log needs numbers above 0")
        if self.draw == "int" and (self.low % 1 or self.high % 1):
            raise ValueError("draw: int needs whole numbers for low and high")
        return self

    def at(self, share: float) -> Scalar:
        """The value at this share (0 <= share < 1) of the range; real numbers with four digits, to be read."""
        if self.draw == "choice":
            return self.values[int(share * len(self.values))]
        assert self.low is not None and self.high is not None
        if self.draw == "int":
            return int(self.low) + int(share * (self.high - self.low + 1))
        if self.draw == "log":
            value = math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low)))
        else:
            value = self.low + share * (self.high - self.low)
        return min(max(float(f"{value:.4g}"), self.low), self.high)


class Sweep(Section):
    """Keys that vary: every combination of the grid, each with all random samples."""

    grid: dict[str, Annotated[tuple[Scalar, ...], Field(min_length=1)]] = execution(
        {}, "Key: list of values; every combination is a run."
    )
    random: dict[str, Range] = execution(
        {}, "Key: {draw, low, high} or {draw: choice, values}; each combination of the grid gets the same samples."
    )
    samples: int | None = execution(None, "Random samples.", ge=1, le=10_000)
    seed: int = execution(0, "Seed of the samples; sample number 7 of a key is the same, however many there are.")

    @field_validator("grid")
    @classmethod
    def _values_differ(cls, grid: dict[str, tuple[Scalar, ...]]) -> dict[str, tuple[Scalar, ...]]:
        for key, values in grid.items():
            shown = [_shown(value) for value in values]
            if twice := {text for text in shown if shown.count(text) > 1}:
                raise ValueError(f"{key}: the value {min(twice)} stands twice")
        return grid

    @model_validator(mode="after")
    def _parts_agree(self) -> Sweep:
        if both := set(self.grid) & set(self.random):
            raise ValueError(f"{min(both)} stands in grid and in random")
        if not self.grid and not self.random:
            raise ValueError("neither grid nor random says what varies")
        if bool(self.random) != (self.samples is not None):
            raise ValueError("random and samples need each other")
        return self

    @property
    def keys(self) -> list[str]:
        """The dotted keys that vary."""
        return [*self.grid, *self.random]

    def expand(self, name: str) -> Iterator[tuple[str, dict[str, Scalar]]]:
        """Name and values of each run that the row `name` stands for; the last key of the grid varies fastest."""
        words = _short_names(self.grid)
        drawn = [self._sample(number) for number in range(self.samples or 0)]
        for values in itertools.product(*self.grid.values()):
            point = dict(zip(self.grid, values, strict=True))
            stem = "-".join([name, *(f"{words[key]}{_shown(value)}" for key, value in point.items())])
            if not drawn:
                yield stem, point
            for number, sample in enumerate(drawn):
                yield f"{stem}-s{number:04d}", {**point, **sample}

    def _sample(self, number: int) -> dict[str, Scalar]:
        return {
            key: where.at(random.Random(f"{self.seed}:{key}:{number}").random()) for key, where in self.random.items()
        }


def _short_names(keys: dict[str, Any]) -> dict[str, str]:
    """The last word of each key, or the whole key where two end alike."""
    leaves = [key.rpartition(".")[2] for key in keys]
    return {key: leaf if leaves.count(leaf) == 1 else key for key, leaf in zip(keys, leaves, strict=True)}


def _shown(value: Scalar) -> str:
    """A value as part of a name: 0.001 however it is written, and only what a directory's name may hold."""
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    try:
        return f"{float(value):.12g}".replace("+", "")
    except ValueError:
        return re.sub(r"[^A-Za-z0-9._-]+", "_", str(value))
