"""Snapshots that are written in many turns of the loop: what changes meanwhile is in the table of whoever reads them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import orjson
import pytest

from brokerd.journal import reread
from brokerd.journal.journal import Journal, JournalSettings
from brokerd.journal.reading import Reading
from brokerd.journal.replay import SNAPSHOT, find_snapshot
from brokerd.journal.slices import InSlices
from remoting.errors import InvalidParameter
from remoting.record.codec import decode_record
from tests.support.memory_log import MemoryRecordLog, draft
from tests.unit.brokerd.metadata.test_journal import TOPIC, Sums

SETTINGS = JournalSettings(snapshot_every_records=40, snapshot_bytes_factor=0, snapshot_part_bytes=4096)


class FrozenSums:
    """A copy of all numbers."""

    def __init__(self, table: Sums) -> None:
        self.numbers = dict(table.numbers)
        self.is_closed = False

    def rows(self) -> Iterator[Any]:
        yield from self.numbers.items()

    def close(self) -> None:
        self.is_closed = True


class Held:
    """Turns that wait until somebody takes the next of them."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []

    def time(self) -> float:
        return 0.0

    def call_soon(self, callback: Any, *args: Any) -> None:
        self.waiting.append(partial(callback, *args))

    def call_later(self, delay: float, callback: Any, *args: Any) -> Any:
        assert delay == SETTINGS.snapshot_pause_ms / 1000
        self.call_soon(callback, *args)

    def next(self) -> None:
        if self.waiting:
            self.waiting.pop(0)()


class Writer:
    """A journal whose snapshots are written in slices, by a loop that is moved by hand."""

    def __init__(self, log: MemoryRecordLog) -> None:
        self.log = log
        self.held = Held()
        self.table = Sums()
        self.frozen: list[FrozenSums] = []
        self.journal = Journal(
            log, Reading(TOPIC, self.table), SETTINGS, in_slices=InSlices(self.freeze, self.renew, self.held)
        )
        self.rng = random.Random(5)

    def freeze(self) -> FrozenSums:
        self.frozen.append(FrozenSums(self.table))
        return self.frozen[-1]

    def renew(self) -> tuple[Sums, Callable[[], None]]:
        fresh = Sums()

        def take_its_place() -> None:
            self.table.numbers = fresh.numbers

        return fresh, take_its_place

    def append(self) -> int:
        name = f"{self.rng.randrange(60)}" * 60
        return self.journal.append("add", {"v": 1, "n": name, "by": self.rng.randrange(10)})


def rebuilt(log: MemoryRecordLog) -> dict[str, int]:
    """What a replica has that starts with the log."""
    replica = Writer(log)
    replica.journal.rebuild()
    return replica.table.numbers


def bodies(log: MemoryRecordLog) -> list[dict[str, Any]]:
    return [orjson.loads(decode_record(each).body) for each in log.bodies(TOPIC)]


def writer(log: MemoryRecordLog) -> tuple[Writer, Held]:
    made = Writer(log)
    return made, made.held


def test_rebuilt_at_every_cut_while_records_come_between_the_slices() -> None:
    log = MemoryRecordLog()
    master, held = writer(log)
    states: dict[int, dict[str, int]] = {0: {}}
    for _ in range(300):
        end_offset = master.append()
        states[end_offset] = dict(master.table.numbers)
        if master.rng.random() < 0.6:
            held.next()
        if master.rng.random() < 0.2:
            log.append_messages([draft("other", b"x")])
    slices = [body for body in bodies(log) if "back" in body]
    assert sum(body["last"] for body in slices) >= 3, "several were written"
    assert any(body["last"] and body["back"] > body["part"] for body in slices), "with records between"
    for cut in [0, *log.positions]:
        expected = max((position for position in states if position <= cut), default=0)
        assert rebuilt(log.copy(cut)) == states[expected], f"log cut at {cut}"


def test_nobody_needs_what_lies_before_the_first_slice() -> None:
    log = MemoryRecordLog()
    master, held = writer(log)
    for _ in range(200):
        master.append()
        held.next()
        held.next()
        position = master.journal.held_offset()
        units = [unit[0] for unit in log.read_units(TOPIC, 0, 0, 1000)]
        assert position is not None
        later = log.copy()
        later.expire(TOPIC, 0, units.index(position))
        assert rebuilt(later) == master.table.numbers
        assert Writer(log).journal.held_offset() == position


def test_who_becomes_the_master_has_it_wherever_dispatch_stands() -> None:
    log = MemoryRecordLog()
    master, held = writer(log)
    for _ in range(120):
        master.append()
        held.next()
    for confirmed in log.positions[::3]:
        heir = Writer(log.copy(dispatched=confirmed))
        heir.journal.rebuild()
        heir.journal.catch_up()
        assert heir.table.numbers == master.table.numbers
    first = next(at for at, body in enumerate(bodies(log)) if "back" in body)
    for dispatched in range(first, len(log.bodies(TOPIC)), 3):
        later = log.copy(dispatched=log.positions[dispatched])
        later.expire(TOPIC, 0, first)
        heir = Writer(later)
        heir.journal.rebuild()
        heir.journal.follow()
        heir.journal.catch_up()
        assert heir.table.numbers == master.table.numbers


