"""Records that C copies out of a log are those that Python copies, and it touches nothing beside them."""

from __future__ import annotations

from random import Random

import pytest

from brokerd.native.library import Library
from brokerd.native.memory import Pinned
from brokerd.store.log.run_copies import copied, copied_in_c, copies_agree
from brokerd.store.unit import UNIT, Unit
from tests.support.native_library import native_library
from tests.unit.brokerd.native.test_reads import changed, stored


def scattered(rng: Random, content: bytes, units: list[Unit]) -> bytes:
    """A file with the records where the units say, and something between them."""
    file = bytearray(rng.randbytes(units[-1][0] + len(content) - units[0][0] + rng.choice((0, 50))))
    at = 0
    for offset, size, _ in units:
        file[offset - units[0][0] : offset - units[0][0] + size] = content[at : at + size]
        at += size
    return bytes(file)


@pytest.mark.parametrize("seed", range(10))
def test_both_copy_the_same_records(seed: int) -> None:
    rng, in_c = Random(seed), copied_in_c(native_library())
    whole = partly = 0
    for _ in range(100):
        content, units = stored(rng, rng.choice((1, 2, 3, 8)))
        begin = units[0][0]
        for damage in (False, True, True):
            told = units
            if damage:
                damaged, told = changed(rng, content, units)
                content = damaged.ljust(len(content), b"\0")
            file = scattered(rng, content, units)
            file = file[: rng.choice((len(file), rng.randrange(len(file) + 1)))]
            room = rng.choice((len(content), len(content) + 100, rng.randrange(len(content) + 1)))
            encoded = b"".join(UNIT.pack(*unit) for unit in told)
            ours, theirs, place = bytearray(room), bytearray(room), rng.getrandbits(40)
            entries = copied(file, begin, encoded, memoryview(ours), place)
            assert in_c(file, begin, encoded, memoryview(theirs), place) == entries
            used = sum(size for _, size, _ in UNIT.iter_unpack(entries))
            assert ours[:used] == theirs[:used]
            whole += len(entries) == len(encoded)
            partly += 0 < len(entries) < len(encoded)
    assert whole > 50
    assert partly > 50


def test_a_unit_that_names_another_file_is_not_copied() -> None:
    for copy in (copied, copied_in_c(native_library())):
        content, units = stored(Random(1), 1)
        offset, size, code = units[0]
        into = memoryview(bytearray(size))
        for elsewhere in (offset - 1, offset + 1, -1, -(1 << 63), (1 << 63) - 1):
            assert copy(content, offset, UNIT.pack(elsewhere, size, code), into, 0) == b""
        for wrong in (0, -1, -(1 << 31), 5, (1 << 31) - 1):
            assert copy(content, offset, UNIT.pack(offset, wrong, code), into, 0) == b""
        assert copy(content, offset, UNIT.pack(offset, size, code), into, 7) == UNIT.pack(7, size, code)
        assert copy(b"", offset, UNIT.pack(offset, size, code), into, 0) == b""
        assert copy(content, offset, b"", into, 0) == b""


def test_the_check_at_load_finds_a_library_that_copies_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    library = native_library()
    assert copies_agree(library)
    monkeypatch.setattr(Library, "function", lambda *_: lambda *arguments: arguments[4])
    assert not copies_agree(library)


def test_a_buffer_is_held_as_long_as_its_address_is_used() -> None:
    content = bytearray(b"0123")
    with Pinned(content) as address, Pinned(memoryview(content).toreadonly()[1:]) as behind:
        assert behind == address + 1
        with pytest.raises(BufferError):
            content.append(1)
    content.append(1)
