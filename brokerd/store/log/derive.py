"""From log bytes to what is derived from them: the one loop behind running dispatch, recovery and rebuilding (pure).

`derive` takes the records in a chunk of log bytes apart and returns an entry for each that belongs into a consume queue. It never
raises on any bytes: where no whole record starts, it stops and says why (`Stop`), and the caller, who knows what the bytes
should have been, decides. Prepared and rolled-back transaction records are walked over without an entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from brokerd.store.log.layout import file_start
from remoting.disk import Bytes
from remoting.errors import CorruptedFile, DamagedRange
from remoting.record.checksum import first_damaged, is_intact
from remoting.record.fields import measure
from remoting.record.layout import (
    BORDER,
    LENGTH_BYTES,
    SYS_TRANSACTION_MASK,
    SYS_TRANSACTION_PREPARED,
    SYS_TRANSACTION_ROLLBACK,
    SYS_V6_HOSTS,
    Field,
    heads,
)
from remoting.record.properties import tags_code
from remoting.record.walk import START_BYTES, Stop, look, walk

# topic, queue id, queue offset, physical offset, size, code, store timestamp, count. An entry stands for that many records
# of one size and code that lie one behind the other in the log and in the queue; its offsets are those of the first.
Entry = tuple[str, int, int, int, int, int, int, int]
# What makes the code of a topic's entries of (properties, store timestamp); for topics without a rule, the tags do.
CodeRule = Callable[[bytes, int], int]
CodeRules = Mapping[str, CodeRule]


@dataclass(frozen=True, slots=True)
class TwinRule:
    """A rule that the native library has, too: its function of that name takes (properties, their length, store timestamp)."""

    rule: CodeRule
    native_name: str

    def __call__(self, properties: bytes, store_timestamp_ms: int) -> int:
        return self.rule(properties, store_timestamp_ms)


NO_RULES: Final[CodeRules] = {}
_HEAD_V4: Final = heads(
    Field.SIZE,
    Field.MAGIC,
    Field.QUEUE_ID,
    Field.QUEUE_OFFSET,
    Field.SYS_FLAG,
    Field.STORE_TIMESTAMP,
    Field.BODY_LENGTH,
)[0].unpack_from
_STORE_TIMESTAMP: Final = heads(Field.STORE_TIMESTAMP)
_MANY_BYTES: Final = 4096  # less is sooner done here than told to C
_NO_QUEUE: Final = (SYS_TRANSACTION_PREPARED, SYS_TRANSACTION_ROLLBACK)


class Derived(NamedTuple):
    """What a chunk held. `end_offset` is where the next record or filler starts; `needs` is its size when the chunk ends inside
    it (0 when even that is unknown). `store_timestamp_ms` is that of the last record, -1 without one."""

    entries: Sequence[Entry]
    end_offset: int
    stop: Stop
    needs: int
    store_timestamp_ms: int


def first_damaged_of(data: Bytes, records: Sequence[int]) -> int | None:
    """Where the first of these whole records begins that is not what was stored; None when all are intact."""
    border_of = BORDER.unpack_from
    return first_damaged(data, records, [at + border_of(data, at)[0] for at in records])


class RecordShape(NamedTuple):
    """What bounds a record: its file's size and the largest size allowed. `check_content` also verifies checksums. `deriver` does
    what `derive` does, faster where there are many bytes."""

    file_size: int
    max_record_bytes: int
    check_content: bool = False
    deriver: Callable[[Bytes, int, RecordShape, CodeRules], Derived] | None = None

    def checked(self) -> RecordShape:
        return self._replace(check_content=True)


def derive(data: Bytes, physical_offset: int, shape: RecordShape, rules: CodeRules = NO_RULES) -> Derived:
    """Take apart the records in `data`, the log bytes that start at the record boundary `physical_offset`."""
    file_size, max_record_bytes, check_content, deriver = shape
    if deriver is not None and len(data) >= _MANY_BYTES:
        return deriver(data, physical_offset, shape, rules)
    records, end, stop, needs = walk(data, 0, physical_offset, file_size, max_record_bytes)
    damaged = first_damaged_of(data, records) if check_content else None
    entries: list[Entry] = []
    store_timestamp = -1
    for at in records:
        parsed = _parse(data, at, physical_offset + at, rules, check_content) if at != damaged else None
        if parsed is None:
            end, stop, needs = at, Stop.DAMAGED, 0
            break
        entry, sys_flag = parsed
        store_timestamp = entry[6]
        if sys_flag & SYS_TRANSACTION_MASK not in _NO_QUEUE:
            entries.append(entry)
    return Derived(entries, physical_offset + end, stop, needs, store_timestamp)


def _parse(
    data: Bytes, at: int, physical_offset: int, rules: CodeRules, check_content: bool
) -> tuple[Entry, int] | None:
    """The entry and sysFlag of the record at the position of the data and the offset of the log, or None when its parts do not
    add up; with `check_content` also when a part of it was never written."""
    size, magic, queue_id, queue_offset, sys_flag, timestamp, body_length = _HEAD_V4(data, at)
    end = at + size
    places = measure(data, at, end, magic, sys_flag, body_length)
    if places is None:
        return None
    _, _, topic_at, topic_end = places
    if hosts := sys_flag & SYS_V6_HOSTS:
        (timestamp,) = _STORE_TIMESTAMP[hosts].unpack_from(data, at)
    topic, properties = bytes(data[topic_at:topic_end]), bytes(data[topic_end + LENGTH_BYTES : end])
    if not topic:
        return None
    # Nothing else covers topic and properties of a record without a checksum over the whole, but a sector of zeros, which is what
    # a torn write leaves, gives itself away: no stored name or property holds a zero byte.
    if check_content and (b"\0" in topic or b"\0" in properties):
        return None
    name = _topic_name(topic)
    code = rules[name](properties, timestamp) if name in rules else tags_code(properties)
    return (name, queue_id, queue_offset, physical_offset, size, code, timestamp, 1), sys_flag


@lru_cache(maxsize=4096)
def _topic_name(topic: bytes) -> str:
    return str(topic, "utf-8", "surrogateescape")


def derive_range(
    read: Callable[[int, int], bytes],
    start: int,
    end: int,
    shape: RecordShape,
    chunk_bytes: int,
    rules: CodeRules = NO_RULES,
) -> Iterator[Derived]:
    """Derive from `[start, end)` of a log in chunks; ends after the first chunk that stopped at damage or at a cut record.

    `read(offset, length)` gives up to that many bytes and never crosses a file.
    """
    wanted = chunk_bytes
    while start < end:
        file_end = file_start(start, shape.file_size) + shape.file_size
        length = min(wanted, end - start, file_end - start)
        data = read(start, length)
        if not data:
            yield Derived([], start, Stop.PARTIAL, 0, -1)
            return
        derived = derive(data, start, shape, rules)
        more_to_read = len(data) == length and start + length < min(end, file_end)
        if derived.stop is Stop.PARTIAL and more_to_read:
            if derived.entries or derived.end_offset > start:
                yield derived._replace(stop=Stop.END)
            start, wanted = derived.end_offset, max(chunk_bytes, derived.needs)
            continue
        yield derived
        if derived.stop is not Stop.END:
            return
        start, wanted = derived.end_offset, chunk_bytes


def intact_record_at(
    read: Callable[[int, int], bytes], offset: int, shape: RecordShape, likely_bytes: int = START_BYTES
) -> bytes | None:
    """The whole record, its content checked, that starts at the offset of a log; None when none does. One that has the likely
    size is read at once."""
    data = read(offset, max(START_BYTES, min(likely_bytes, shape.max_record_bytes)))
    stop, size, is_record = look(data, 0, offset, shape.file_size, shape.max_record_bytes)
    if not is_record or stop is Stop.DAMAGED:
        return None
    if len(data) != size:
        data = read(offset, size)
    if len(data) != size or not is_intact(data):
        return None
    return data if _parse(data, 0, offset, NO_RULES, True) is not None else None


def not_as_appended(offset: int) -> CorruptedFile:
    """The error of a reader that finds damage where there had been a record."""
    return CorruptedFile(
        f"the commitlog has no record at offset {offset}, where one was appended; restart this broker, which checks its files",
        DamagedRange(offset, 0),
    )
