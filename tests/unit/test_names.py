"""Lookups of names: how long they take, where they lead, and that nothing waits for them."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest

from trainpkg.launch import names
from trainpkg.launch.names import Lookup, complaints, forward, look_up, reverse

failure = pytest.mark.failure


def told(*lookups: Lookup) -> list[str]:
    return complaints("node 1 (n2)", "n2", ["10.0.0.2"], lookups)


GOOD = Lookup("forward", "n2", ["10.0.0.2"], 0.01)


def test_good_names_are_not_spoken_of() -> None:
    assert told(GOOD, Lookup("reverse", "10.0.0.2", ["n2"], 0.01), GOOD) == []
    assert told(GOOD, Lookup("reverse", "10.0.0.2", [], 0.01, "Name or service not known")) == []  # quick: no harm


@failure("F013")
@failure("F018")
def test_slow_lookups_are_told_with_their_time_and_the_fix() -> None:
    (said,) = told(GOOD, Lookup("reverse", "10.0.0.2", [], 5.1, "Temporary failure in name resolution"))
    assert "node 1 (n2): the reverse lookup of 10.0.0.2 took 5.1 s (Temporary failure in name resolution)" in said
    assert "/etc/hosts" in said and "when ranks meet" in said


@failure("F004")
@failure("F019")
def test_a_name_that_leads_to_loopback_is_told_with_the_address_that_ranks_use() -> None:
    (said,) = told(Lookup("forward", "n2", ["127.0.1.1"], 0.0))
    assert "its own name n2 leads to 127.0.1.1 there (/etc/hosts)" in said and "Ranks use 10.0.0.2 instead" in said


@failure("F015")
def test_a_name_without_an_address_is_told() -> None:
    (said,) = told(Lookup("forward", "n2", [], 0.1, "Name or service not known"))
    assert "its own name n2 cannot be resolved there (Name or service not known). Ranks are given addresses" in said


@failure("F009")
def test_an_address_with_the_name_of_another_machine_is_told() -> None:
    """Both forms: torch puts the name that it looked up into its messages."""
    stale = Lookup("reverse", "10.0.0.2", ["old-host"], 0.0)
    (said,) = told(GOOD, stale, Lookup("forward", "old-host", ["10.9.9.9"], 0.0))
    assert "10.0.0.2 is called old-host there, but that name leads to 10.9.9.9" in said
    (said,) = told(GOOD, stale, Lookup("forward", "old-host", [], 0.0, "unknown"))
    assert "cannot be resolved" in said


@failure("F007")
def test_another_idea_of_the_first_nodes_name_is_told() -> None:
    first = ("n1", ["10.0.0.1", "10.1.0.1"])
    stale = Lookup("forward", "n1", ["10.9.9.9"], 0.0)
    (said,) = complaints("node 1 (n2)", "n2", ["10.0.0.2"], [GOOD, stale], first)
    assert "the name of the first node, n1, leads to 10.9.9.9 there, which that node does not have" in said
    assert complaints("node 1 (n2)", "n2", ["10.0.0.2"], [Lookup("forward", "n1", ["10.1.0.1"], 0.0)], first) == []
    assert told(stale) == []  # the first node has not said yet what it has


def test_real_lookups() -> None:
    found = forward("localhost")
    assert "127.0.0.1" in found.answers and not found.error and found.seconds < 20
    assert forward("nosuch.invalid").error and forward("a..b").error
    assert reverse("127.0.0.1").kind == "reverse"
    again = Lookup.from_message({"kind": "forward", "asked": "a", "answers": ["b"], "seconds": 1.0, "error": ""})
    assert again == Lookup("forward", "a", ["b"], 1.0)


@failure("F013")
def test_a_resolver_that_hangs_is_given_up_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: Any, **__: Any) -> Any:
        time.sleep(5)
        raise OSError

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    begin = time.monotonic()
    found = look_up(["n2", "n1"], ["10.0.0.2"], limit_s=0.2)
    assert time.monotonic() - begin < 3
    assert [lookup.error for lookup in found] == ["no answer within 0.2 s", "not asked", "not asked"]
    monkeypatch.setattr(names, "SLOW_S", 0.1)
    assert "the forward lookup of n2 took 0.2 s (no answer within 0.2 s)" in told(*found)[0]
