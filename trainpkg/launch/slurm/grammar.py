"""Slurm's compact notations as plain functions of a string: host lists, repeated counts, GRES, device lists.

Knows no environment variable: every function takes the name of where its text came from, for the error message. What
Slurm accepts out of leniency and a person never means (`n[`, `a,,b`, `n[1, 2]`) is an error here. One thing goes
beyond Slurm: text after the last bracket (`n[1-3]-ib`), which `--hosts` needs and which can mean only one thing.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from trainpkg.errors import UserError

MAX_HOSTS = 65_536  # Slurm's own limit for one range, and its limit of nodes in a cluster; also stops `n[1-999999999]`
MAX_NAME_LENGTH = 255  # a DNS name
MAX_DIGITS = 18  # more does not fit into Slurm's 64-bit numbers, and scontrol then answers another host

# One comma-separated name: text, then any number of [brackets] with text behind them. Possessive: hostile input costs
# one pass, no backtracking.
_HOST_ITEM = re.compile(r"([^\[\],]*+)((?:\[[^\[\]]*+\][^\[\],]*+)*+)(,|\Z)")
_BRACKET = re.compile(r"[\[\]]")
_HOST_CHARACTERS = re.compile(r"[A-Za-z0-9._\-,\[\]]*")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_COUNT = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")
_GRES = re.compile(r"(?:gres/)?([A-Za-z_][\w.\-]*+)((?:[:=][\w.\-]++){0,2}+)(?:\(([^()]*+)\))?", re.ASCII)
_GRES_COUNT = re.compile(r"([0-9]{1,15})([KMGTP]?)")
_DEVICE = re.compile(r"[0-9]{1,4}|(?:GPU|MIG)-[A-Za-z0-9\-/]+")
_NO_DEVICES = frozenset({"-1", "NoDevFiles", "none", "void"})  # Slurm writes NoDevFiles where it gave no GPU


@dataclass(frozen=True)
class Gres:
    """One generic resource, such as `gpu:a100:4(S:0-1)`; `detail` is the text in parentheses, unread."""

    name: str
    type: str | None
    count: int
    detail: str = ""


def quote(value: str) -> str:
    """The value as an error message shows it: blanks, control and foreign characters visible, long ones cut."""
    text = ascii(value)
    return text if len(text) <= 160 else f"{text[:120]}... ({len(value)} characters)"


def parse_int(text: str, name: str, *, low: int = 0, high: int = 10**MAX_DIGITS) -> int:
    """A number of ASCII digits between `low` and `high`, or a UserError that quotes `name` and the text."""
    if not re.fullmatch(r"[0-9]+", text) or len(text) > MAX_DIGITS:
        raise UserError(f"{name} is {quote(text)}, which is not a whole number of digits 0-9.")
    if not low <= int(text) <= high:
        raise UserError(f"{name} is {quote(text)}, which is not between {low} and {high}.")
    return int(text)


def expand_hosts(text: str, name: str = "host list") -> list[str]:
    """The host names of a Slurm host list, in Slurm's order: `n[08-10],login` -> n08, n09, n10, login.

    With several brackets in one name the last one runs fastest and the first one next, as `scontrol show hostnames`
    has it: with three, that is not the order of nested loops. Duplicates are kept.
    """
    _check_characters(text, name)
    hosts: list[str] = []
    brackets: dict[str, list[str]] = {}  # the same [1-4] comes back on thousands of racks
    start = 0
    while True:
        match = _HOST_ITEM.match(text, start)
        if match is None:
            raise _bad(text, name, "has a bracket that is not closed, not opened, or inside another one")
        first, rest, comma = match.groups()
        if not rest and first and first[0] not in "-.":
            hosts.append(first)
        else:
            _, *parts = _BRACKET.split(rest)  # body, text behind it, body, ...
            ranges = []
            for body in parts[::2]:
                if body not in brackets:
                    brackets[body] = _expand_bracket(body, text, name)
                ranges.append(brackets[body])
            _check_item([first, *parts[1::2]], ranges, MAX_HOSTS - len(hosts), text, name)
            hosts += _expand_item(first, ranges, parts[1::2])
        if not comma:
            break
        start = match.end()
    if len(hosts) > MAX_HOSTS:
        raise _bad(text, name, f"speaks of more than {MAX_HOSTS} hosts")
    if max(map(len, hosts)) > MAX_NAME_LENGTH:
        raise _bad(text, name, f"has a host name of more than {MAX_NAME_LENGTH} characters")
    return hosts


def expand_counts(text: str, name: str = "counts per node") -> list[int]:
    """One number per node from Slurm's shorthand: `2(x3),1` -> [2, 2, 2, 1]."""
    counts: list[int] = []
    for piece in text.split(","):
        match = _COUNT.fullmatch(piece)
        if match is None:
            raise UserError(f"{name} is {quote(text)}: {quote(piece)} is not a number of the form `4` or `4(x2)`.")
        repeat = int(match[2] or 1)
        if not 0 < repeat <= MAX_HOSTS - len(counts):
            raise UserError(f"{name} is {quote(text)}: it must speak of 1 to {MAX_HOSTS} nodes.")
        counts += [int(match[1])] * repeat
    return counts


