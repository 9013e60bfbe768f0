"""What C reads of timers' records is what Python reads, whatever these are; nothing beside is looked at."""

from __future__ import annotations

from random import Random
from unittest.mock import patch

import pytest

from brokerd.native.library import Library
from brokerd.store.unit import Unit
from brokerd.timers.native_said import NativeReading, _Said, is_same, said_agrees
from brokerd.timers.said import LEFT, PythonReading
from remoting.names import TIMER_TOPIC
from remoting.record import checksum
from remoting.record.codec import encode_record
from remoting.record.hosts import pack_host
from tests.support.native_library import native_library
from tests.support.page_end import PageEnd

NAMES = (
    *(b"REAL_TOPIC", b"TIMER_DUE_MS", b"TIMER_OUT_MS", b"TIMER_LEG_MS", b"TIMER_PLACE", b"TIMER_MOVED"),
    *(b"TIMER_DEQUEUE_MS", b"REAL_QID", b"T", b"", b"TIMER_DUE_M", b"xTIMER_DUE_MS", b"UNIQ_KEY"),
)
NUMBERS = (b"0", b"7", b"0099", b"1700000000123", b"9999999999999999", b"99999999999999999")
VALUES = (*NUMBERS, *NUMBERS, b"-1", b"x", b"", b"5\x01", b"\xd9\xa3", b"\xff", b"\0", b"5 ")
SEPARATORS = (*(b"\x02",) * 9, b"\x02\x02", b"", b"\x01")
HOSTS = (pack_host("192.0.2.1", 1), pack_host("2001:db8::1", 1))


def properties_of(rng: Random) -> bytes:
    waits = b"".join(
        name + b"\x01" + rng.choice(NUMBERS) + b"\x02"
        for name in (b"REAL_TOPIC", b"TIMER_OUT_MS", b"TIMER_DUE_MS")
        if rng.random() < 0.95
    )
    more = b"".join(
        rng.choice(NAMES) + rng.choice((*(b"\x01",) * 9, b"")) + rng.choice(VALUES) + rng.choice(SEPARATORS)
        for _ in range(rng.choice((0, 0, 1, 2, 4)))
    )
    return more + waits if rng.random() < 0.5 else waits + more


def log_of(rng: Random, count: int) -> tuple[bytes, list[Unit]]:
    """Records one behind the other, as they were stored but for a byte or two, and entries for them."""
    records: list[bytes] = []
    for number in range(count):
        properties, is_sealed = properties_of(rng), rng.random() < 0.7
        record = encode_record(
            topic=rng.choice((TIMER_TOPIC.encode(), TIMER_TOPIC.encode(), b"", b"a\0b", b"t" * 200)),
            queue_id=0,
            queue_offset=number,
            physical_offset=1000 * number,
            body=rng.randbytes(rng.choice((0, 1, 40))),
            properties=checksum.reserve(properties) if is_sealed else properties,
            born_timestamp_ms=3,
            born_host=rng.choice(HOSTS),
            store_timestamp_ms=1_700_000_000_000 + number,
            store_host=rng.choice(HOSTS),
        )
        records.append(checksum.seal(record) if is_sealed else record)
    units = [(1000 * number, len(record), 0) for number, record in enumerate(records)]
    content = bytearray(b"".join(records))
    if content and rng.random() < 0.3:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    if units and rng.random() < 0.2:
        at = rng.randrange(len(units))
        units[at] = (units[at][0] + rng.choice((0, 1)), rng.choice((-1, 0, 1, 90, 91, 100, 1 << 30)), 0)
    return bytes(content[: rng.choice((len(content), rng.randrange(len(content) + 1)))]), units


@pytest.mark.parametrize("seed", range(6))
def test_both_read_the_same(seed: int) -> None:
    rng, native, python, known = Random(seed), NativeReading(native_library()), PythonReading(), 0
    for _ in range(400):
        content, units = log_of(rng, rng.choice((0, 1, 2, 30)))
        found, wanted = native(content, units), python(content, units)
        assert is_same(found, wanted), (content, units)
        known += sum(topic != LEFT for topic in wanted.topic)
    assert known > 200


def test_nothing_is_read_behind_the_content() -> None:
    """It ends where a page ends behind which nothing may be read: who does ends the process."""
    rng, page, native, python = Random(7), PageEnd(), NativeReading(native_library()), PythonReading()
    for _ in range(300):
        content, units = log_of(rng, rng.choice((1, 3)))
        with patch.object(_Said, "__init__", _at(page)):
            found = native(content, units)
        assert is_same(found, python(content, units))


def _at(page: PageEnd):  # type: ignore[no-untyped-def]
    begin = _Said.__init__

    def moved(self: _Said, content: bytes, **more: object) -> None:
        begin(self, content=page.put(content), **more)

    return moved


def test_many_topics_are_told_apart() -> None:
    rng, records = Random(1), []
    for number in range(200):
        properties = b"REAL_TOPIC\x01t%d\x02TIMER_OUT_MS\x010\x02TIMER_DUE_MS\x019\x02" % rng.randrange(50)
        records.append(
            encode_record(
                topic=TIMER_TOPIC.encode(),
                queue_id=0,
                queue_offset=number,
                physical_offset=1000 * number,
                body=b"",
                properties=properties,
                born_timestamp_ms=3,
                born_host=HOSTS[0],
                store_timestamp_ms=4,
                store_host=HOSTS[0],
            )
        )
    units = [(1000 * number, len(record), 0) for number, record in enumerate(records)]
    found = NativeReading(native_library())(b"".join(records), units)
    assert LEFT not in found.topic
    assert is_same(found, PythonReading()(b"".join(records), units))


def test_the_check_at_load_finds_a_library_that_reads_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    library = native_library()
    assert said_agrees(library)
    monkeypatch.setattr(Library, "function", lambda *_: lambda _: None)
    assert not said_agrees(library)
