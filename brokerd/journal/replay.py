"""Rebuilding a table from the log: the last whole snapshot, then every later record in order.

A snapshot is a run of consecutive `snapshot` records, the parts {v, part, parts, rows}. A run whose last part is missing (the
master died while writing it) does not count. The entries of the consume queue tell the kinds apart by their tags codes, so
looking for the snapshot reads no record but the candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import orjson

from brokerd.journal.record_log import RecordLog
from brokerd.store.unit import Unit
from remoting.errors import CorruptedFile
from remoting.java_hash import java_hash
from remoting.record.fields import body_and_properties_of, physical_offset_of, topic_of
from remoting.record.properties import decode_properties

SNAPSHOT: Final = "snapshot"
VERSION: Final = 1

_SNAPSHOT_CODE = java_hash(SNAPSHOT)
_CHUNK = 1024


class Table(Protocol):
    """State that is changed by records only."""

    def clear(self) -> None: ...

    def apply(self, kind: str, body: Any, end_offset: int) -> None:
        """Carry out the record that ends at that physical offset. Raises CorruptedFile for a kind that is not known."""

    def snapshot_rows(self) -> Iterator[Any]:
        """The whole state as JSON values."""

    def load_row(self, row: Any) -> None: ...


class LogRecord(NamedTuple):
    """A decoded record of a system topic."""

    kind: str
    body: Any
    end_offset: int


def decode_log_record(encoded: bytes) -> LogRecord:
    """Raises CorruptedFile when it is not one of ours, or is of a layout that only a newer version knows."""
    encoded_body, properties = body_and_properties_of(encoded)
    physical_offset = physical_offset_of(encoded)
    try:
        body = orjson.loads(encoded_body)
        version = body["v"]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptedFile(
            f"the record at {physical_offset} of {topic_of(encoded)} is not readable: {error}"
        ) from error
    if version != VERSION:
        raise CorruptedFile(
            f"the record at {physical_offset} of {topic_of(encoded)} has layout {version}, this version of the broker "
            f"knows {VERSION}; start the version that wrote it"
        )
    kind = decode_properties(properties).get("TAGS", "")
    return LogRecord(kind, body, physical_offset + len(encoded))


class Snapshot(NamedTuple):
    """The place of its first unit, and its parts."""

    first: int
    parts: Sequence[LogRecord]


class Position(NamedTuple):
    """How far a table follows its topic: the next queue offset, and the physical end of the last record applied."""

    next_unit: int
    applied_offset: int


def rebuild(log: RecordLog, topic: str, table: Table) -> Position:
    """Empty the table and fold the log into it.

    A log that begins later than its topic needs a snapshot; until one was dispatched, the table stays empty (`Journal.follow`).
    """
    table.clear()
    low, high = log.queue_range(topic, 0)
    found = find_snapshot(log, topic, low, high)
    if found is None and low > 0:
        return Position(0, 0)
    begin = _load(table, found) if found is not None else Position(low, 0)
    return follow(log, topic, table, begin, high)


def rebuild_undispatched(log: RecordLog, topic: str, table: Table, undispatched: Sequence[Unit]) -> Position:
    """Likewise, when the only whole snapshot ends behind what was dispatched: for a broker that becomes the master then.

    Raises CorruptedFile when there is none at all.
    """
    low, high = log.queue_range(topic, 0)
    units = [*log.read_units(topic, 0, low, high - low), *undispatched]
    found = _last_whole(log, lambda start, count: units[start : start + count], 0, len(units))
    if found is None:
        raise CorruptedFile(
            f"{topic} starts at queue offset {low} and holds no snapshot: records are missing; restore the broker's "
            "data directory, or empty it so that it is copied from the master"
        )
    table.clear()
    behind, end_offset = _load(table, found)
    return Position(high, apply_units(log, table, units[behind:], end_offset))


def _load(table: Table, snapshot: Snapshot) -> Position:
    """Fill the empty table; where what follows the snapshot begins."""
    first, parts = snapshot
    for part in parts:
        for row in part.body["rows"]:
            table.load_row(row)
    return Position(first + len(parts), parts[-1].end_offset)


def follow(log: RecordLog, topic: str, table: Table, position: Position, high: int) -> Position:
    """Apply the records of queue offsets up to `high`, but none that is applied already."""
    start, applied_offset = position
    while start < high:
        units = log.read_units(topic, 0, start, min(_CHUNK, high - start))
        if not units:
            raise CorruptedFile(f"{topic} cannot be read at queue offset {start}, its end is {high}")
        applied_offset = apply_units(log, table, units, applied_offset)
        start += len(units)
    return Position(start, applied_offset)


def apply_units(log: RecordLog, table: Table, units: Sequence[Unit], applied_offset: int) -> int:
    """Apply the records behind `applied_offset`; return the new one."""
    for unit in units:
        physical_offset, size, tags_code = unit
        end_offset = physical_offset + size
        if end_offset <= applied_offset:
            continue
        if tags_code != _SNAPSHOT_CODE:
            record = _read(log, unit)
            table.apply(record.kind, record.body, end_offset)
        applied_offset = end_offset
    return applied_offset


def find_snapshot(log: RecordLog, topic: str, low: int, high: int, looked_to: int = 0) -> Snapshot | None:
    """The last whole snapshot in [low, high) that ends behind `looked_to`."""
    return _last_whole(log, partial(log.read_units, topic, 0), low, high, looked_to)


def _last_whole(
    log: RecordLog, read_units: Callable[[int, int], Sequence[Unit]], low: int, high: int, looked_to: int = 0
) -> Snapshot | None:
    """The last whole snapshot among the units [low, high), which `read_units(start, count)` reads; its last part is not before
    `looked_to`."""
    end = high
    least = max(low, looked_to)
    while end > least:
        start = max(least, end - _CHUNK)
        units = read_units(start, end - start)
        for index in range(len(units) - 1, -1, -1):
            if units[index][2] != _SNAPSHOT_CODE:
                continue
            last = _read(log, units[index])
            count = last.body["parts"]
            first = start + index - count + 1
            if last.body["part"] == count - 1 and first >= low:
                return Snapshot(first, [*(_read(log, unit) for unit in read_units(first, count - 1)), last])
        end = start
    return None


def encode_snapshot(table: Table, part_bytes: int) -> list[bytes]:
    """The parts of a snapshot as record bodies, each of about `part_bytes` at most unless one row is longer."""
    groups: list[list[bytes]] = [[]]
    size = 0
    for row in table.snapshot_rows():
        encoded = orjson.dumps(row)
        if size + len(encoded) > part_bytes and groups[-1]:
            groups.append([])
            size = 0
        groups[-1].append(encoded)
        size += len(encoded) + 1
    return [
        b'{"v":%d,"part":%d,"parts":%d,"rows":[%b]}' % (VERSION, part, len(groups), b",".join(rows))
        for part, rows in enumerate(groups)
    ]


def _read(log: RecordLog, unit: Unit) -> LogRecord:
    return decode_log_record(log.record_at(unit[0], unit[1]))
