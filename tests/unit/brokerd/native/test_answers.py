"""Answers of receives in C are those of Python, whatever the records are, and nothing beside their bytes is looked at."""

from __future__ import annotations

from random import Random

import pytest
import zstandard

from brokerd.pop.requests import PoppedMessage
from brokerd.proxy import answers
from brokerd.proxy.answers import answers_agree, answers_in_c
from brokerd.proxy.received import RESERVED, answers_of
from remoting.record.checksum import reserve, seal
from remoting.record.codec import encode_record
from remoting.record.hosts import pack_host
from remoting.record.layout import SYS_COMPRESSED
from tests.support.native_library import native_library

LABEL = b"\x0a\x0a\x0a\x02ns\x12\x04Test"
HOSTS = (pack_host("10.0.0.1", 10911), pack_host("255.255.255.255", 65535), pack_host("fe80::1", 10911))
NAMES = (*sorted(RESERVED), b"color", b"n" * 90, b"a", b"\xff", "ä".encode(), b"UNIQ_KE", b"UNIQ_KEYS", b"")
VALUES = (b"", b"v", b"a b  c ", b" ", b"9" * 20, b"x" * 127, b"x" * 128, b"x" * 3000, b"\x01", b"\xc3", "ä".encode())


def properties_of(rng: Random) -> bytes:
    if rng.random() < 0.05:
        return rng.randbytes(rng.randrange(200))
    pairs = [(b"UNIQ_KEY", b"%032d" % rng.getrandbits(60))] if rng.random() < 0.9 else []
    if rng.random() < 0.5:
        pairs += [(b"TAGS", rng.choice(VALUES)), (b"KEYS", rng.choice(VALUES))]
    if rng.random() < 0.3:
        pairs.append((b"__SHARDINGKEY", rng.choice(VALUES)))
    if rng.random() < 0.3:
        pairs += [(rng.choice(NAMES), rng.choice(VALUES)) for _ in range(rng.randrange(5))]
    if rng.random() < 0.3:
        pairs += [(b"user%d" % n, rng.choice(VALUES[1:8])) for n in range(rng.randrange(20))]
    text = b"".join(name + b"\x01" + value + b"\x02" for name, value in pairs)[:32000]
    return text.removesuffix(b"\x02") if rng.random() < 0.2 else text


def message(rng: Random) -> PoppedMessage:
    properties, sealed = properties_of(rng), rng.random() < 0.7
    record = encode_record(
        topic=rng.choice((b"T", b"T" * 127, b"T" * 128, b"")),
        queue_id=rng.getrandbits(31),
        queue_offset=rng.getrandbits(62),
        physical_offset=rng.getrandbits(62),
        body=rng.randbytes(rng.choice((0, 1, 15, 64, 127, 128, 1500, 20_000))),
        properties=reserve(properties) if sealed else properties,
        born_timestamp_ms=rng.choice((-1, 0, 1_763_600_000_123, rng.getrandbits(62))),
        born_host=rng.choice(HOSTS[:2]) if rng.random() < 0.9 else HOSTS[2],
        store_timestamp_ms=rng.choice((0, 1_763_600_000_123, rng.getrandbits(62))),
        store_host=rng.choice(HOSTS[:2]) if rng.random() < 0.9 else HOSTS[2],
        sys_flag=rng.choice((0, 0, 0, 4, 8, 1)),
    )
    handle = rng.choice(("", "h", "h" * 127, "h" * 500, "1 1763600000000 30000 0 0 broker-a 3 17 4242"))
    return PoppedMessage(
        seal(record) if sealed else record,
        "T",
        0,
        rng.choice((0, 7, 127, 128, (1 << 31) - 1)),
        rng.choice((0, 127, 128, 1 << 14, 1 << 21, 1 << 28, 1 << 62)),
        handle,
        rng.choice((-1, 0, 1, 2, 127, 128, 1 << 40)),
    )


