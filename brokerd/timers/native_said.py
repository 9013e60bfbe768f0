"""`said.Reading` over `brokerd/native/said.c`."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from itertools import starmap
from typing import Final

from brokerd.delay.rules import REAL_TOPIC
from brokerd.native.library import Library
from brokerd.store.unit import UNIT, Unit
from brokerd.timers.codes import DEQUEUE_MS, DUE_MS, LEG_MS, MOVED, OUT_MS, PLACE
from brokerd.timers.said import COLUMNS, LEFT, PythonReading, Reading, Said
from remoting.names import TIMER_TOPIC
from remoting.record import checksum
from remoting.record.codec import encode_record
from remoting.record.hosts import pack_host

_TOPIC_NUMBERS: Final = 2


class _Said(ctypes.Structure):
    _fields_ = (
        ("content", ctypes.c_char_p),
        ("length", ctypes.c_int64),
        ("units", ctypes.c_char_p),
        ("count", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in COLUMNS),
        ("topics", ctypes.c_void_p),
        ("topics_count", ctypes.c_int64),
    )


class NativeReading:
    """By the library."""

    def __init__(self, library: Library) -> None:
        self._said = library.function("native_said", None, ctypes.c_void_p)

    def __call__(self, content: bytes, units: Sequence[Unit]) -> Said:
        said, topics = Said(len(units)), array("q", bytes(8 * _TOPIC_NUMBERS * len(units)))
        native = _Said(
            content=content,
            length=len(content),
            units=b"".join(starmap(UNIT.pack, units)),
            count=len(units),
            topics=topics.buffer_info()[0],
        )
        for name in COLUMNS:
            setattr(native, name, getattr(said, name).buffer_info()[0])
        self._said(ctypes.addressof(native))
        numbers = topics[: _TOPIC_NUMBERS * native.topics_count]
        said.topics = [content[at : at + length] for at, length in zip(numbers[::2], numbers[1::2], strict=True)]
        return said


def reading_for(library: Library | None) -> Reading:
    """In C where there is a library."""
    return PythonReading() if library is None else NativeReading(library)


def is_same(one: Said, other: Said) -> bool:
    """Whether both say the same, however they number topics."""
    return _rows(one) == _rows(other)


def _rows(said: Said) -> list[tuple[object, ...]]:
    rows = zip(*(getattr(said, name) for name in COLUMNS), strict=True)
    topics = dict(enumerate(said.topics))
    return [(topics.get(topic), *rest) if topic != LEFT else (LEFT,) for topic, *rest in rows]


def said_agrees(library: Library) -> bool:
    """Whether the library reads what Python does: each property there, missing, twice, and no number."""
    waits = f"{REAL_TOPIC}\x01Own\x02{OUT_MS}\x015000\x02{DUE_MS}\x015500\x02"
    more = [f"{name}\x01{value}\x02" for name in (LEG_MS, PLACE, MOVED, DEQUEUE_MS, DUE_MS) for value in ("7", "x", "")]
    records: list[bytes] = []
    for number, properties in enumerate((waits, "", waits[8:], *(waits + each for each in more))):
        record = encode_record(
            topic=TIMER_TOPIC.encode(),
            queue_id=0,
            queue_offset=number,
            physical_offset=100 * number,
            body=bytes(range(9)),
            properties=checksum.reserve(properties.encode()),
            born_timestamp_ms=3,
            born_host=pack_host("192.0.2.1", 10911),
            store_timestamp_ms=4000 + number,
            store_host=pack_host("192.0.2.1", 10911),
        )
        records.append(checksum.seal(record))
    units = [(100 * number, len(record), 0) for number, record in enumerate(records)]
    native, python = NativeReading(library), PythonReading()
    return all(is_same(native(content, units), python(content, units)) for content in (b"".join(records), records[0]))