def parse_gres(text: str, name: str = "GRES") -> list[Gres]:
    """Slurm's lists of generic resources, in the spelling of requests (`gpu:a100:4(S:0-1)`) or TRES (`gres/gpu=4`)."""
    if text == "(null)":  # what scontrol and squeue print for "none"
        return []
    found = []
    for piece in _split_outside_parentheses(text):
        match = _GRES.fullmatch(piece)
        fields = re.split("[:=]", match[2])[1:] if match else []
        count = _GRES_COUNT.fullmatch(fields[-1]) if fields else None
        if match is None or len(fields) > (1 if count is None else 2) or (len(fields) == 2 and count is None):
            raise UserError(f"{name} is {quote(text)}: {quote(piece)} is not of the form `gpu[:type][:count][(...)]`.")
        number = int(count[1]) * 1024 ** " KMGTP".index(count[2] or " ") if count else 1
        type_ = fields[0] if len(fields) == 2 or (fields and count is None) else None
        found.append(Gres(match[1], type_, number, match[3] or ""))
    return found


def count_gpus(text: str, name: str) -> int:
    """GPUs that a request speaks of: `4`, `a100:2,v100:2` (as `--gpus-per-node` takes it) or any GRES list."""
    total = 0
    for piece in _split_outside_parentheses(text):
        if re.fullmatch(r"[0-9]{1,6}", piece):
            total += int(piece)
            continue
        (gres,) = parse_gres(piece, name)
        if gres.name != "gpu" and gres.type is not None:
            raise UserError(f"{name} is {quote(text)}: {quote(piece)} is not a number of GPUs.")
        total += gres.count
    return total


def parse_devices(text: str, name: str = "CUDA_VISIBLE_DEVICES") -> list[str]:
    """The tokens of CUDA_VISIBLE_DEVICES (`0,2`, `GPU-5ebe...`, `MIG-...`), kept as they are; empty means no GPU."""
    tokens = [token.strip(" ") for token in text.split(",")] if text else []
    if not tokens or tokens[0] in _NO_DEVICES:
        return []
    for token in tokens:
        if not _DEVICE.fullmatch(token):
            raise UserError(
                f"{name} is {quote(text)}: {quote(token)} is neither an index nor a GPU-... or MIG-... identifier, "
                "and CUDA would silently ignore it and all that follow."
            )
    if len(set(tokens)) < len(tokens):
        raise UserError(f"{name} is {quote(text)}: it names a device twice, which makes CUDA show no device at all.")
    return tokens


