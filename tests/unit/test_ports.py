"""Ports: chosen by a seed, held from then on, and those that a site leaves open."""

from __future__ import annotations

import contextlib
import socket

import pytest

from trainpkg.errors import UserError
from trainpkg.launch import network, ports
from trainpkg.launch.ports import bind_any_port, bind_port, candidate_ports, port_seed

failure = pytest.mark.failure


@failure("F030")
@failure("F032")
def test_candidates_are_all_ports_once_below_the_ephemeral_range() -> None:
    for job in range(12):
        assert sorted(candidate_ports(port_seed(str(job)))) == list(range(10_000, 32_768))
    found = list(candidate_ports("7/3/1"))
    assert found == list(candidate_ports("7/3/1"))
    assert found[:50] != sorted(found[:50])
    seeds = [("7",), ("8",), ("7", 2), ("7", 1, 1), (None,), ("71",), ("7", 11), ("7", 1, 11)]
    assert len({port_seed(*seed) for seed in seeds}) == len(seeds)  # type: ignore[arg-type]


@failure("F036")
def test_a_bound_port_is_held_and_the_next_candidate_taken_on_a_collision() -> None:
    seed = port_seed("4711")
    expected = candidate_ports(seed)
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(bind_port("127.0.0.1", seed)) for _ in range(3)]
        taken = [listener.getsockname()[1] for listener in held]
        assert len(set(taken)) == 3
        tried = [next(expected) for _ in range(40)]
        assert [port for port in tried if port in taken] == taken  # in the order of the seed
        with pytest.raises(OSError, match="in use"), socket.socket() as other:
            other.bind(("127.0.0.1", taken[0]))
        for port in taken:
            socket.create_connection(("127.0.0.1", port), 1).close()
        assert held[0].getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR) == 0


@failure("F030")
def test_ports_that_this_kernel_gives_away_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "ephemeral_range", lambda: (12_000, 60_999))
    for job in range(5):
        with bind_port("127.0.0.1", port_seed(str(job))) as listener:
            assert 10_000 <= listener.getsockname()[1] < 12_000
    monkeypatch.setattr(ports, "ephemeral_range", lambda: (1024, 65_535))
    with bind_port("127.0.0.1", "whole") as listener:
        assert listener.getsockname()[1] == next(candidate_ports("whole"))


def test_one_listener_serves_both_families_where_a_host_has_both() -> None:
    assert network.listen_address(["10.0.0.1", "10.1.0.1"]) == network.listen_address([]) == "0.0.0.0"
    assert network.listen_address(["10.0.0.1", "fd00::2"]) == "::"
    if not any(":" in entry.address for entry in network.own_addresses()):
        pytest.skip("no IPv6 here")
    with bind_port("::", "both") as listener:
        port = listener.getsockname()[1]
        for address in ("127.0.0.1", "::1"):
            socket.create_connection((address, port), 1).close()


def test_no_free_port_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with bind_port("127.0.0.1", "full") as listener:
        monkeypatch.setattr(ports, "candidate_ports", lambda seed: iter([listener.getsockname()[1]] * 3))
        with pytest.raises(UserError, match=r"No free port at 127\.0\.0\.1"):
            bind_port("127.0.0.1", "full")


@failure("F007")
def test_an_address_of_another_host_is_refused_with_the_own_ones() -> None:
    with pytest.raises(UserError, match=r"203\.0\.113\.77 is not on this host .* has .*127\.0\.0\.1 \(lo"):
        bind_port("203.0.113.77", "x")


@failure("F036")
def test_a_sites_range_is_used_whole_and_nothing_else() -> None:
    free = [listener.getsockname()[1] for listener in [bind_port("127.0.0.1", "find room")]]
    first = free[0] + 1
    given = (first, first + 3)
    assert sorted(candidate_ports("7/1/0", given)) == list(range(first, first + 4))
    with contextlib.ExitStack() as stack:
        found = {stack.enter_context(bind_port("127.0.0.1", "7/1/0", given)).getsockname()[1] for _ in range(4)}
        assert found == set(range(first, first + 4))
        with pytest.raises(UserError, match=rf"launch.port = {first}-{first + 3}: no free port on .*`ss -ltnp`"):
            bind_port("127.0.0.1", "7/1/0", given)


def test_a_single_port_serves_again_when_the_ranks_before_have_ended() -> None:
    """A restart in place: connections of the ranks before linger at the port, but nobody listens there."""
    given = (bind_any_port("127.0.0.1").getsockname()[1] - 20_000,) * 2
    for generation in range(3):
        with bind_port("127.0.0.1", f"7/1/{generation}", given) as listener:
            client = socket.create_connection(listener.getsockname(), 1)
            listener.accept()[0].close()  # this side closes first: its end of the connection stays in TIME_WAIT
            with pytest.raises(UserError, match="no free port"):
                bind_port("127.0.0.1", "another job", given)
            client.close()


@failure("F030")
@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, []),
        ((20_000, 20_100), []),
        ((29_500, 29_500), ["launch.port = 29500 is a single port"]),
        ((32_000, 33_000), ["launch.port = 32000-33000 touches 32768-60999"]),
        ((50_000, 50_000), ["launch.port = 50000 is a single port", "launch.port = 50000 touches 32768-60999"]),
    ],
)
def test_what_speaks_against_fixed_ports(
    given: tuple[int, int] | None, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "ephemeral_range", lambda: (32_768, 60_999))
    found = ports.warnings(given)
    assert len(found) == len(words)
    assert all(text.startswith(word) for text, word in zip(found, words, strict=True))
