"""From log bytes to hashed keys, against the plain way of doing it."""

from __future__ import annotations

import ctypes
from array import array
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.store.index.hashing import KeyHasher, hash_alike, key_hash
from brokerd.store.index.native_postings import NativePostings
from brokerd.store.index.postings import WalkMemory, derive_postings, has_key, keys_of, postings_agree
from brokerd.store.index.runs import length_of_run, take_run
from remoting.java_hash import java_hash, java_hash_bits
from remoting.record import checksum
from remoting.record.codec import decode_record, encode_filler, encode_record
from remoting.record.layout import SYS_TRANSACTION_ROLLBACK
from remoting.record.properties import decode_properties
from remoting.record.walk import Stop
from tests.support.native_library import native_library
from tests.support.page_end import PageEnd

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


@given(st.data(), st.integers(1, 60), st.sampled_from([b"", b"A#", "名#".encode(), b"t" * 300]))
def test_keys_that_are_hashed_together_have_the_hashes_of_each(data: st.DataObject, length: int, prefix: bytes) -> None:
    places = [data.draw(st.sampled_from(["a", "0123456789abcdefXYZ", "z\x7f"])) for _ in range(length)]
    keys = data.draw(
        st.lists(st.tuples(*map(st.sampled_from, places)).map("".join), min_size=1, max_size=40), label="keys"
    )
    expected = [abs(reference_hash(prefix.decode() + key)) & 0x7FFFFFFF for key in keys]
    assert hash_alike(prefix, "".join(keys).encode(), length) == expected


def test_a_hash_without_absolute_value_is_0_among_others() -> None:
    assert hash_alike(b"polygenelubrican", b"tstt", 2) == [0, abs(reference_hash("polygenelubricantt"))]


@given(loose_properties)
def test_keys_are_what_the_decoded_properties_say(properties: str) -> None:
    decoded = decode_properties(properties.encode())
    words = [word for word in decoded.get("KEYS", "").split(" ") if word]
    unique = [decoded["UNIQ_KEY"]] if "UNIQ_KEY" in decoded else []
    found = [key.decode() for key in keys_of(properties.encode())]
    assert found == unique + words
    assert all(has_key(properties.encode(), key) for key in found)


def memory_of(in_c: bool) -> WalkMemory:
    return WalkMemory(native_library() if in_c else None)


@pytest.mark.parametrize("in_c", [False, True])
@given(records, st.integers(1, 400))
def test_walking_in_pieces_finds_every_key_of_every_record(
    in_c: bool, fields: list[dict[str, object]], piece: int
) -> None:
    log = b""
    expected: list[tuple[int, int, int]] = []
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
    memory, found, offset, wanted = memory_of(in_c), [], 0, piece
    while offset < FILE_BYTES:
        part = derive_postings(log[offset : offset + wanted], offset, FILE_BYTES, memory)
        assert part.stop is not Stop.DAMAGED
        found += zip(part.hashes, part.offsets, part.timestamps, strict=True)
        wanted = piece if part.end_offset > offset else max(part.needs, wanted + 1)
        offset = part.end_offset
    assert found == expected


def encode_all(fields: list[dict[str, Any]]) -> list[bytes]:
    """Records one behind the other, from the begin of a log; those that are `sealed` with checksums."""
    found: list[bytes] = []
    end = 0
    for fields_of_one in fields:
        each = dict(fields_of_one)
        sealed = each.pop("sealed", False)
        if sealed:
            each["properties"] = checksum.reserve(each["properties"])
        record = encode_record(queue_id=0, queue_offset=7, physical_offset=end, born_timestamp_ms=0, **each)
        found.append(checksum.seal(record) if sealed else record)
        end += len(record)
    return found


def alike(number: int, **changes: object) -> dict[str, Any]:
    """A record that differs from others of its kind in a number alone, in no length."""
    tag = changes.pop("tag", "x")
    return {
        "topic": b"TopicA",
        "properties": f"UNIQ_KEY\x01{'7F000001ABCD1234' + format(number, '08X')}\x02TAGS\x01{tag}\x02".encode(),
        "body": bytes(100),
        "sys_flag": 0,
        "born_host": V4,
        "store_host": V4,
        "store_timestamp_ms": 1_700_000_000_000 + number // 3,
        **changes,
    }


# Records of one size, of which some are not what the others are, each in another way
odd = st.sampled_from(
    [
        {},
        {"topic": b"TopicB"},
        {"topic": b"TopicAB", "body": bytes(99)},
        {"tag": "y"},
        {"tag": "xy", "body": bytes(99)},
        {"sys_flag": SYS_TRANSACTION_ROLLBACK},
        {"sys_flag": 1},
        {"store_host": V6, "sys_flag": 32, "body": bytes(88)},
        {"properties": b"UNIQ_KEY\x01" + b"?" * 24 + b"\x02TAGS\x01x\x02"},
        {"properties": b"UNIQ_KEY\x01" + b"a" * 23 + b"\x02TAGS\x01x\x02", "body": bytes(101)},
        {"properties": b"KEYS\x01" + b"a" * 28 + b"\x02TAGS\x01x\x02"},
        {"properties": b"KEYS\x01word\x02UNIQ_KEY\x01" + b"a" * 14 + b"\x02TAGS\x01x\x02"},
        {"topic": b"own", "properties": b"", "body": bytes(20)},
        {"body": bytes(140)},
        {"sealed": True, "body": bytes(80)},
        {"sealed": False, "properties": alike(1)["properties"] + b"__CRC32#\x01\x02KEYS\x01abcd\x02"},
        {"sealed": False, "properties": alike(1)["properties"] + b"__CRC32#\x010123456789\x03"},
        {"sealed": False, "properties": alike(1)["properties"] + b"__CRC32=\x010123456789\x02"},
    ]
)


