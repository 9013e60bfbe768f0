"""Checks of records in C find what those in Python find, whatever the bytes are, and look at nothing beside them."""

from __future__ import annotations

import ctypes
import mmap
from array import array
from random import Random

import pytest

from brokerd.native.library import Library
from brokerd.store.log.derive import first_damaged_of
from brokerd.store.log.record_checks import (
    first_astray,
    first_astray_in_c,
    first_bad,
    first_bad_in_c,
    first_damaged_in_c,
    reads_agree,
)
from brokerd.store.unit import UNIT, Unit
from remoting.checksum import crc32
from remoting.record.checksum import TAIL_BYTES, reserve, seal, tail_of
from remoting.record.codec import encode_record
from remoting.record.hosts import pack_host
from tests.support.native_library import native_library

HOSTS = (pack_host("10.0.0.1", 10911), pack_host("fe80::1", 10911))
TAILS = (b"", b"a\x01b\x02", b"a\x01b", b"a\x01b\x02" * 50, b"x" * 8 + b"\x01" + b"0123456789\x02", b"1234567890\x02")


def stored(rng: Random, count: int) -> tuple[bytes, list[Unit]]:
    """Records as a log may have them, and their units."""
    content, units, offset = b"", [], rng.choice((0, 1 << 31, 1 << 40))
    for _ in range(count):
        properties, sealed = rng.choice(TAILS), rng.random() < 0.6
        record = encode_record(
            topic=rng.choice((b"", b"T", b"T" * 90, b"T" * 127, b"T" * 128, b"%RETRY%" + b"g" * 240)),
            queue_id=rng.getrandbits(31),
            queue_offset=rng.getrandbits(62),
            physical_offset=offset,
            body=rng.randbytes(rng.choice((0, 1, 15, 64, 200, 1500))),
            properties=reserve(properties) if sealed else properties,
            born_timestamp_ms=rng.getrandbits(41),
            born_host=rng.choice(HOSTS),
            store_timestamp_ms=rng.getrandbits(41),
            store_host=rng.choice(HOSTS),
            sys_flag=rng.choice((0, 1, 4, 0x101)),
        )
        content += seal(record) if sealed else record
        units.append((offset, len(record), rng.getrandbits(32)))
        offset += len(record) + rng.choice((0, 0, 300))
    return content, units


def changed(rng: Random, content: bytes, units: list[Unit]) -> tuple[bytes, list[Unit]]:
    """Damage of some kind: bits, lengths, a tail by its own rule, bytes that are gone, units that name something else."""
    damaged = bytearray(content)
    begins = [sum(size for _, size, _ in units[:number]) for number in range(len(units))]
    number = rng.randrange(len(units))
    begin, size = begins[number], units[number][1]
    match rng.randrange(9):
        case 0 | 1:
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        case 2:  # size, magic, checksum, flags, body's length: what decides what is read
            places = (0, 3, 4, 7, 8, 11, 36, 39, 84, 87, 96, 99, 108, 111)
            damaged[begin + rng.choice([place for place in places if place < size])] = rng.randrange(256)
        case 3:
            at = begin + 84
            damaged[at : at + 4] = rng.choice((-1, -(1 << 31), (1 << 31) - 1, size, size - 88)).to_bytes(
                4, "big", signed=True
            )
        case 4:
            at = begin + size - rng.randrange(1, min(size, 60))
            damaged[at] = rng.choice((0, 1, 2, 0x30, 0x39, 0x7F, 0x80, 0xFF))
        case 5:
            covered = bytes(damaged[begin : begin + size - TAIL_BYTES])
            damaged[begin + size - TAIL_BYTES : begin + size] = (
                bytes((rng.choice((0x5F, 0x5E)),)) + tail_of(crc32(covered))[1:]
            )
        case 6:
            del damaged[rng.randrange(len(damaged)) :]
        case 7:  # a tail that lost its name, in a few bytes of it, and something else
            name_at = begin + size - TAIL_BYTES
            for at in rng.sample(range(9), rng.randrange(1, 7)):
                damaged[name_at + at] ^= 1 << rng.randrange(8)
            damaged[begin + rng.choice((12, 16, 40, size - 3))] ^= 1 << rng.randrange(3)
        case _:
            offset, size, code = units[number]
            wrong_size = rng.choice((size, 0, -1, 5, 36, 88, 90, 91, size - 1, size + 1, 2**31 - 1))
            other = (offset + rng.choice((0, 1)), wrong_size, code)
            units = [*units[:number], other, *units[number + 1 :]]
    return bytes(damaged), units


@pytest.mark.parametrize("seed", range(20))
def test_both_find_the_same_first_bad_record(seed: int) -> None:
    rng, find = Random(seed), first_bad_in_c(native_library())
    bad = 0
    for _ in range(100):
        content, units = stored(rng, rng.choice((1, 1, 2, 3, 8)))
        encoded = b"".join(UNIT.pack(*unit) for unit in units)
        assert find(content, units, encoded) is find(content, units, b"") is first_bad(content, units, encoded) is None
        for _ in range(4):
            damaged, asked = changed(rng, content, units)
            found = first_bad(damaged, asked, b"")
            assert find(damaged, asked, b"") == found, (damaged.hex(), asked)
            bad += found is not None
    assert bad > 200


