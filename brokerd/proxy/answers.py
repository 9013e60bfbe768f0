"""The answers of a receive in C (`native/answers.c`); what is right, and what is not ordinary, is `received.answers_of`."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final

from brokerd.native.library import Library
from brokerd.pop.requests import PoppedMessage
from brokerd.proxy.digests import eight_digits
from brokerd.proxy.received import (
    GROUPED,
    MAX_GROWTH_BYTES,
    ORDINARY,
    RESERVED,
    SELDOM,
    SHARDING_KEY,
    Answered,
    Answers,
    answers_of,
    invisible_duration,
)
from remoting.record.checksum import reserve, seal
from remoting.record.codec import encode_record
from remoting.record.hosts import pack_host

_RESULTS: Final = 4  # of each message: begin and end of its answer, place and length of its tag in the record
_ROOM_BYTES: Final = 2048  # for an answer, more than its record takes; what needs more is laid out in Python


def answers_in_c(library: Library) -> Answers:
    """`answers_of` by the library."""
    call = library.function(
        "native_encode_answers",
        None,
        *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_char_p),
        *(ctypes.c_char_p,) * 6,
        *(ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p),
    )
    reserved, seldom = _listed(RESERVED), _listed(SELDOM - {SHARDING_KEY})

    def answers(
        messages: Sequence[PoppedMessage], label: bytes, invisible_time_ms: int, language: str
    ) -> list[Answered | None]:
        handles = "".join([each.receipt_handle for each in messages])
        full = eight_digits(language)
        if full is None or not messages or not handles.isascii():
            return answers_of(messages, label, invisible_time_ms, language)
        records = [each.record for each in messages]
        numbers = array(
            "q",
            [
                number
                for each in messages
                for number in (
                    *(len(each.record), len(each.receipt_handle)),
                    *(each.queue_id, each.queue_offset, each.delivery_attempt),
                )
            ],
        )
        duration = invisible_duration(invisible_time_ms)
        pieces = label, ORDINARY, GROUPED, duration, reserved, seldom
        lengths = array("q", map(len, pieces))
        capacity = sum(map(len, records)) + len(handles) + len(records) * (_ROOM_BYTES + len(label))
        out = bytearray(capacity)
        room = ctypes.c_char.from_buffer(out)
        results = array("q", bytes(8 * _RESULTS * len(records)))
        call(
            _pointers(len(records))(*records),
            numbers.buffer_info()[0],
            len(records),
            handles.encode(),
            *pieces,
            lengths.buffer_info()[0],
            full,
            ctypes.addressof(room),
            capacity,
            results.buffer_info()[0],
        )
        answered: list[Answered | None] = []
        growth = 0
        laid_out = memoryview(out)
        places = iter(results)
        for popped, begin, end, tag_at, tag_length in zip(messages, places, places, places, places, strict=True):
            if end:
                answered.append((popped.record[tag_at : tag_at + tag_length], bytes(laid_out[begin:end])))
                continue
            (answer,) = answers_of((popped,), label, invisible_time_ms, language)
            answered.append(answer)
            growth += len(answer[1]) - len(popped.record) if answer is not None else 0
            if growth > MAX_GROWTH_BYTES:
                break
        return answered

    return answers


def answers_agree(library: Library) -> bool:
    """Whether the library's answers are those of Python."""
    in_c = answers_in_c(library)
    messages = list(_examples())
    return all(
        in_c(messages, b"\x0a\x03\x12\x01T", 30_000, language)
        == answers_of(messages, b"\x0a\x03\x12\x01T", 30_000, language)
        for language in ("JAVA", "PYTHON", "HTTP")
    )


@cache
def _pointers(count: int) -> Any:
    """The type of so many pointers: to make one takes longer than a call."""
    return ctypes.c_char_p * count


def _listed(names: frozenset[bytes]) -> bytes:
    """The names, each behind its length."""
    return b"".join(bytes((len(name),)) + name for name in sorted(names))


def _examples() -> Iterator[PoppedMessage]:
    """Messages that C lays out, and some of those that it leaves."""
    id_ = b"UNIQ_KEY\x0101AB\x02"
    for properties in (
        id_,
        id_ + b"TAGS\x01a\x02KEYS\x01 k1  k2 \x02__BORNHOST\x01h\x02",
        id_
        + b"TAGS\x01a\x02TAGS\x01b\x02color\x01blue\x02WAIT\x01true\x02empty\x01\x02\x01x\x02x\x02size\x01"
        + b"9" * 300,
        id_ + b"color\x01blue\x02color\x01red\x02",
        id_ + b"".join(b"n%d\x01v\x02" % n for n in range(20)),
        id_ + b"__SHARDINGKEY\x01g\x02",
        id_ + b"__SHARDINGKEY\x01g\x02TRACE_CONTEXT\x01t\x02",
        b"TAGS\x01a\x02",
        "TAGS\x01ä\x02".encode(),
    ):
        for number, host in enumerate((pack_host("255.0.10.1", 65535), pack_host("::1", 1))):
            record = encode_record(
                topic=b"T",
                queue_id=1,
                queue_offset=2,
                physical_offset=3,
                body=bytes(range(17 * number)),
                properties=reserve(properties),
                born_timestamp_ms=1_763_600_000_000 - 5 * number,
                born_host=host,
                store_timestamp_ms=(1 << 62) * number,
                store_host=host,
            )
            for offset, attempt in ((0, 0), (127, 1), (128, 200), (1 << 40, 1 << 40)):
                yield PoppedMessage(seal(record), "T", 0, number * 300, offset, "h" * (126 + number), attempt)
