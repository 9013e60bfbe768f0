from __future__ import annotations

import zlib
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerd.store.derived.derive import Entry, derive, derive_range
from brokerd.store.log.layout import must_roll
from remoting.record.codec import encode_filler, encode_record
from remoting.record.properties import encode_properties, tags_code
from remoting.record.walk import Stop
from tests.unit.brokerd.store.stores import BORN_HOST, SEGMENT_BYTES, SHAPE, STORE_HOST

V6_HOST = bytes(15) + b"\1\0\0\x2a\x9f"


def record(offset: int, **fields: object) -> bytes:
    return encode_record(
        **{
            "topic": b"TopicA",
            "queue_id": 3,
            "queue_offset": 42,
            "physical_offset": offset,
            "body": b"hello",
            "properties": encode_properties({"TAGS": "tagA"}),
            "born_timestamp_ms": 1_700_000_000_000,
            "born_host": BORN_HOST,
            "store_timestamp_ms": 1_700_000_000_123,
            "store_host": STORE_HOST,
            **fields,
        }  # type: ignore[arg-type]
    )


def test_the_golden_record_gives_the_golden_entry() -> None:
    # The record and its tags code as the original writes them.
    data = bytes.fromhex(
        "00000087daa320a73610a6860000000300000007000000000000002a0000000000001000000000000000018bcfe568000a00000100009c40"
        "0000018bcfe5687b0a00000200002a9f0000000000000000000000000000000568656c6c6f06546f706963410021554e49515f4b45590155"
        "3102544147530174616741024b455953016b31206b3202"
    )
    derived = derive(data, 4096, SHAPE.checked())
    assert derived.entries == [("TopicA", 3, 42, 4096, 135, 3552231, 1_700_000_000_123, 1)]
    assert derived.end_offset == 4096 + 135
    assert derived.stop is Stop.END
    assert derived.store_timestamp_ms == 1_700_000_000_123


@pytest.mark.parametrize("born_host", [BORN_HOST, V6_HOST])
@pytest.mark.parametrize("store_host", [STORE_HOST, V6_HOST])
@pytest.mark.parametrize("topic", ["T", "%RETRY%" + "g" * 200, "Thema-ü"])
@pytest.mark.parametrize("properties", [b"", encode_properties({"TAGS": "a"}), b"P\1" + b"v" * 3000 + b"\2"])
def test_every_shape_of_record_gives_its_entry(
    born_host: bytes, store_host: bytes, topic: str, properties: bytes
) -> None:
    for body in (b"", b"x" * 200):
        data = record(
            0, topic=topic.encode(), born_host=born_host, store_host=store_host, properties=properties, body=body
        )
        derived = derive(data, 0, SHAPE.checked())
        assert derived.entries == [(topic, 3, 42, 0, len(data), tags_code(properties), 1_700_000_000_123, 1)]
        assert derived.stop is Stop.END


@pytest.mark.parametrize(("sys_flag", "indexed"), [(0, True), (4, False), (8, True), (12, False), (1, True)])
def test_prepared_and_rolled_back_messages_enter_no_queue(sys_flag: int, indexed: bool) -> None:
    data = record(0, sys_flag=sys_flag)
    derived = derive(data, 0, SHAPE)
    assert len(derived.entries) == indexed
    assert derived.end_offset == len(data)
    assert derived.store_timestamp_ms == 1_700_000_000_123


def test_a_filler_leads_to_the_next_file_when_all_of_it_is_there() -> None:
    data = record(0)
    remaining = SEGMENT_BYTES - len(data)
    tail = encode_filler(remaining).ljust(remaining, b"\0")
    whole = derive(data + tail, 0, SHAPE)
    assert (whole.end_offset, whole.stop) == (SEGMENT_BYTES, Stop.END)
    for length in (1, 7, 8, remaining - 1):
        cut = derive(data + tail[:length], 0, SHAPE)
        assert (cut.end_offset, cut.stop, cut.needs) == (len(data), Stop.PARTIAL, remaining if length >= 8 else 0)
    wrong = encode_filler(SEGMENT_BYTES - len(data) - 1)
    assert derive(data + wrong, 0, SHAPE).stop is Stop.DAMAGED


def test_a_record_that_is_not_all_there_is_partial_and_says_its_size() -> None:
    data = record(0)
    for length in range(1, len(data)):
        derived = derive(data[:length], 0, SHAPE)
        assert (derived.entries, derived.end_offset, derived.stop) == ([], 0, Stop.PARTIAL)
        assert derived.needs == (len(data) if length >= 8 else 0)


@pytest.mark.parametrize(
    ("position", "content"),
    [
        (0, b"\0\0\0\0"),  # size zero
        (0, b"\x80\0\0\0"),  # size negative
        (0, b"\0\0\0\x5a"),  # smaller than any record
        (0, b"\0\0\x0f\xf9"),  # does not fit into the file with its filler
        (4, b"\xda\xa3\x20\xa8"),  # magic
        (28, b"\0\0\0\0\0\0\0\1"),  # another place in the log
        (36, b"\0\0\0\x30"),  # longer hosts than there are
        (84, b"\xff\xff\xff\xff"),  # body length negative
        (84, b"\x7f\xff\xff\xff"),  # body length beyond the record
        (93, b"\0"),  # no topic
        (93, b"\xff"),  # topic beyond the record
        (100, b"\xff\xff"),  # properties length negative
        (100, b"\x00\x01"),  # properties shorter than what is there
    ],
)
def test_a_record_whose_parts_do_not_fit_is_damaged(position: int, content: bytes) -> None:
    good = record(0)
    following = record(len(good))
    bad = good[:position] + content + good[position + len(content) :]
    derived = derive(bad + following + bytes(SEGMENT_BYTES), 0, SHAPE)
    assert (derived.entries, derived.end_offset, derived.stop) == ([], 0, Stop.DAMAGED)


