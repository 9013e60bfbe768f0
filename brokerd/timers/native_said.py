"""`said.Saying` over `brokerd/native/timer_notes.c`."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable
from itertools import product
from typing import Final

from brokerd.native.library import Library
from brokerd.native.memory import Pinned
from brokerd.store.draft import Draft, encode_draft
from brokerd.store.unit import UNIT, UNIT_BYTES, Unit
from brokerd.timers.codes import MESSAGE, encode_code
from brokerd.timers.rolling import Wait
from brokerd.timers.rules import added_for
from brokerd.timers.said import MOST_TOPICS, NOTHING, ROW, Said, Saying, said_of
from remoting.disk import Bytes
from remoting.names import TIMER_TOPIC
from remoting.record.checksum import reserve, seal
from remoting.record.properties import encode_properties

# Has somebody look at bytes of the log, and where they begin in it, that have records of some units
LookAt = Callable[[bytes, Callable[[Bytes, int], Said]], Said]
_TOPIC_NUMBERS: Final = 2
HOST: Final = bytes((127, 0, 0, 1, 0, 0, 42, 159))
_STRANGE: Final = 4  # of the examples


class NativeSaying:
    """By the library."""

    def __init__(self, library: Library, read: Callable[[int, int], bytes], look_at: LookAt) -> None:
        """`read` gives some encoded units from a queue offset on, at most so many."""
        number, pointer = ctypes.c_int64, ctypes.c_void_p
        self._said = library.function(
            *("native_timer_said", number, pointer, number, number, ctypes.c_char_p, number, number, pointer, pointer),
            pointer,
        )
        self._read = read
        self._look_at = look_at
        self._topics = array("q", bytes(8 * _TOPIC_NUMBERS * MOST_TOPICS))
        self._topic_count = ctypes.c_int64()

    def __call__(self, first: int, count: int, least_ms: int) -> Said:
        units = self._read(first, count)
        if not units:
            return NOTHING
        return self._look_at(units, lambda source, begin: self._look(source, begin, units, least_ms))

    def _look(self, source: Bytes, begin: int, units: bytes, least_ms: int) -> Said:
        if not len(source):
            return NOTHING
        count = len(units) // UNIT_BYTES
        rows, topics = array("q", bytes(8 * ROW * count)), self._topics
        with Pinned(source) as content:
            found: int = self._said(
                *(content, len(source), begin, units, count, least_ms, rows.buffer_info()[0]),
                *(topics.buffer_info()[0], ctypes.addressof(self._topic_count)),
            )
        places = topics[: _TOPIC_NUMBERS * self._topic_count.value]
        names = [bytes(source[at : at + length]) for at, length in zip(places[::2], places[1::2], strict=True)]
        del rows[ROW * found :]
        return Said(rows, names)


def saying_for(library: Library | None, read: Callable[[int, int], bytes], look_at: LookAt) -> Saying | None:
    """None without a library: then each is looked at by who asks."""
    return None if library is None else NativeSaying(library, read, look_at)


def examples() -> tuple[list[bytes], list[Unit]]:
    """Records of timers as they are sent, of several topics, some with a leg or a checksum, one as none is; their units."""
    records: list[bytes] = []
    units: list[Unit] = []
    offset = 0
    for n, topic in enumerate(("A", "\u00e9", "A", "B", "A", "A")):
        leg_ms = 700_000 + n if n % 2 else None
        properties = b"UNIQ_KEY\x01K\x02" + encode_properties(added_for(Wait(800_000 + 999 * n, leg_ms), topic, n))
        if n == _STRANGE:
            properties = b"TIMER_LEG_MS\x015\x02" + properties
        draft = Draft(TIMER_TOPIC, 0, bytes(n), reserve(properties) if n % 3 else properties, 5, HOST)
        record = encode_draft(draft, n, offset, 1000 + n, HOST)
        records.append(seal(record) if n % 3 else record)
        units.append((offset, len(record), encode_code(800_000 + 999 * n if leg_ms is None else leg_ms, MESSAGE)))
        offset += len(record)
    return records, units


def said_agrees(library: Library) -> bool:
    """Whether the library says of records what Python says, and leaves the same."""
    records, units = examples()
    encoded, source = b"".join(UNIT.pack(*each) for each in units), b"".join(records)
    for first, least_ms, end in product(range(len(units)), (0, 700_001, 800_000), (len(source), len(source) - 1)):
        said = NativeSaying(
            library,
            lambda start, count: encoded[UNIT_BYTES * start : UNIT_BYTES * (start + count)],
            lambda _units, look, end=end: look(source[:end], 0),  # type: ignore[misc]
        )
        there = slice(first, sum(offset + size <= end for offset, size, _ in units))
        if said(first, len(units), least_ms) != said_of(records[there], units[there], least_ms):
            return False
    return True
