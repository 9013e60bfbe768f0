"""When a disk is said to stand still, to be slow, or to work."""

from __future__ import annotations

import random

import pytest

from brokerd.replication.log import LogPosition
from brokerd.replication.roles.disk_watch import SLOW_MS, DiskWatch
from remoting.facts.words import DiskPace

LIMIT_MS = 1000
LOOK_MS = 50


class Watched:
    """A log that something is appended to all the time, and its watch."""

    def __init__(self, limit_ms: int = LIMIT_MS) -> None:
        self.watch = DiskWatch()
        self.log = LogPosition()
        self.now_ms = 0
        self.limit_ms = limit_ms
        self.paces: list[DiskPace] = []

    def run(self, length_ms: int, *, sync_ms: int | None) -> None:
        """Let time pass; each sync takes so long, and begins when the one before it ends. None: none ends."""
        since_ms, wanted = self.now_ms, self.log.end_offset + 10
        for _ in range(length_ms // LOOK_MS):
            self.now_ms += LOOK_MS
            self.log.end_offset += 10
            if sync_ms is not None and self.now_ms - since_ms >= sync_ms:
                self.log.flushed_offset, wanted, since_ms = wanted, self.log.end_offset, self.now_ms
                self.look()
            self.look()

    def look(self, pause_ms: int = 0) -> None:
        self.watch.look(self.log, self.now_ms, self.limit_ms, pause_ms)
        self.paces.append(self.watch.pace)


def test_a_sync_that_does_not_end_makes_a_disk_slow_and_then_stand() -> None:
    watched = Watched()
    watched.run(2000, sync_ms=50)
    assert set(watched.paces) == {DiskPace.WORKS}
    watched.paces.clear()
    watched.run(2000, sync_ms=None)
    first = {pace: watched.paces.index(pace) * LOOK_MS for pace in DiskPace}
    assert first[DiskPace.WORKS] == 0
    assert LIMIT_MS // 2 - LOOK_MS <= first[DiskPace.SLOW] <= LIMIT_MS // 2 + LOOK_MS
    assert LIMIT_MS - LOOK_MS <= first[DiskPace.STANDS] <= LIMIT_MS + LOOK_MS
    assert watched.watch.stands
    assert watched.watch.standing_ms >= 1900


def test_a_disk_that_went_on_is_slow_for_a_while_and_then_works() -> None:
    watched = Watched()
    watched.run(1500, sync_ms=None)
    watched.paces.clear()
    watched.run(SLOW_MS + 1000, sync_ms=20)
    slow_ms = watched.paces.count(DiskPace.SLOW) / len(watched.paces) * (SLOW_MS + 1000)
    assert DiskPace.STANDS not in watched.paces
    assert SLOW_MS - 500 <= slow_ms <= SLOW_MS + 500
    assert watched.watch.pace is DiskPace.WORKS


def test_what_counts_is_the_longest_sync_and_not_how_much_waits() -> None:
    watched = Watched()
    watched.run(20_000, sync_ms=400)
    assert set(watched.paces) == {DiskPace.WORKS}, "everything waits for up to two of them"
    watched.run(20_000, sync_ms=800)
    assert set(watched.paces[-100:]) == {DiskPace.SLOW}
    assert DiskPace.STANDS not in watched.paces


def test_a_log_that_nothing_is_appended_to_says_nothing_of_its_disk() -> None:
    watched = Watched()
    watched.run(1500, sync_ms=None)
    watched.log.flushed_offset = watched.log.end_offset
    for _ in range(SLOW_MS // LOOK_MS + 1):
        watched.look()
        watched.now_ms += LOOK_MS
    assert (watched.watch.pace, watched.watch.standing_ms) == (DiskPace.WORKS, 0)


def test_a_process_that_stood_still_itself_blames_no_disk() -> None:
    watched = Watched()
    watched.run(200, sync_ms=None)
    watched.now_ms += 5000
    watched.look(pause_ms=4950)
    assert watched.watch.pace is DiskPace.WORKS
    assert watched.watch.standing_ms <= 300


def test_a_log_that_is_cut_waits_for_another_sync() -> None:
    watched = Watched()
    watched.run(1000, sync_ms=50)
    watched.run(900, sync_ms=None)
    watched.log.flushed_offset -= 100
    watched.log.end_offset = watched.log.flushed_offset + 10
    watched.look()
    assert watched.watch.standing_ms == 0


@pytest.mark.parametrize("seed", range(20))
def test_no_disk_stands_while_each_sync_is_shorter_than_the_limit(seed: int) -> None:
    rng = random.Random(seed)
    watched = Watched()
    for _ in range(100):
        watched.run(rng.randrange(50, 1500, 50), sync_ms=rng.randrange(1, LIMIT_MS - LOOK_MS))
        watched.log.flushed_offset = watched.log.end_offset
        watched.look()
    assert DiskPace.STANDS not in watched.paces


def test_without_a_limit_every_disk_works() -> None:
    watched = Watched(limit_ms=0)
    watched.run(60_000, sync_ms=None)
    assert set(watched.paces) == {DiskPace.WORKS}
    assert watched.watch.standing_ms > 50_000, "it is measured all the same"
