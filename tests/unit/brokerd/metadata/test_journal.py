"""Tables in the log: rebuilt from any cut of it they equal what the master had there."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from brokerd.journal.journal import Journal, JournalSettings
from brokerd.journal.reading import Reading
from brokerd.journal.replay import decode_log_record, find_snapshot
from remoting.errors import CorruptedFile, InvalidParameter, NotMaster
from tests.support.memory_log import MemoryRecordLog, draft

TOPIC = "rmq_sys_test"


class Sums:
    """The simplest table: numbers by name."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.applied: list[int] = []

    def clear(self) -> None:
        self.numbers.clear()

    def apply(self, kind: str, body: Any, end_offset: int) -> None:
        assert kind == "add"
        self.numbers[body["n"]] = self.numbers.get(body["n"], 0) + body["by"]
        self.applied.append(end_offset)

    def snapshot_rows(self) -> Iterator[Any]:
        yield from self.numbers.items()

    def load_row(self, row: Any) -> None:
        self.numbers[row[0]] = row[1]


def journal(log: MemoryRecordLog, every: int = 5, part_bytes: int = 1024) -> tuple[Journal, Sums]:
    table = Sums()
    settings = JournalSettings(snapshot_every_records=every, snapshot_bytes_factor=0, snapshot_part_bytes=part_bytes)
    return Journal(log, Reading(TOPIC, table), settings), table


def kinds(log: MemoryRecordLog) -> list[str]:
    return log.kinds(TOPIC)


def test_rebuilt_at_every_cut() -> None:
    log = MemoryRecordLog()
    master, table = journal(log)
    states: dict[int, dict[str, int]] = {0: {}}
    rng = random.Random(1)
    for _ in range(100):
        end_offset = master.append("add", {"v": 1, "n": f"{rng.randrange(40)}" * 60, "by": rng.randrange(10)})
        states[end_offset] = dict(table.numbers)
        if rng.random() < 0.2:
            log.append_messages([draft("other", b"x")])
    assert kinds(log).count("snapshot") > 20
    for cut in [0, *log.positions]:
        replica, rebuilt = journal(log.copy(cut))
        replica.rebuild()
        expected = max(position for position in states if position <= replica.applied_offset or position == 0)
        assert rebuilt.numbers == states[expected], f"log cut at {cut}"


def test_a_snapshot_in_several_parts_counts_only_when_whole() -> None:
    log = MemoryRecordLog()
    master, table = journal(log, every=1000)
    for number in range(100):
        master.append("add", {"v": 1, "n": str(number) * 50, "by": 1})
    before = log.end_offset
    master.want_snapshot()
    master.maintain()
    parts = kinds(log)[100:]
    assert len(parts) > 3
    assert set(parts) == {"snapshot"}
    found = find_snapshot(log, TOPIC, 0, len(kinds(log)))
    assert found is not None
    assert found[0] == 100
    torn = log.copy(log.positions[-2])
    assert torn.end_offset > before
    assert find_snapshot(torn, TOPIC, 0, len(kinds(torn))) is None
    replica, rebuilt = journal(torn)
    replica.rebuild()
    assert rebuilt.numbers == table.numbers
    replica.append("add", {"v": 1, "n": "after", "by": 1})
    again, second = journal(torn)
    again.rebuild()
    assert second.numbers == rebuilt.numbers


def test_a_replica_follows_and_the_master_does_not_apply_twice() -> None:
    log = MemoryRecordLog()
    master, table = journal(log)
    replica, copied = journal(log)
    for number in range(30):
        master.append("add", {"v": 1, "n": str(number % 3), "by": number})
        if number % 4 == 0:
            replica.follow()
            master.follow()
    replica.follow()
    assert copied.numbers == table.numbers
    assert replica.applied_offset == master.applied_offset
    assert len(table.applied) == 30


def test_truncation_below_what_is_applied_rebuilds() -> None:
    log = MemoryRecordLog()
    master, table = journal(log, every=1000)
    ends = [master.append("add", {"v": 1, "n": "a", "by": 1}) for _ in range(5)]
    log.cut(ends[2])
    master.truncated(ends[2])
    assert table.numbers == {"a": 3}
    assert master.applied_offset == ends[2]
    master.truncated(ends[2] + 1000)
    assert table.numbers == {"a": 3}


def test_a_refused_append_changes_nothing() -> None:
    log = MemoryRecordLog()
    master, table = journal(log)
    log.is_master = False
    with pytest.raises(NotMaster):
        master.append("add", {"v": 1, "n": "a", "by": 1})
    assert table.numbers == {}
    assert master.applied_offset == 0


def test_a_refused_snapshot_waits_and_the_change_counts() -> None:
    log = MemoryRecordLog()
    master, table = journal(log, every=3)
    real = log.append

    def refuse_snapshots(topic: str, kind: str, body: bytes) -> int:
        if kind == "snapshot":
            raise InvalidParameter("no room")
        return real(topic, kind, body)

    log.append = refuse_snapshots  # type: ignore[method-assign]
    for _ in range(5):
        master.append("add", {"v": 1, "n": "a", "by": 1})
    assert table.numbers == {"a": 5}
    log.append = real  # type: ignore[method-assign]
    master.append("add", {"v": 1, "n": "a", "by": 1})
    assert kinds(log)[-1] == "snapshot"