@pytest.mark.parametrize("in_c", [False, True])
@given(
    st.lists(st.tuples(st.integers(1, 60), odd), min_size=1, max_size=6),
    st.sampled_from([1, 1 << 10, 1 << 17]),
    st.integers(0, 1 << 31),
    st.booleans(),
)
def test_records_that_look_alike_give_what_each_gives_alone(
    in_c: bool, parts: list[tuple[int, dict[str, object]]], step: int, number: int, sealed: bool
) -> None:
    fields = []
    for count, changes in parts:
        for _ in range(count):
            number = (number + step) & 0xFFFFFFFF
            fields.append(alike(number, **{"sealed": sealed, **changes}))
    expected, offset = [], 0
    for record in encode_all(fields):
        each = derive_postings(record, offset, FILE_BYTES * 16, WalkMemory())
        assert each.end_offset == offset + len(record)
        expected += zip(each.hashes, each.offsets, each.timestamps, strict=True)
        offset += len(record)
    log, memory, offset = b"".join(encode_all(fields)), memory_of(in_c), 0
    found: list[tuple[int, int, int]] = []
    while offset < len(log):
        part = derive_postings(log[offset : offset + 8000], offset, FILE_BYTES * 16, memory)
        assert part.stop is not Stop.DAMAGED
        found += zip(part.hashes, part.offsets, part.timestamps, strict=True)
        offset = part.end_offset
    assert found == expected


@pytest.mark.parametrize("sealed", [False, True])
def test_alike_records_are_taken_together_and_one_other_among_them_is_noticed(sealed: bool) -> None:
    records = encode_all([alike(number, sealed=sealed) for number in range(64)])
    log, size = b"".join(records), len(records[0])
    memory = WalkMemory()
    derive_postings(records[0], 0, FILE_BYTES, memory)
    assert memory.like is not None
    assert length_of_run(log, 0, memory.like) == (size, 64)
    for share in (False, True):
        run = take_run(log, 0, 0, size, 64, memory.like, share=share)
        assert run is not None
        assert run.hashes == [key_hash("TopicA", f"7F000001ABCD1234{number:08X}") for number in range(64)]
        assert list(run.timestamps) == [1_700_000_000_000 + number // 3 for number in range(64)]
    last = (20, 15, 12, 11, 5, 2, 1)  # of the tag, or of the checksum
    for at in (*range(8), 31, 39, 84, 87, *(size - each for each in last)):  # size, magic, position, flag, body length
        for number in (5, 63):
            damaged = bytearray(log)
            damaged[number * size + at] ^= 0x10
            assert take_run(bytes(damaged), 0, 0, size, 64, memory.like, share=False) is None, (number, at)


@pytest.mark.parametrize("in_c", [False, True])
@given(st.binary(max_size=400), st.integers(0, 1 << 20))
def test_no_bytes_make_it_raise(in_c: bool, data: bytes, offset: int) -> None:
    derive_postings(data, offset, FILE_BYTES, memory_of(in_c))


def test_in_c_as_many_keys_are_found_as_there_are() -> None:
    """Also those of a record that has more than one call has room for."""
    words = [" ".join(f"{each:x}" for each in range(count)) for count in (1500, 900, 6000, 2)]
    log = b"".join(encode_all([alike(1, properties=f"KEYS\x01{each}\x02".encode()) for each in words]))
    found, wanted = (derive_postings(log, 0, 1 << 20, memory_of(in_c)) for in_c in (True, False))
    assert found == wanted
    assert len(found.hashes) == 8402


def test_in_c_nothing_behind_the_records_is_looked_at() -> None:
    """They end where a page ends behind which nothing may be read: who does ends the process."""
    log, page, rng = b"".join(encode_all([alike(n, sealed=n % 2 > 0) for n in range(9)])), PageEnd(), Random(3)
    columns = [array("q", bytes(8 * 64)) for _ in range(3)]
    number, pointer = ctypes.c_int64, ctypes.c_void_p
    call = native_library().function("native_postings", number, pointer, *[number] * 3, *[pointer] * 3, number, pointer)
    for _ in range(2000):
        changed = bytearray(log)
        for _ in range(rng.choice((0, 1, 4))):
            changed[rng.randrange(len(log))] = rng.randrange(256)
        data = bytes(changed[: rng.randrange(1, len(log))])
        end = ctypes.c_int64(0)
        places = [each.buffer_info()[0] for each in columns]
        call(page.put(data), len(data), 0, 1 << 16, *places, 64, ctypes.addressof(end))
        assert 0 <= end.value <= len(data)


def test_the_check_at_load_finds_a_library_that_finds_others(monkeypatch: pytest.MonkeyPatch) -> None:
    library = native_library()
    assert postings_agree(library)
    take = NativePostings.take

    def other(self: NativePostings, *given: Any) -> int:
        end = take(self, *given)
        given[-1][0][:] = [each + 1 for each in given[-1][0]]
        return end

    monkeypatch.setattr(NativePostings, "take", other)
    assert not postings_agree(library)


@pytest.mark.parametrize("in_c", [False, True])
@given(records.filter(bool), st.data())
def test_damaged_records_end_the_walk_or_change_what_is_found_and_no_more(
    in_c: bool, fields: list[dict[str, object]], data: st.DataObject
) -> None:
    record = bytearray(
        encode_record(queue_id=0, queue_offset=0, physical_offset=0, born_timestamp_ms=0, **fields[0])  # type: ignore[arg-type]
    )
    record[data.draw(st.integers(0, len(record) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    derived = derive_postings(bytes(record), 0, FILE_BYTES, memory_of(in_c))
    assert derived == derive_postings(bytes(record), 0, FILE_BYTES, WalkMemory())
    assert 0 <= derived.end_offset <= len(record)
