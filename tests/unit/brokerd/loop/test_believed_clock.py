"""Time that one wrong clock does not change."""

from __future__ import annotations

from brokerd.loop.believed_clock import AGREED_TRIAL_MS, AGREES_MS, TRIAL_MS, BelievedClock

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
START_MS = 1_700_000_000_000


class Clocks:
    """A start at `START_MS` by the own clock, so many milliseconds after the last life wrote something."""

    def __init__(self, *left_behind_ms: int) -> None:
        self.wall_ms = START_MS
        self.monotonic_s = 50.0
        self.others: list[int] = []
        self.believed = BelievedClock(
            lambda: self.wall_ms, lambda: self.monotonic_s, lambda: self.others, left_behind_ms
        )

    def pass_ms(self, ms: int) -> int:
        self.wall_ms += ms
        self.monotonic_s += ms / 1000
        self.others = [each + ms for each in self.others]
        return self.believed()


def test_with_an_ordinary_past_it_follows_the_own_clock() -> None:
    for clocks in (Clocks(), Clocks(START_MS - AGREES_MS), Clocks(START_MS - 5 * DAY_MS, START_MS - 1000)):
        assert clocks.believed() == START_MS
        assert clocks.pass_ms(DAY_MS) == START_MS + DAY_MS


def test_a_start_long_after_the_last_life_goes_on_where_that_ended_for_an_hour() -> None:
    clocks = Clocks(START_MS - 4 * DAY_MS)
    assert clocks.believed() == START_MS - 4 * DAY_MS
    assert clocks.pass_ms(TRIAL_MS - 1) == START_MS - 4 * DAY_MS + TRIAL_MS - 1
    assert clocks.pass_ms(1) == START_MS + TRIAL_MS
    assert clocks.pass_ms(1000) == clocks.wall_ms


def test_who_sets_the_clock_right_meanwhile_is_believed_at_once() -> None:
    clocks = Clocks(START_MS - 4 * DAY_MS)
    clocks.pass_ms(60_000)
    clocks.wall_ms -= 4 * DAY_MS - 2000
    assert clocks.pass_ms(1000) == clocks.wall_ms
    for _ in range(100):
        assert clocks.pass_ms(TRIAL_MS) == clocks.wall_ms


def test_what_lies_in_the_future_is_no_witness() -> None:
    assert Clocks(START_MS + 3650 * DAY_MS).believed() == START_MS
    assert Clocks(START_MS + 3650 * DAY_MS, START_MS - DAY_MS).believed() == START_MS - DAY_MS


def test_others_that_agree_end_the_doubt_soon_and_others_that_do_not_at_once() -> None:
    clocks = Clocks(START_MS - 4 * DAY_MS)
    clocks.others = [START_MS + 500]
    assert clocks.believed() == START_MS - 4 * DAY_MS
    assert clocks.pass_ms(AGREED_TRIAL_MS - 1000) == START_MS - 4 * DAY_MS + AGREED_TRIAL_MS - 1000
    assert clocks.pass_ms(2000) == START_MS + AGREED_TRIAL_MS + 1000
    clocks = Clocks(START_MS - 4 * DAY_MS)
    clocks.others = [START_MS - 4 * DAY_MS + 500]
    assert clocks.believed() == START_MS - 4 * DAY_MS + 500


def test_of_two_clocks_the_earlier_counts_and_of_three_the_middle() -> None:
    clocks = Clocks()
    clocks.others = [START_MS + 3650 * DAY_MS]
    assert clocks.believed() == START_MS
    clocks.others = [START_MS - DAY_MS]
    assert clocks.believed() == START_MS - DAY_MS
    clocks.others = [START_MS + 3650 * DAY_MS, START_MS + 70]
    assert clocks.believed() == START_MS + 70
    clocks.wall_ms += 4 * DAY_MS
    clocks.others = [START_MS + 60, START_MS + 70]
    assert clocks.believed() == START_MS + 70


def test_a_step_of_the_own_clock_is_made_up_slowly() -> None:
    clocks = Clocks()
    clocks.wall_ms += 3 * DAY_MS
    assert clocks.pass_ms(1600) == START_MS + 1700
    clocks.wall_ms -= 6 * DAY_MS
    assert clocks.pass_ms(1600) == START_MS + 3200
