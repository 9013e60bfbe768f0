"""From log bytes to hashed keys, against the plain way of doing it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brokerd.store.dispatch import Stop
from brokerd.store.index.postings import KeyHasher, Posting, derive_postings, has_key, key_hash, keys_of
from brokerd.store.layout import encode_filler
from remoting.message import (
    SYS_TRANSACTION_ROLLBACK,
    decode_properties,
    decode_record,
    encode_record,
    java_hash,
    java_hash_bits,
)

V4, V6 = bytes(8), bytes(20)
FILE_BYTES = 1 << 16

# Names and values that contain one another, and separators where none belongs
pieces = st.sampled_from(["UNIQ_KEY", "KEYS", "XKEYS", "KEY", "\x01", "\x02", "a", "B7", " ", "é", ""])
loose_properties = st.lists(pieces, max_size=14).map("".join)
unique_ids = st.integers(0, 1 << 20).map(lambda n: f"7F000001ABCD1234567800000000{n:05X}")
tidy_properties = st.builds(
    lambda unique, words, tag: f"UNIQ_KEY\x01{unique}\x02KEYS\x01{words}\x02TAGS\x01{tag}\x02".replace(
        "KEYS\x01\x02", ""
    ),
    unique_ids,
    st.sampled_from(["", "", "", "k", "k l", "schlüssel 名"]),
    st.sampled_from("xy"),
)
records = st.lists(
    st.fixed_dictionaries(
        {
            "topic": st.sampled_from([b"TopicA", b"B", "名".encode(), b"t" * 200]),
            "properties": (tidy_properties | loose_properties).map(str.encode),
            "body": st.integers(1, 300).map(bytes),
            "sys_flag": st.sampled_from([0, 0, 0, SYS_TRANSACTION_ROLLBACK, 4, 8, 1]),
            "born_host": st.sampled_from([V4, V4, V4, V6]),
            "store_host": st.sampled_from([V4, V4, V4, V6]),
            "store_timestamp_ms": st.integers(0, 1 << 41),
        }
    ),
    max_size=30,
)


def reference_hash(text: str) -> int:
    """String.hashCode, unit by unit."""
    value = 0
    for unit in memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H"):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - 0x100000000 if value & 0x80000000 else value


@given(st.text(max_size=40) | st.text(min_size=200, max_size=700) | st.text("ab\U0001f600\ud800", max_size=9))
def test_hashes_are_those_of_java(text: str) -> None:
    assert java_hash(text) == reference_hash(text)
    if "\ud800" not in text:
        assert (
            java_hash_bits(text.encode("utf-8", "replace")) & 0xFFFFFFFF
            == reference_hash(text.encode("utf-8", "replace").decode()) & 0xFFFFFFFF
        )


def test_known_hashes() -> None:
    assert java_hash("TopicA#k1") == -1903240649
    assert key_hash("TopicA", "k1") == 1903240649
    assert java_hash("polygenelubricants") == -(1 << 31)
    assert key_hash("", "") == 35


@given(
    st.lists(st.tuples(st.sampled_from([b"A", b"B", "名".encode()]), unique_ids | st.text(max_size=40)), max_size=40)
)
def test_remembered_parts_change_no_hash(keys: list[tuple[bytes, str]]) -> None:
    hasher = KeyHasher()
    for topic, key in keys:
        encoded = key.encode("utf-8", "replace")
        expected = abs(reference_hash(f"{topic.decode()}#{encoded.decode()}")) & 0x7FFFFFFF
        assert hasher.of_topic(topic)(encoded) == expected
        assert key_hash(topic.decode(), encoded.decode()) == expected


@given(loose_properties)
def test_keys_are_what_the_decoded_properties_say(properties: str) -> None:
    decoded = decode_properties(properties.encode())
    words = [word for word in decoded.get("KEYS", "").split(" ") if word]
    unique = [decoded["UNIQ_KEY"]] if "UNIQ_KEY" in decoded else []
    found = [key.decode() for key in keys_of(properties.encode())]
    assert found == unique + words
    assert all(has_key(properties.encode(), key) for key in found)


@given(records, st.integers(1, 400))
def test_walking_in_pieces_finds_every_key_of_every_record(fields: list[dict[str, object]], piece: int) -> None:
    log = b""
    expected: list[Posting] = []
    for number, each in enumerate(fields):
        record = encode_record(  # type: ignore[arg-type]
            queue_id=0, queue_offset=number, physical_offset=len(log), born_timestamp_ms=0, **each
        )
        decoded = decode_record(record)
        if each["sys_flag"] != SYS_TRANSACTION_ROLLBACK:
            expected += [
                (key_hash(decoded.topic, key.decode()), len(log), decoded.store_timestamp_ms)
                for key in keys_of(decoded.properties)
            ]
        log += record
    log += encode_filler(FILE_BYTES - len(log)) + bytes(FILE_BYTES - len(log) - 8)
    hasher, found, offset, wanted = KeyHasher(), [], 0, piece
    while offset < FILE_BYTES:
        part = derive_postings(log[offset : offset + wanted], offset, FILE_BYTES, hasher)
        assert part.stop is not Stop.DAMAGED
        found += part.postings
        wanted = piece if part.end_offset > offset else max(part.needs, wanted + 1)
        offset = part.end_offset
    assert found == expected


@given(st.binary(max_size=400), st.integers(0, 1 << 20))
def test_no_bytes_make_it_raise(data: bytes, offset: int) -> None:
    derive_postings(data, offset, FILE_BYTES, KeyHasher())


@given(records.filter(bool), st.data())
def test_damaged_records_end_the_walk_or_change_what_is_found_and_no_more(
    fields: list[dict[str, object]], data: st.DataObject
) -> None:
    record = bytearray(
        encode_record(queue_id=0, queue_offset=0, physical_offset=0, born_timestamp_ms=0, **fields[0])  # type: ignore[arg-type]
    )
    record[data.draw(st.integers(0, len(record) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    derived = derive_postings(bytes(record), 0, FILE_BYTES, KeyHasher())
    assert 0 <= derived.end_offset <= len(record)
