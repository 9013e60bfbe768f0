"""What the log says of units in queue files, for a start, which takes over those that it bears out (pure but for reads)."""

from __future__ import annotations

from brokerd.store.log.commitlog import CommitLog
from brokerd.store.log.derive import derive, derive_range, intact_record_at
from brokerd.store.queues.consume_queue import ConsumeQueue
from brokerd.store.unit import BLANK_SIZE
from remoting.record.layout import MAGIC_V1, MAGIC_V2, Field, heads

_CHUNK_BYTES = 1 << 20
_ONE_BIT = (
    0,
    *(1 << bit for bit in range(63)),
    -(1 << 63),
)  # what may be wrong with an offset; 0: it is its size that is
_PLACE = heads(Field.SIZE, Field.MAGIC, Field.PHYSICAL_OFFSET)[0].unpack_from
_PLACE_END = Field.PHYSICAL_OFFSET.at + Field.PHYSICAL_OFFSET.size


def lacks_begin(queue: ConsumeQueue, low: int, commitlog: CommitLog) -> bool:
    """Whether files with earlier units of the queue, whose units before `low` are right, were removed, and not by retention: that
    leaves the file with the first message that is in the log, so hardly ever is there one before it to look for."""
    if not 0 < queue.first_offset < low:
        return False
    place, size, _ = queue.unit(queue.first_offset)
    if size == BLANK_SIZE:
        return False
    return any(
        entry[:2] == (queue.topic, queue.queue_id) and entry[2] < queue.first_offset
        for derived in derive_range(commitlog.read, commitlog.min_offset, place, commitlog.shape, _CHUNK_BYTES)
        for entry in derived.entries
    )


def holds_bytes(units: bytes) -> bool:
    """Whether any byte is not zero; for thousands of queues at a start, so not byte by byte."""
    return units != bytes(len(units))


def matches_log(queue: ConsumeQueue, offset: int, commitlog: CommitLog, trusted: int) -> bool:
    """Whether the log has, before the trusted offset, the record that the unit names, as that message of that queue."""
    physical_offset, size, _ = queue.unit(offset)
    if size == BLANK_SIZE:
        return True
    if size <= 0 or physical_offset < 0 or physical_offset + size > trusted:
        return False
    if physical_offset < commitlog.min_offset:
        return True
    derived = derive(commitlog.read(physical_offset, size), physical_offset, commitlog.shape)
    expected = (queue.topic, queue.queue_id, offset, physical_offset, size)
    if len(derived.entries) == 1 and derived.entries[0][:5] == expected:
        return True
    return _is_damaged_there(commitlog, physical_offset, size)


def is_one_bit_off(queue: ConsumeQueue, offset: int, commitlog: CommitLog, trusted: int) -> bool:
    """Whether the log has, before the trusted offset, the message of that number, and the unit would name it with another bit."""
    physical_offset, size, _ = queue.unit(offset)
    if size <= 0 and not physical_offset:
        return False  # there is no unit
    for changed in _ONE_BIT:
        place = physical_offset ^ changed
        if not commitlog.min_offset <= place < trusted:
            continue
        record = commitlog.record_at(place)
        if record is not None and place + len(record) <= trusted:
            entries = derive(record, place, commitlog.shape).entries
            if len(entries) == 1 and entries[0][:4] == (queue.topic, queue.queue_id, offset, place):
                return True
    return False


def _is_damaged_there(commitlog: CommitLog, physical_offset: int, size: int) -> bool:
    """Whether a record of this place and size stands there that the disk has changed: whose it is it cannot say any more, but the
    unit does. One flip leaves two of the three as they were that are the same in no other record."""
    head = commitlog.read(physical_offset, _PLACE_END)
    if len(head) < _PLACE_END or intact_record_at(commitlog.read, physical_offset, commitlog.shape) is not None:
        return False
    found_size, magic, found_offset = _PLACE(head)
    return [found_size == size, magic in (MAGIC_V1, MAGIC_V2), found_offset == physical_offset].count(True) >= 2
