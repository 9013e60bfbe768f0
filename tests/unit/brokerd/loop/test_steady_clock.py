"""A clock that others may set, seen by one that does not jump."""

from __future__ import annotations

from brokerd.loop.steady_clock import SteadyClock


class Clocks:
    def __init__(self) -> None:
        self.wall_ms = 1_000_000
        self.monotonic_s = 50.0
        self.steady = SteadyClock(lambda: self.wall_ms, lambda: self.monotonic_s)

    def pass_ms(self, ms: int) -> int:
        self.wall_ms += ms
        self.monotonic_s += ms / 1000
        return self.steady()


def test_it_follows_the_wall_clock() -> None:
    clocks = Clocks()
    for ms in (1, 7, 1000, 3_600_000, 0):
        assert clocks.pass_ms(ms) == clocks.wall_ms
    clocks.wall_ms += 40
    assert clocks.pass_ms(5) == clocks.wall_ms


def test_a_step_forward_is_made_up_slowly() -> None:
    clocks = Clocks()
    clocks.wall_ms += 3_600_000
    assert clocks.pass_ms(1600) == 1_000_000 + 1700
    for _ in range(36_000):
        clocks.pass_ms(1600)
    assert clocks.steady() == clocks.wall_ms


def test_a_step_back_never_turns_it_back() -> None:
    clocks = Clocks()
    clocks.wall_ms -= 3_600_000
    before = clocks.steady()
    assert clocks.pass_ms(1600) == before + 1500
    assert clocks.pass_ms(0) == before + 1500
    for _ in range(50_000):
        after = clocks.pass_ms(1600)
        assert after >= before
        before = after
    assert clocks.steady() == clocks.wall_ms