def test_a_rule_makes_the_codes_of_its_topic() -> None:
    properties = encode_properties({"TAGS": "tagA"})
    rules = {"TopicA": lambda given, stored_ms: stored_ms + len(given)}
    ((*_, code, stored_ms, _),) = derive(record(0), 0, SHAPE, rules).entries
    assert code == stored_ms + len(properties)
    ((*_, code, _, _),) = derive(record(0, topic=b"TopicB"), 0, SHAPE, rules).entries
    assert code == tags_code(properties)


def test_content_is_checked_only_when_asked() -> None:
    good = record(0)
    for position in (8, 90):  # the checksum, the body
        bad = good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :]
        assert derive(bad, 0, SHAPE).stop is Stop.END
        assert derive(bad, 0, SHAPE.checked()).stop is Stop.DAMAGED


def test_a_checksum_of_zero_is_a_checksum() -> None:
    assert derive(record(0, body=b""), 0, SHAPE.checked()).stop is Stop.END


def test_zeros_of_a_torn_sector_in_topic_or_properties_are_seen() -> None:
    good = record(0)
    for position in (94, len(good) - 3):
        bad = good[:position] + b"\0" + good[position + 1 :]
        assert derive(bad, 0, SHAPE.checked()).stop is Stop.DAMAGED


def test_a_checksum_over_the_whole_record_is_verified_where_there_is_one() -> None:
    # The tail that the original appends: least significant digit first, over everything before it.
    data = bytearray(record(0, properties=b"A\1b\2" + b"__CRC32#\1" + b"0" * 10 + b"\2"))
    crc = zlib.crc32(data[:-20]) & 0x7FFFFFFF
    data[-11:-1] = str(crc).encode()[::-1].ljust(10, b"0")
    assert derive(bytes(data), 0, SHAPE.checked()).stop is Stop.END
    data[20] ^= 1  # a bit of the queue offset, which nothing else covers
    assert derive(bytes(data), 0, SHAPE.checked()).stop is Stop.DAMAGED


def test_the_golden_whole_record_checksum() -> None:
    properties = b"UNIQ_KEY\1U1\2TAGS\1tagA\2KEYS\1k1 k2\2__CRC32#\0015205287520\2"
    data = record(4096, flag=7, properties=properties)
    assert len(data) == 155
    assert derive(data, 4096, SHAPE.checked()).stop is Stop.END


def make_log(rng: Random, count: int) -> tuple[bytes, list[Entry]]:
    """A log of random records over several files, and what belongs into its queues."""
    log = bytearray()
    entries: list[Entry] = []
    for number in range(count):
        properties = encode_properties({"TAGS": rng.choice(["", "a", "b"]), "K": "v" * rng.randrange(50)})
        sys_flag = rng.choice([0, 0, 0, 4, 8, 12])
        fields = {
            "body": rng.randbytes(rng.choice([0, 10, 300, 1500])),
            "properties": properties,
            "queue_offset": number,
            "sys_flag": sys_flag,
            "born_host": rng.choice([BORN_HOST, V6_HOST]),
        }
        remaining = SEGMENT_BYTES - len(log) % SEGMENT_BYTES
        data = record(len(log), **fields)
        if must_roll(len(data), remaining):
            log += encode_filler(remaining).ljust(remaining, b"\0")
            data = record(len(log), **fields)
        if sys_flag in (0, 8):
            entries.append(("TopicA", 3, number, len(log), len(data), tags_code(properties), 1_700_000_000_123, 1))
        log += data
    return bytes(log), entries


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 40), st.integers(8, 6000))
def test_walking_in_chunks_of_any_size_visits_every_record_once(seed: int, count: int, chunk: int) -> None:
    log, entries = make_log(Random(seed), count)

    def read(offset: int, length: int) -> bytes:
        file_end = (offset // SEGMENT_BYTES + 1) * SEGMENT_BYTES
        return log[offset : min(offset + length, file_end)]

    found: list[Entry] = []
    end = 0
    for derived in derive_range(read, 0, len(log), SHAPE.checked(), chunk):
        found += derived.entries
        end = derived.end_offset
        assert derived.stop is Stop.END
    assert found == entries
    assert end == len(log)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1000), st.integers(0, 20_000), st.integers(0, 7))
def test_a_flipped_bit_never_raises_and_hides_nothing_before_it(seed: int, at: int, bit: int) -> None:
    log, entries = make_log(Random(seed), 15)
    at %= len(log)
    rotten = bytearray(log)
    rotten[at] ^= 1 << bit
    derived = derive(bytes(rotten), 0, SHAPE.checked())
    before = [entry for entry in entries if entry[3] + entry[4] <= at]
    assert derived.entries[: len(before)] == before


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_no_bytes_make_it_raise(data: bytes) -> None:
    magic = b"\0\0\0\x80\xda\xa3\x20\xa7" + data
    for content in (data, magic, magic.ljust(128, b"\0")):
        for shape in (SHAPE, SHAPE.checked()):
            derived = derive(content, 0, shape)
            assert 0 <= derived.end_offset <= max(len(content), SEGMENT_BYTES)
