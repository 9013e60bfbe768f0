"""When a message may be delivered, under clocks that are set, differ, and stand still: never early, never much too late."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from brokerd.delay.waiting import CATCHING_UP_MS, MAX_ARRIVALS, WaitingLevel

DELAY_MS = 60_000
START_MS = 1_700_000_000_000


@dataclass
class Machine:
    """A broker that stores messages or copies them. `ahead_ms`: its wall clock, against the true time."""

    level: WaitingLevel
    ahead_ms: int = 0
    stored: list[tuple[int, int]] = field(default_factory=list)  # (true time, entry)
    last_stamp_ms: int = 0

    @staticmethod
    def new(ahead_ms: int = 0) -> Machine:
        return Machine(WaitingLevel(DELAY_MS, 0, 0), ahead_ms)

    def wall_ms(self, true_ms: int) -> int:
        return START_MS + true_ms + self.ahead_ms

    def store(self, true_ms: int) -> None:
        """As a master."""
        self.last_stamp_ms = max(self.last_stamp_ms, self.wall_ms(true_ms))
        entry = self.last_stamp_ms + DELAY_MS
        self.stored.append((true_ms, entry))
        self.level.arrived(len(self.stored), entry, true_ms, stored_here=True)

    def copy(self, other: Machine, true_ms: int) -> None:
        """As a replica, all that the other has and this one has not."""
        for at_ms, entry in other.stored[len(self.stored) :]:
            self.stored.append((at_ms, entry))
        self.level.arrived(len(self.stored), self.stored[-1][1], true_ms, stored_here=False)

    def lateness_ms(self, offset: int, now_ms: int) -> int:
        """How long after its time, by the true clock, a message is released. Negative: too early."""
        at_ms, entry = self.stored[offset]
        return self.level.release_ms(offset, entry, now_ms, self.wall_ms(now_ms)) - (at_ms + DELAY_MS)


@given(
    st.lists(
        st.tuples(st.integers(0, 20_000), st.sampled_from([0, 0, 0, 3_600_000, -3_600_000, 70_000, -70_000])),
        max_size=40,
    )
)
def test_on_the_master_that_stored_them_messages_come_on_time_whatever_somebody_does_to_its_clock(
    steps: list[tuple[int, int]],
) -> None:
    machine = Machine.new()
    now_ms = 0
    for passed_ms, by_ms in steps:
        now_ms += passed_ms
        machine.ahead_ms += by_ms
        machine.store(now_ms)
        for offset in range(len(machine.stored)):
            assert machine.lateness_ms(offset, now_ms) == 0


@given(
    st.integers(-7_200_000, 7_200_000),
    st.integers(-7_200_000, 7_200_000),
    st.lists(st.integers(0, 50), min_size=1, max_size=30),
)
def test_a_replica_that_was_there_releases_them_on_time_whatever_the_clocks_say(
    old_ahead_ms: int, new_ahead_ms: int, latencies: list[int]
) -> None:
    old, new = Machine.new(old_ahead_ms), Machine.new(new_ahead_ms)
    now_ms = 0
    for latency in latencies:
        now_ms += 1000
        old.store(now_ms)
        new.copy(old, now_ms + latency)
    for offset, latency in enumerate(latencies):
        assert new.lateness_ms(offset, now_ms + 1000) == latency, "as late as it came here, and no more"


def test_what_was_there_before_this_process_is_due_by_its_entry_but_not_later_than_its_delay_from_then() -> None:
    level = WaitingLevel(DELAY_MS, 3, 1000)
    wall_ms = START_MS
    assert level.release_ms(0, START_MS + 5000, 2000, wall_ms) == 7000
    assert level.release_ms(1, START_MS - 5000, 2000, wall_ms) == -3000, "long due"
    assert level.release_ms(2, START_MS + 7_200_000, 2000, wall_ms) == 1000 + DELAY_MS


def test_messages_that_a_start_finds_behind_its_queues_were_there_before() -> None:
    level = WaitingLevel(DELAY_MS, 3, 1000)
    level.loaded_at_start(5)
    assert level.count == 5
    assert level.release_ms(4, START_MS + 5000, 2000, START_MS) == 7000


def test_a_replica_that_catches_up_does_not_start_the_delay_anew() -> None:
    old, new = Machine.new(-5000), Machine.new(2000)
    for second in range(601):
        old.store(second * 1000)
    new.copy(Machine(old.level, stored=old.stored[:500]), 599_500)  # all at once, up to ten minutes late
    new.copy(Machine(old.level, stored=old.stored[:600]), 599_600)
    new.copy(old, 600_005)
    for offset in range(589):
        assert new.lateness_ms(offset, 600_010) in range(0, 10), offset
    for offset in range(589, 600):
        assert new.lateness_ms(offset, 600_010) in range(0, CATCHING_UP_MS + 700), offset
    assert new.lateness_ms(600, 600_010) == 5


def test_a_message_that_waited_for_a_copy_is_due_by_its_own_age() -> None:
    old, new = Machine.new(), Machine.new()
    old.store(0)
    new.copy(old, 50_000)  # it catches up
    old.store(50_100)
    new.copy(old, 50_103)
    assert new.lateness_ms(0, 50_110) in range(0, 10), "it knows now that the first one was late"
    assert new.lateness_ms(1, 50_110) == 3


@given(st.integers(1, 3 * MAX_ARRIVALS), st.integers(0, 500))
def test_what_is_remembered_is_bounded_and_stays_exact_while_the_clock_is_right(count: int, delivered: int) -> None:
    machine = Machine.new()
    for number in range(count):
        machine.store(number * 10)
        machine.level.move(min(delivered, number))
    assert len(machine.level._arrivals) <= MAX_ARRIVALS
    for offset in range(delivered, count, 97):
        assert machine.lateness_ms(offset, count * 10) == 0


def test_when_much_is_remembered_and_the_clock_is_wrong_the_error_is_small() -> None:
    machine = Machine.new()
    count = 4 * MAX_ARRIVALS
    for number in range(count):
        machine.store(number * 10)
    for ahead_ms in (3_600_000, -3_600_000):
        machine.ahead_ms = ahead_ms
        errors = [machine.lateness_ms(offset, count * 10) for offset in range(count)]
        assert max(map(abs, errors)) <= 2 * DELAY_MS // MAX_ARRIVALS


def test_a_cut_forgets_what_it_took() -> None:
    machine = Machine.new()
    for number in range(10):
        machine.store(number * 1000)
    machine.level.move(2)
    machine.level.cut(5)
    assert machine.level.count == 3
    assert machine.lateness_ms(4, 9000) == 0
    del machine.stored[5:]
    machine.store(20_000)
    assert machine.lateness_ms(5, 20_000) == 0
    assert machine.lateness_ms(4, 20_000) == 0
    machine.level.cut(0)
    assert (machine.level.count, machine.level.position) == (0, 0)


@given(
    st.lists(st.tuples(st.integers(0, 40_000), st.integers(1, 5), st.booleans()), max_size=12),
    st.integers(0, 30),
    st.integers(0, 30),
    st.integers(0, 500_000),
    st.integers(-80_000, 80_000),
)
def test_as_many_are_released_together_as_one_by_one(
    arrivals: list[tuple[int, int, bool]], known: int, position: int, later_ms: int, set_by_ms: int
) -> None:
    level, now_ms, due_ms = WaitingLevel(DELAY_MS, 0, 0), 0, [START_MS + DELAY_MS] * known
    level.loaded_at_start(known)
    for after_ms, count, stored_here in arrivals:
        now_ms += after_ms
        due_ms += [START_MS + now_ms + DELAY_MS + (set_by_ms if now_ms % 3 else 0)] * count
        level.arrived(len(due_ms), due_ms[-1], now_ms, stored_here=stored_here)
    now_ms += later_ms
    level.move(min(position, level.end))
    wall_ms = START_MS + now_ms + set_by_ms
    each = [level.release_ms(n, due_ms[n], now_ms, wall_ms) <= now_ms for n in range(level.position, level.end)]
    assert level.count_released(due_ms[level.position :], now_ms, wall_ms) == [*each, False].index(False)
    some = due_ms[level.position : level.position + 3]
    assert level.count_released(some, now_ms, wall_ms) == [*each[: len(some)], False].index(False)