@pytest.mark.parametrize("seed", range(10))
def test_both_find_the_same_first_record_that_is_not_where_its_entry_says(seed: int) -> None:
    rng, find = Random(seed), first_astray_in_c(native_library())
    found_any = 0
    for _ in range(100):
        content, units = stored(rng, rng.choice((1, 2, 3, 8)))
        begin = rng.choice((0, 1 << 40))
        places = [begin + sum(size for _, size, _ in units[:number]) for number in range(len(units))]
        entries = [(place, size, code) for place, (_, size, code) in zip(places, units, strict=True)]
        encoded = b"".join(UNIT.pack(*entry) for entry in entries)
        assert find(content, begin, encoded) is first_astray(content, begin, encoded) is None
        for longer in (content + b"x", content[:-1]):
            assert find(longer, begin, encoded) == first_astray(longer, begin, encoded) == len(units) - 1
        for _ in range(4):
            damaged, asked = changed(rng, content, entries)
            encoded_asked = b"".join(UNIT.pack(*entry) for entry in asked)
            found = first_astray(damaged, begin, encoded_asked)
            assert find(damaged, begin, encoded_asked) == found, (damaged.hex(), asked)
            found_any += found is not None
    assert found_any > 200


@pytest.mark.parametrize("seed", range(10))
def test_both_find_the_same_first_damaged_record_wherever_they_lie(seed: int) -> None:
    rng, find = Random(seed), first_damaged_in_c(native_library())
    found_any = 0
    for _ in range(100):
        content, units = stored(rng, rng.choice((1, 2, 3, 8)))
        lead = rng.randbytes(rng.choice((0, 0, 13)))
        begins = [len(lead) + sum(size for _, size, _ in units[:number]) for number in range(len(units))]
        assert find(lead + content, begins) is first_damaged_of(lead + content, begins) is None
        for _ in range(4):
            damaged = lead + changed(rng, content, units)[0]
            if any(
                damaged[begin : begin + 4] != size.to_bytes(4)
                for begin, (_, size, _) in zip(begins, units, strict=True)
            ):
                continue  # whoever walks over records looks at their sizes
            if len(damaged) < len(lead + content):
                continue
            found = first_damaged_of(damaged, begins)
            assert find(damaged, begins) == find(memoryview(bytearray(damaged)), begins) == found, damaged.hex()
            found_any += found is not None
    assert found_any > 100


def test_what_is_not_whole_is_damaged_and_nothing_behind_the_bytes_is_read() -> None:
    call = native_library().function(
        "native_first_damaged", ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64
    )
    pages = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    page = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(page + mmap.PAGESIZE), mmap.PAGESIZE, 0) == 0
    rng = Random(7)
    for _ in range(1000):
        content, units = stored(rng, 1)
        content = content[: mmap.PAGESIZE]
        cut = rng.choice((1, 20, 21, len(content) - 91, rng.randrange(1, len(content))))
        for part in (content[: len(content) - cut], changed(rng, content, units)[0][-mmap.PAGESIZE :]):
            pages[mmap.PAGESIZE - len(part) : mmap.PAGESIZE] = part
            place = page + mmap.PAGESIZE - len(part)
            for begin in (0, -1, 1 << 62, len(part), len(part) - 90):
                begins = array("q", [begin])
                found = call(place, len(part), begins.buffer_info()[0], 1)
                assert found == 0 or (begin == 0 and len(part) == units[0][1])


def test_nothing_of_nothing_is_bad() -> None:
    assert first_bad_in_c(native_library())(b"", [], b"") is first_bad(b"", [], b"") is None
    assert first_damaged_in_c(native_library())(b"", []) is first_damaged_of(b"", []) is None


def test_nothing_is_read_behind_the_bytes() -> None:
    """They end where a page ends behind which nothing may be read: who does ends the process."""
    call = native_library().function(
        "native_first_bad", ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_char_p, ctypes.c_int64
    )
    pages = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    libc = ctypes.CDLL(None)
    assert libc.mprotect(ctypes.c_void_p(begin + mmap.PAGESIZE), mmap.PAGESIZE, 0) == 0
    rng = Random(7)
    for _ in range(3000):
        content, units = stored(rng, 1)
        content, units = changed(rng, content, units)
        content = content[-mmap.PAGESIZE :]
        pages[mmap.PAGESIZE - len(content) : mmap.PAGESIZE] = content
        found = call(begin + mmap.PAGESIZE - len(content), len(content), UNIT.pack(*units[0]), 1)
        assert (found == 0) == (first_bad(content, units, b"") == 0)


def test_the_check_at_load_finds_a_library_that_lets_damage_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    library = native_library()
    assert reads_agree(library)
    monkeypatch.setattr(Library, "function", lambda *_: lambda content, length, units, count: count)
    assert not reads_agree(library)
