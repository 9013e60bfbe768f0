"""Rebuilding a table from the log: the last whole snapshot, then every later record in order.

A snapshot is a run of consecutive `snapshot` records, the parts {v, part, parts, rows, more}. A run whose last part is missing
(the master died while writing it) does not count. `more` are rows of kinds that came later, loaded after `rows`; it may be
missing, and brokers of releases before it pass over it. The entries of the consume queue tell the kinds apart by their tags
codes, so looking for the snapshot reads no record but the candidates.

A large snapshot is written in many turns of the loop, while other records of its topic are appended: its parts, the slices
{v, part, parts: 0, back, last, rows, more}, are not consecutive. `back` is how many records of the topic before it the first
slice lies; `last` is 1 in the last one. They say what was there before the first of them, so every record behind that one is
applied. Releases before these find no last part in them, and begin with the whole snapshot before, as long as its file is there.
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


class AddedRow(list[Any]):
    """A row of a snapshot that brokers of earlier releases do without."""


class Table(Protocol):
    """State that is changed by records only."""

    def clear(self) -> None: ...

    def apply(self, kind: str, body: Any, end_offset: int) -> None:
        """Carry out the record that ends at that physical offset. Raises CorruptedFile for a kind that is not known."""

    def snapshot_rows(self) -> Iterator[Any]:
        """The whole state as JSON values; an `AddedRow` comes after the rows that it adds to."""

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


class Position(NamedTuple):
    """How far a table follows its topic: the next queue offset, and the physical end of the last record applied."""

    next_unit: int
    applied_offset: int


class Snapshot(NamedTuple):
    """The place of its first unit, the units of its parts, and from which unit on records are applied behind it."""

    first: int
    parts: Sequence[Unit]
    behind: int

    @property
    def position(self) -> Position:
        """Where a table is that has read it."""
        physical_offset, size, _ = self.parts[self.behind - self.first - 1]
        return Position(self.behind, physical_offset + size)


def rebuild(log: RecordLog, topic: str, table: Table) -> Position:
    """Empty the table and fold the log into it.

    A log that begins later than its topic needs a snapshot; until one was dispatched, the table stays empty (`Journal.follow`).
    """
    table.clear()
    low, high = log.queue_range(topic, 0)
    found = find_snapshot(log, topic, low, high)
    if found is None and low > 0:
        return Position(0, 0)
    begin = _load(log, table, found) if found is not None else Position(low, 0)
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
    behind, end_offset = _load(log, table, found)
    return Position(high, apply_units(log, table, units[behind:], end_offset))


def _load(log: RecordLog, table: Table, snapshot: Snapshot) -> Position:
    """Fill the empty table; where what follows the snapshot begins."""
    for part in snapshot.parts:
        body = read_record(log, part).body
        for row in (*body["rows"], *body.get("more", ())):
            table.load_row(row)
    return snapshot.position


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
            record = read_record(log, unit)
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
    begun = high  # where a snapshot in slices begins whose last one is not there
    while end > least:
        start = max(least, end - _CHUNK)
        units = read_units(start, end - start)
        for index in range(len(units) - 1, -1, -1):
            if units[index][2] != _SNAPSHOT_CODE or start + index >= begun:
                continue
            body = read_record(log, units[index]).body
            if "back" in body:
                first = start + index - body["back"]
                if body.get("last") and first >= low:
                    return Snapshot(first, _slices(read_units, first, body["back"] + 1), first + 1)
                begun = first
                continue
            count = body["parts"]
            first = start + index - count + 1
            if body["part"] == count - 1 and first >= low:
                return Snapshot(first, read_units(first, count), first + count)
        end = start
    return None


def _slices(read_units: Callable[[int, int], Sequence[Unit]], first: int, count: int) -> list[Unit]:
    """Those of the snapshot that takes up so many units from the first one on, with other records between."""
    found: list[Unit] = []
    for start in range(first, first + count, _CHUNK):
        units = read_units(start, min(_CHUNK, first + count - start))
        found += [unit for unit in units if unit[2] == _SNAPSHOT_CODE]
    return found


def encode_snapshot(table: Table, part_bytes: int) -> list[bytes]:
    """The parts of a snapshot as record bodies, each of about `part_bytes` at most unless one row is longer."""
    groups: list[tuple[list[bytes], list[bytes]]] = [([], [])]
    size = 0
    for row in table.snapshot_rows():
        encoded = orjson.dumps(row)
        if size + len(encoded) > part_bytes and size:
            groups.append(([], []))
            size = 0
        groups[-1][isinstance(row, AddedRow)].append(encoded)
        size += len(encoded) + 1
    return [
        b'{"v":%d,"part":%d,"parts":%d,"rows":[%b]%b}' % (VERSION, part, len(groups), b",".join(rows), _more(added))
        for part, (rows, added) in enumerate(groups)
    ]


def _more(added: list[bytes]) -> bytes:
    return b',"more":[%b]' % b",".join(added) if added else b""


def read_record(log: RecordLog, unit: Unit) -> LogRecord:
    return decode_log_record(log.record_at(unit[0], unit[1]))
