"""When a silent node counts as lost; all times are made up."""

from __future__ import annotations

from trainpkg.launch.head.blame.watch import Watch


def looks(
    watch: Watch, until_s: int, silent: set[int], step_every_s: float | None = None
) -> list[tuple[str, int, int]]:
    """Look once a second, with nodes 0 and 1 heard unless silent; returns (what, node, second)."""
    found = []
    step = watch.step or 0
    for second in range(1, until_s + 1):
        for node in {0, 1} - silent:
            watch.heard(node, second)
        if step_every_s is not None and second % step_every_s == 0:
            step += 1
            watch.stepped(step, second)
        for what, nodes in zip(("silent", "back", "lost"), watch.look(second), strict=True):
            found += [(what, node, second) for node in nodes]
        if found and found[-1][0] == "lost":
            break
    return found


def make(timeout_s: float = 60.0) -> Watch:
    return Watch(timeout_s, 0.0, {0: 0.0, 1: 0.0})


def test_all_well() -> None:
    assert looks(make(), 200, set(), 1) == []


def test_silence_is_named_after_5_s_and_lost_at_the_timeout_without_a_known_pace() -> None:
    assert looks(make(), 100, {1}) == [("silent", 1, 6), ("lost", 1, 61)]


def test_silent_and_no_step_is_lost_early() -> None:
    watch = make()
    for second in range(1, 11):  # a pace of one step a second
        watch.heard(0, second / 100)
        watch.heard(1, second / 100)
        watch.stepped(second, second / 100)
    watch.heard_s = {0: 0.0, 1: 0.0}
    assert looks(watch, 100, {1}) == [("silent", 1, 6), ("lost", 1, 6)]


def test_silent_but_steps_go_on_survives_a_short_outage() -> None:
    watch = make()
    assert looks(watch, 30, {1}, 1) == [("silent", 1, 6)]
    watch.heard(1, 31)
    watch.heard(0, 31)
    assert watch.look(31) == ([], [1], [])


def test_slow_steps_have_patience_of_three_medians() -> None:
    watch = make()
    looks(watch, 40, set(), 10)
    assert watch.patience_s == 30
    watch.heard(0, 70)
    watch.now_s = 69.5
    assert watch.look(70.0) == ([1], [], [])
    watch.now_s = 70.0
    assert watch.look(70.5) == ([], [], [1])


def test_a_gap_in_ones_own_clock_resets_all_timers() -> None:
    watch = make()
    looks(watch, 10, set(), 1)
    assert watch.look(3600.0) == ([], [], [])
    assert watch.look(3601.0) == ([], [], [])