def test_retention_with_a_snapshot_loses_nothing() -> None:
    log = MemoryRecordLog()
    master, table = journal(log, every=1000)
    for _ in range(10):
        master.append("add", {"v": 1, "n": "a", "by": 1})
    master.want_snapshot()
    master.maintain()
    log.expire(TOPIC, 0, 10)
    master.append("add", {"v": 1, "n": "a", "by": 1})
    replica, rebuilt = journal(log)
    replica.rebuild()
    assert rebuilt.numbers == table.numbers == {"a": 11}


def test_missing_records_are_said() -> None:
    log = MemoryRecordLog()
    master, _ = journal(log, every=1000)
    for _ in range(3):
        master.append("add", {"v": 1, "n": "a", "by": 1})
    log.expire(TOPIC, 0, 2)
    replica, rebuilt = journal(log)
    replica.rebuild()
    replica.follow()
    assert rebuilt.numbers == {}, "a snapshot may come yet"
    with pytest.raises(CorruptedFile, match="records are missing"):
        replica.catch_up()


def begin_later(log: MemoryRecordLog) -> tuple[Journal, Sums]:
    """A master's log from its seventh record on, of which nothing was dispatched; a snapshot lies in the middle."""
    log.dispatches = False
    master, table = journal(log, every=1000, part_bytes=1024)
    for number in range(60):
        if number == 20:
            master.want_snapshot()
            master.maintain()
        master.append("add", {"v": 1, "n": f"{number % 9}" * 200, "by": 1})
    log.dispatch(6)
    log.expire(TOPIC, 0, 6)
    return master, table


@pytest.mark.parametrize("step", [1, 3, 100])
def test_a_replica_whose_log_begins_later_knows_what_was_before(step: int) -> None:
    log = MemoryRecordLog()
    _, table = begin_later(log)
    replica, copied = journal(log)
    replica.rebuild()
    while log.undispatched_units(TOPIC):
        log.dispatch(step)
        replica.follow()
    assert copied.numbers == table.numbers
    replica.catch_up()
    assert copied.numbers == table.numbers


@pytest.mark.parametrize("dispatched", range(0, 64, 3))
def test_it_becomes_the_master_wherever_dispatch_stands(dispatched: int) -> None:
    log = MemoryRecordLog()
    _, table = begin_later(log)
    replica, copied = journal(log)
    replica.rebuild()
    log.dispatch(dispatched)
    replica.follow()
    replica.catch_up()
    assert copied.numbers == table.numbers
    log.dispatch()
    replica.follow()
    assert copied.numbers == table.numbers


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"v":2}', b"{}"])
def test_unreadable_records_are_said(body: bytes) -> None:
    log = MemoryRecordLog()
    log.append(TOPIC, "add", body)
    with pytest.raises(CorruptedFile, match=r"not readable|start the version"):
        decode_log_record(log.bodies(TOPIC)[0])


def test_nothing_to_snapshot_without_records() -> None:
    log = MemoryRecordLog()
    master, _ = journal(log)
    master.want_snapshot()
    master.maintain()
    assert log.end_offset == 0


def test_a_new_master_knows_what_was_not_confirmed_yet() -> None:
    log = MemoryRecordLog()
    master, table = journal(log, every=7)
    ends = [master.append("add", {"v": 1, "n": str(number % 3), "by": number}) for number in range(20)]
    for confirmed in ends:
        promoted, state = journal(log.copy(dispatched=confirmed), every=7)
        promoted.rebuild()
        promoted.catch_up()
        assert state.numbers == table.numbers
        assert promoted.applied_offset == log.end_offset
        promoted.follow()
        assert len(state.applied) == len(set(state.applied))


def test_what_retention_must_keep_is_enough_to_rebuild() -> None:
    log = MemoryRecordLog()
    master, table = journal(log)
    assert master.held_offset() is None
    for number in range(23):
        master.append("add", {"v": 1, "n": f"n{number % 3}", "by": number})
        log.dispatch()
    held = master.held_offset()
    assert held is not None
    units = log.read_units(TOPIC, 0, 0, 1000)
    assert held > units[0][0], "old records may go"
    log.expire(TOPIC, 0, [unit[0] for unit in units].index(held))
    rebuilt, again = journal(log)
    rebuilt.rebuild()
    assert again.numbers == table.numbers


@pytest.mark.parametrize("seed", range(20))
def test_what_is_held_is_what_a_journal_says_that_looks_for_the_first_time(seed: int) -> None:
    """Whatever was dispatched in parts, cut and expired since it last looked; a snapshot may have several parts."""
    rng = random.Random(seed)
    log = MemoryRecordLog()
    master, _ = journal(log)
    expired = 0
    for number in range(120):
        event = rng.random()
        if event < 0.6:
            master.append("add", {"v": 1, "n": f"{rng.randrange(30)}" * 60, "by": number})
        elif event < 0.85:
            log.dispatch(rng.choice((1, 2, None)))
        elif event < 0.92:
            log.cut(rng.choice([each for each in log.positions if each >= expired] or [log.end_offset]))
            master.truncated(log.end_offset)
        elif log.queue_range(TOPIC, 0)[1] > 0 and (held := master.held_offset()) is not None:
            low, high = log.queue_range(TOPIC, 0)
            places = [unit[0] for unit in log.read_units(TOPIC, 0, low, high - low)]
            log.expire(TOPIC, 0, low + places.index(held))
            expired = held
        assert master.held_offset() == journal(log)[0].held_offset()