def damaged(rng: Random, popped: PoppedMessage) -> PoppedMessage:
    """Bits, lengths, or bytes that are gone."""
    record = bytearray(popped.record)
    match rng.randrange(4):
        case 0:
            record[rng.randrange(len(record))] ^= 1 << rng.randrange(8)
        case 1:  # what decides what is read: size, magic, flags, body's length, ports
            record[rng.choice((0, 3, 4, 7, 36, 39, 52, 68, 84, 85, 86, 87))] ^= 1 << rng.randrange(8)
        case 2:
            del record[rng.randrange(len(record)) :]
        case 3:
            record += b"more"
    return popped._replace(record=bytes(record))


@pytest.mark.parametrize("seed", range(20))
def test_answers_are_those_of_python(seed) -> None:
    in_c, rng = answers_in_c(native_library()), Random(seed)
    for _ in range(20):
        messages = [message(rng) for _ in range(rng.randrange(33))]
        if rng.random() < 0.5:
            messages = [damaged(rng, each) if rng.random() < 0.3 else each for each in messages]
        language, invisible_time_ms = rng.choice(("JAVA", "PYTHON", "HTTP")), rng.choice((0, 999, 30_000, 1 << 40))
        expected = answers_of(messages, LABEL, invisible_time_ms, language)
        assert in_c(messages, LABEL, invisible_time_ms, language) == expected


def test_crcs_with_leading_zeros_are_those_of_python() -> None:
    in_c, rng = answers_in_c(native_library()), Random(1)
    messages = [message(rng)._replace(record=record_with(b"UNIQ_KEY\x01a\x02", b"%d" % n)) for n in range(5000)]
    for language in ("JAVA", "CPP"):
        assert in_c(messages, LABEL, 1, language) == answers_of(messages, LABEL, 1, language)


def record_with(properties: bytes, body: bytes = b"body", sys_flag: int = 0) -> bytes:
    return encode_record(
        topic=b"T",
        queue_id=1,
        queue_offset=2,
        physical_offset=3,
        body=body,
        properties=properties,
        born_timestamp_ms=4,
        born_host=HOSTS[0],
        store_timestamp_ms=5,
        store_host=HOSTS[0],
        sys_flag=sys_flag,
    )


def test_bodies_that_grow_very_much_end_the_answers_of_both() -> None:
    bomb = record_with(b"UNIQ_KEY\x01a\x02", zstandard.compress(bytes(5 * 1024 * 1024)), SYS_COMPRESSED | 0x200)
    small = record_with(b"UNIQ_KEY\x01a\x02")
    messages = [message(Random(1))._replace(record=each) for each in (small, bomb, small, bomb, small, bomb)]
    for answers_in in (answers_in_c(native_library()), answers_of):
        assert len(answers_in(messages, LABEL, 1, "JAVA")) == 4
    assert len(answers_of([messages[1]] * 9, LABEL, 1, "JAVA")) == 2


def test_ordinary_messages_are_not_left_to_python(monkeypatch) -> None:
    in_c = answers_in_c(native_library())
    monkeypatch.setattr(answers, "answers_of", None)
    ordinary = (
        b"UNIQ_KEY\x01a\x02",
        b"KEYS\x01k\x02UNIQ_KEY\x01a\x02CLUSTER\x01c\x02WAIT\x01true\x02TAGS\x01t\x02",
        b"UNIQ_KEY\x01a\x02__SHARDINGKEY\x01group\x02",
        b"UNIQ_KEY\x01a\x02" + b"".join(b"user%d\x01%b\x02" % (n, b"v" * 100) for n in range(16)),
    )
    for body in (b"", b"body", bytes(1024), bytes(4 * 1024 * 1024)):
        messages = [PoppedMessage(record_with(each, body), "T", 0, 1, 2, "handle", 1) for each in ordinary]
        assert [tag for tag, _ in in_c(messages, LABEL, 1, "GO")] == [b"", b"t", b"", b""]


def test_the_check_at_load() -> None:
    assert answers_agree(native_library())
