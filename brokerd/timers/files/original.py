"""What RocketMQ leaves of its timers in a directory: how far they were delivered (pure, but for reading files).

Its timer topic is in the log, and so are the timers that wait. Which of them were delivered only its own files say: the
checkpoint has the second up to which all slots were, and the offset of the queue up to which timers were put into slots. A
timer that was further ahead than its window was appended again meanwhile; the timer log says which, since their records are
marked to be appended again in a slot that has passed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import closing
from typing import Final, NamedTuple

import orjson

from brokerd.store.log.layout import parse_file_name
from brokerd.timers.codes import SLOT_MS
from brokerd.timers.files.layout import LOG_DIRECTORY, MAGIC_ROLL, RECORD, RECORD_BYTES
from brokerd.timers.files.page import PATH, complete_up_to, decode_page
from remoting.disk import Disk, SmallFiles
from remoting.errors import CorruptedFile

LEFT_PATH: Final = "config/takeover-timers"

_HEAD: Final = struct.Struct(">qqqq")  # lastReadTime, timerLogEnd, queueOffset, the master's queueOffset
_READ_BYTES: Final = 1260 * RECORD_BYTES
_MAGIC_BITS: Final = 0xF


class LeftTimers(NamedTuple):
    """What is in slots before `read_ms`, of the queue's entries before `queue_offset`, was delivered. `rolled` are the offsets in
    the commitlog of records that were appended again, in order.

    `own_end` is up to where of the commitlog the files were ours when RocketMQ opened them: what lies behind, RocketMQ put into
    slots itself, and not by what the entries of the queue say. `log_end` is where the log ended when it was opened next, -1 until
    then.
    """

    read_ms: int
    queue_offset: int
    own_end: int
    rolled: tuple[int, ...] = ()
    log_end: int = -1


def note_left(disk: Disk) -> None:
    """Keep what RocketMQ's files say, for the next master: they are about to be made again. Nothing happens without them."""
    left = read_left(disk)
    if left is not None:
        _write(disk, left)


class LeftNote:
    """What was kept, until it has been taken over."""

    def __init__(self, disk: SmallFiles) -> None:
        self._disk = disk

    def read(self, log_end: int) -> LeftTimers | None:
        """`log_end` is where the log ends at this start. Raises CorruptedFile."""
        content = self._disk.read_bytes(LEFT_PATH)
        if content is None:
            return None
        try:
            fields = orjson.loads(content)
            left = LeftTimers(**(fields | {"rolled": tuple(fields["rolled"])}))
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptedFile(
                f"{LEFT_PATH} cannot be read ({error}): it says which timers RocketMQ had delivered. Remove it to have all that "
                "are in the log delivered again"
            ) from error
        if left.log_end < 0:
            left = left._replace(log_end=log_end)
            _write(self._disk, left)
        return left

    def remove(self) -> None:
        self._disk.remove(LEFT_PATH)


def _write(disk: SmallFiles, left: LeftTimers) -> None:
    disk.replace_bytes(LEFT_PATH, orjson.dumps(left._asdict()))


def read_left(disk: Disk) -> LeftTimers | None:
    """What the files say; None when there are none, or they are ours."""
    page = disk.read_bytes(PATH)
    if page is None or len(page) < _HEAD.size or decode_page(page) is not None:
        return None
    read_ms, _, queue_offset, _ = _HEAD.unpack_from(page)
    if read_ms <= 0 or queue_offset < 0:
        return None
    return LeftTimers(read_ms, queue_offset, complete_up_to(page), tuple(sorted(_rolled(disk, read_ms))))


def _rolled(disk: Disk, read_ms: int) -> Iterator[int]:
    """The records of the timer log that were appended again before that time."""
    for name in sorted(disk.names(LOG_DIRECTORY)):
        if parse_file_name(name) is None:
            continue
        with closing(disk.open(f"{LOG_DIRECTORY}/{name}")) as segment:
            for start in range(0, segment.size_bytes, _READ_BYTES):
                block = segment.read(start, min(_READ_BYTES, segment.size_bytes - start))
                whole = len(block) - len(block) % RECORD_BYTES
                for size, _, magic, write_ms, delay_ms, physical_offset, *_ in RECORD.iter_unpack(block[:whole]):
                    if size != RECORD_BYTES or magic & ~_MAGIC_BITS:
                        break
                    if magic & MAGIC_ROLL and (write_ms + delay_ms) // SLOT_MS * SLOT_MS < read_ms:
                        yield physical_offset
                else:
                    continue
                break