def test_a_small_one_is_whole_at_once() -> None:
    log = MemoryRecordLog()
    master, held = writer(log)
    master.append()
    master.journal.want_snapshot()
    master.journal.maintain()
    assert not held.waiting
    assert bodies(log)[-1]["parts"] == 1
    assert master.frozen[-1].is_closed


def test_releases_before_pass_over_slices() -> None:
    """They take a part for the last one whose number is that of all parts less one, and go on to look before any other."""
    log = MemoryRecordLog()
    master, held = writer(log)
    for _ in range(200):
        master.append()
        held.next()
    slices = [body for body in bodies(log) if "back" in body]
    assert slices
    assert all(body["part"] != body["parts"] - 1 for body in slices)
    assert {body["v"] for body in slices} == {1}


@pytest.mark.parametrize("dies", [False, True])
def test_one_that_is_not_finished_does_not_count(dies: bool) -> None:
    log = MemoryRecordLog()
    master, held = writer(log)
    while not held.waiting:
        master.append()
    master.append()
    held.next()
    high = len(log.bodies(TOPIC))
    assert find_snapshot(log, TOPIC, 0, high) is None
    if dies:
        master, held = writer(log)
        master.journal.rebuild()
        master.journal.catch_up()
        master.journal.maintain()
    else:
        log.refusal = InvalidParameter("no room")
        held.next()
        assert master.frozen[-1].is_closed
        log.refusal = None
        master.journal.maintain()
    while held.waiting:
        master.append()
        held.next()
    assert find_snapshot(log, TOPIC, 0, len(log.bodies(TOPIC))) is not None
    assert log.kinds(TOPIC).count(SNAPSHOT) > 4
    assert rebuilt(log) == master.table.numbers


def test_a_file_that_is_begun_meanwhile_gets_one_of_its_own() -> None:
    log = MemoryRecordLog()
    master, held = writer(log)
    while not held.waiting:
        master.append()
    begun = log.end_offset
    master.journal.want_snapshot()
    master.journal.maintain()
    assert len(master.frozen) == 1
    while held.waiting:
        held.next()
    assert len(master.frozen) == 2
    position = master.journal.held_offset()
    assert position is not None
    assert position >= begun


def test_reading_it_again_takes_turns_and_the_table_before_is_seen_until_then() -> None:
    log = MemoryRecordLog()
    master, held = writer(log)
    master.journal.rebuild()  # at the start
    for _ in range(2000):
        master.append()
        while held.waiting:
            held.next()
    before = dict(master.table.numbers)
    cut = log.positions[-700]
    whole = rebuilt(log.copy(cut))
    log.cut(cut)
    with patch.object(reread, "_ENOUGH", 20):
        master.journal.truncated(cut)
        assert held.waiting
        assert master.table.numbers == before
        position = master.journal.held_offset()
        assert position is not None
        held.next()
        log.append(TOPIC, "add", orjson.dumps({"v": 1, "n": "later", "by": 7}))
        master.journal.follow()
        assert master.table.numbers == before
        while held.waiting:
            held.next()
    assert master.table.numbers == {**whole, "later": 7}
    assert master.journal.applied_offset == log.end_offset


@pytest.mark.parametrize("turns", [0, 1, 5, 40])
def test_who_becomes_the_master_while_it_reads_has_all_of_it(turns: int) -> None:
    log = MemoryRecordLog()
    master, held = writer(log)
    master.journal.rebuild()  # at the start
    for _ in range(500):
        master.append()
        held.next()
    with patch.object(reread, "_ENOUGH", 5):
        master.journal.rebuild()
        for _ in range(turns):
            held.next()
        log.dispatches = False
        end_offset = log.append(TOPIC, "add", orjson.dumps({"v": 1, "n": "late", "by": 1}))
        master.journal.catch_up()
    assert master.table.numbers == {**rebuilt(log), "late": 1}
    assert master.journal.applied_offset == end_offset
    held.next()
    assert master.journal.append("add", {"v": 1, "n": "late", "by": 1}) > end_offset
    assert master.table.numbers["late"] == 2


def test_a_cut_while_it_reads_begins_again() -> None:
    log = MemoryRecordLog()
    master, held = writer(log)
    master.journal.rebuild()  # at the start
    for _ in range(300):
        master.append()
    while held.waiting:
        held.next()
    with patch.object(reread, "_ENOUGH", 5):
        master.journal.rebuild()
        held.next()
        cut = log.positions[-50]
        log.cut(cut)
        master.journal.truncated(cut)
        while held.waiting:
            held.next()
    assert master.table.numbers == rebuilt(log)
