"""How the followers of the log share the loop."""

from __future__ import annotations

import pytest

from brokerd.store.derived.background import Background, decide_pause_s
from remoting.errors import CorruptedFile, StorageError
from tests.support.turns import Turns

GIB = 1 << 30


class Reader:
    """A follower that reads `speed` bytes per call, or fails."""

    def __init__(self, speed: int = 10) -> None:
        self.offset = 0
        self.speed = speed
        self.error: StorageError | None = None
        self.calls = 0

    def take(self, limit_offset: int, most_bytes: int) -> int:
        self.calls += 1
        if self.error is not None:
            raise self.error
        moved = min(self.speed, limit_offset - self.offset, most_bytes)
        self.offset += moved
        return moved


class World:
    def __init__(self, *readers: Reader) -> None:
        self.turns = Turns()
        self.limit = 0
        self.failures: list[StorageError] = []
        self.background = Background(
            readers,  # type: ignore[arg-type]
            lambda: self.limit,
            self.turns,
            lambda: 0.0,
            self.failures.append,
        )


def test_an_idle_loop_gives_half_of_its_time_and_a_busy_one_little() -> None:
    assert decide_pause_s(0.001, 0.0, 0, hurried=False) == pytest.approx(0.001)
    assert decide_pause_s(0.001, 1.0, 0, hurried=False) == pytest.approx(0.019)


def test_the_share_of_a_busy_loop_grows_with_what_is_left_to_read() -> None:
    pauses = [decide_pause_s(0.001, 1.0, behind, hurried=False) for behind in (0, GIB, 2 * GIB, 4 * GIB, 400 * GIB)]
    assert pauses == sorted(pauses, reverse=True)
    assert pauses[-1] == pauses[-2] == pytest.approx(0.001)


def test_while_others_are_late_it_takes_next_to_nothing_up_to_where_its_share_was_the_largest() -> None:
    def pause_s(behind: int) -> float:
        return decide_pause_s(0.001, 1.0, behind, hurried=False, others_are_late=True)

    assert pause_s(0) == pause_s(GIB) == pause_s(4 * GIB) == pytest.approx(0.049)
    assert pause_s(4 * GIB) > pause_s(5 * GIB) > pause_s(8 * GIB) == pause_s(400 * GIB) == pytest.approx(0.001)
    assert decide_pause_s(0.001, 0.0, 0, hurried=False, others_are_late=True) == pytest.approx(0.001), "it is idle"


def test_it_asks_at_each_slice_whether_others_are_late() -> None:
    reader, is_late, cpu_s = Reader(1), True, 0.0

    def spent_s() -> float:
        nonlocal cpu_s
        cpu_s += 0.001
        return cpu_s

    world = World(reader)
    world.background = Background(
        [reader],  # type: ignore[list-item]
        lambda: world.limit,
        world.turns,
        spent_s,
        world.failures.append,
        lambda: is_late,
    )

    def calls_in_a_second() -> int:
        before = reader.calls
        for _ in range(1000):
            world.limit += 1
            world.turns.run(1)
        return reader.calls - before

    world.limit = 1 << 20
    world.background.wake()
    calls_in_a_second()
    while_late = calls_in_a_second()
    is_late = False
    assert calls_in_a_second() > 2 * while_late > 0


def test_who_waits_makes_it_hurry() -> None:
    assert decide_pause_s(0.001, 1.0, 0, hurried=True) == pytest.approx(0.001)


@pytest.mark.parametrize(("s_per_byte", "largest"), [(1e-10, 1 << 20), (1e-9, 1 << 19), (1e-7, 1 << 16)])
def test_a_fast_follower_gets_larger_pieces_and_a_slow_one_no_large_ones(s_per_byte: float, largest: int) -> None:
    sizes = []

    class Timed(Reader):
        def take(self, limit_offset: int, most_bytes: int) -> int:
            sizes.append(most_bytes)
            world.turns.pass_s(most_bytes * s_per_byte)
            return super().take(limit_offset, most_bytes)

    world = World(Timed(speed=1 << 30))
    world.limit = 8 << 20
    world.background.wake()
    world.turns.run(100_000)
    assert world.background.behind_bytes == 0
    assert max(sizes) == largest


def test_nothing_happens_without_something_to_read() -> None:
    reader = Reader()
    world = World(reader)
    world.background.wake()
    world.turns.run(1000)
    assert reader.calls == 0


def test_all_followers_get_to_the_end() -> None:
    fast, slow = Reader(1000), Reader(1)
    world = World(fast, slow)
    world.limit = 500
    world.background.wake()
    world.background.wake()
    world.turns.run(10_000)
    assert (fast.offset, slow.offset) == (500, 500)
    assert world.background.behind_bytes == 0
    world.limit = 600
    world.background.wake()
    world.turns.run(10_000)
    assert (fast.offset, slow.offset) == (600, 600)


def test_while_messages_arrive_it_takes_little_and_then_half_of_the_time() -> None:
    """One slice of work takes half a millisecond here, whatever it does; messages arrive once a millisecond."""
    reader = Reader(1)
    world = World(reader)
    asked = 0

    def cpu_s() -> float:  # asked for at the start, and at the begin and the end of every slice
        nonlocal asked
        asked += 1
        return (asked - 1) // 2 * 0.0005

    background = Background([reader], lambda: world.limit, world.turns, cpu_s, world.failures.append)  # type: ignore[list-item]
    world.limit = 1 << 20
    background.wake()
    for _ in range(1000):
        world.turns.run(1)
        world.limit += 1
    while_arriving = reader.calls
    world.turns.run(1000)
    assert 0 < while_arriving < (reader.calls - while_arriving) / 4


def test_who_hurries_is_called_when_what_was_readable_then_is_read() -> None:
    reader = Reader(7)
    world = World(reader)
    world.limit = 5000
    reached: list[int] = []
    world.background.hurry(lambda: reached.append(reader.offset))
    assert reached == []
    world.turns.run(10_000)
    assert len(reached) == 1
    assert reached[0] >= 5000


def test_who_hurries_is_called_also_when_the_log_is_cut_meanwhile() -> None:
    reader = Reader(0)
    world = World(reader)
    world.limit = 100
    reached: list[int] = []
    world.background.hurry(lambda: reached.append(reader.offset))
    world.turns.run(1)
    world.limit = reader.offset = 3
    world.turns.run(1000)
    assert reached == [3]


def test_one_that_cannot_go_on_is_tried_again() -> None:
    reader = Reader(0)
    world = World(reader)
    world.limit = 50
    world.background.wake()
    world.turns.run(1000)
    assert 1 < reader.calls < 50
    reader.speed = 50
    world.turns.run(1000)
    assert reader.offset == 50


def test_a_failure_ends_it_and_is_told_once() -> None:
    reader = Reader()
    world = World(reader)
    world.limit = 50
    reader.error = CorruptedFile("no record")
    called: list[bool] = []
    world.background.hurry(lambda: called.append(True))
    world.turns.run(1000)
    world.background.wake()
    world.turns.run(1000)
    assert (len(world.failures), reader.calls, called) == (1, 1, [True])


def test_closing_calls_who_waits_and_later_ones_too() -> None:
    world = World(Reader(0))
    world.limit = 50
    called: list[int] = []
    world.background.hurry(lambda: called.append(1))
    world.background.close()
    assert called == [1]
    world.background.hurry(lambda: called.append(2))
    world.turns.run(10)
    assert called == [1, 2]