def find_duplicate(hosts: Sequence[str]) -> str | None:
    """The first host that the list has named before."""
    seen: set[str] = set()
    for host in hosts:
        if host in seen:
            return host
        seen.add(host)
    return None


def _bad(text: str, name: str, what: str) -> UserError:
    return UserError(
        f"{name} is {quote(text)}: it {what}. A host list looks like `rack[1-2]n[01-16],login1`; "
        "`--hosts` takes one where the environment's is wrong."
    )


def _check_characters(text: str, name: str) -> None:
    end = _HOST_CHARACTERS.match(text)
    assert end is not None  # the pattern matches the empty string too
    if end.end() < len(text):
        what = "blank" if text[end.end()].isspace() else "character"
        raise _bad(text, name, f"has the {what} {text[end.end()]!a} at position {end.end()}")


def _expand_bracket(body: str, text: str, name: str) -> list[str]:
    """`001-003,7` -> 001, 002, 003, 7: the first number of a range gives the width, as in Slurm."""
    numbers: list[str] = []
    for piece in body.split(","):
        match = _RANGE.fullmatch(piece)
        if match is None or max(len(match[1]), len(match[2] or "")) > MAX_DIGITS:
            raise _bad(text, name, f"has {quote(piece)} in brackets where a number or a range such as 1-4 belongs")
        low, high, width = int(match[1]), int(match[2] or match[1]), len(match[1])
        if high < low:
            raise _bad(text, name, f"has the range {piece!r}, which ends before it begins")
        if high - low >= MAX_HOSTS - len(numbers):
            raise _bad(text, name, f"has more than {MAX_HOSTS} hosts in the brackets [{piece}]")
        numbers += [f"{number:0{width}d}" for number in range(low, high + 1)]
    return numbers


def _check_item(literals: list[str], ranges: list[list[str]], room: int, text: str, name: str) -> None:
    """Refuse one item before it is expanded: `n[1-9999][1-9999]...` must cost nothing."""
    if not ranges and not literals[0]:
        raise _bad(text, name, "is empty" if not text else "has an empty name between commas or at an end")
    if literals[0][:1] in ("-", "."):
        raise _bad(text, name, f"has a name that begins with {literals[0][0]!r}")
    num_names = 1
    for numbers in ranges:
        num_names *= len(numbers)
        if num_names > room:
            raise _bad(text, name, f"speaks of more than {MAX_HOSTS} hosts")
    if sum(map(len, literals)) > MAX_NAME_LENGTH or len(ranges) > MAX_NAME_LENGTH:
        raise _bad(text, name, f"has a host name of more than {MAX_NAME_LENGTH} characters")


def _expand_item(first: str, ranges: list[list[str]], behind: list[str]) -> list[str]:
    """All names of one item; `behind` has the text that follows each range."""
    *slower, fastest = ranges
    *between, last = behind
    if not slower:
        return [f"{first}{number}{last}" for number in fastest]
    names = []
    for chosen in itertools.product(*reversed(slower)):  # the first bracket varies faster than the second
        prefix = first + "".join(number + part for number, part in zip(reversed(chosen), between, strict=True))
        names += [f"{prefix}{number}{last}" for number in fastest]
    return names


def _split_outside_parentheses(text: str) -> list[str]:
    """Split at the commas that are not inside parentheses, as in `gpu:4(S:0,2),nic:1`."""
    pieces, start, depth = [], 0, 0
    for match in re.finditer("[(),]", text):
        depth += {"(": 1, ")": -1, ",": 0}[match.group()]
        if match.group() == "," and depth <= 0:
            pieces.append(text[start : match.start()])
            start = match.end()
    return [*pieces, text[start:]]


def run_lengths(counts: list[int]) -> str:
    """`[8, 8, 4]` -> `8(x2),4`: the shorthand that `expand_counts` reads."""
    groups = ((count, len(list(run))) for count, run in itertools.groupby(counts))
    return ",".join(f"{count}(x{length})" if length > 1 else str(count) for count, length in groups)
