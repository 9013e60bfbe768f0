"""What C finds of due timers is what Python finds: entries between two keys, their order, and the records of a slot."""

from __future__ import annotations

from array import array
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from brokerd.native.library import Library
from brokerd.store.unit import UNIT, UNIT_BYTES
from brokerd.timers.codes import Key, encode_code, key_of
from brokerd.timers.due_entries import PythonDueEntries
from brokerd.timers.files.chain import Chain, PythonWalk, pack
from brokerd.timers.files.layout import (
    MAGIC,
    MAGIC_DELETE,
    MAGIC_ELSEWHERE,
    MAGIC_ROLL,
    NO_POSITION,
    RECORD_BYTES,
    DamagedTimerFiles,
    TimerRecord,
    encode_record,
)
from brokerd.timers.files.native_chain import NativeWalk, walk_agrees
from brokerd.timers.native_due_entries import NativeDueEntries, due_entries_agree
from tests.support.native_library import native_library

SLOT_MS = 5000
FIRST = 40  # queue offset of the first entry


@pytest.mark.parametrize("seed", range(6))
def test_both_find_the_same_entries_in_the_same_order(seed: int) -> None:
    rng, lengths = Random(seed), set()
    for _ in range(150):
        spread = rng.choice((1, 3, 50, 1 << 40))
        codes = [encode_code(rng.randrange(spread), rng.randrange(3)) for _ in range(rng.choice((0, 1, 7, 60)))]
        units = [(100 * n, 90, code) for n, code in enumerate(codes)]
        encoded, portion = b"".join(UNIT.pack(*each) for each in units), rng.choice((1, 5, 100))

        def begin(start: int, count: int, portion: int = portion) -> slice:
            return slice(start - FIRST, start - FIRST + min(count, portion))

        def read(start: int, count: int, encoded: bytes = encoded) -> bytes:
            part = begin(start, count)
            return encoded[UNIT_BYTES * part.start : UNIT_BYTES * part.stop]

        native = NativeDueEntries(native_library(), read)
        python = PythonDueEntries(lambda start, count, units=units: units[begin(start, count)])  # type: ignore[misc]
        after, end = (Key(rng.randrange(spread + 1), rng.choice((-1, FIRST + 3, 1 << 62))) for _ in range(2))
        start, stop = FIRST + rng.randrange(3), FIRST + rng.randrange(len(codes) + 3)
        assert native.span(start, stop) == python.span(start, stop)
        found, wanted = native.select(start, stop, after, end), python.select(start, stop, after, end)
        assert found == wanted
        native.sort(found)
        python.sort(wanted)
        assert found == wanted
        keys = [key_of(*each) for each in zip(found[::2], found[1::2], strict=True)]
        assert all(one < other for one, other in pairwise(keys))
        lengths.add(len(keys))
    assert len(lengths) > 5


def records_of(rng: Random) -> bytes:
    """Some records one behind the other, linked from the last to the first; now and then something is wrong with one of them."""
    records, before = [], NO_POSITION
    for n in range(rng.choice((1, 2, 9, 40))):
        magic = MAGIC | rng.choice((0, 0, 0, MAGIC_ROLL, MAGIC_DELETE, MAGIC_ELSEWHERE | MAGIC_DELETE))
        due_ms = SLOT_MS + 1 + rng.choice((0, 999, rng.randrange(1000)))
        if rng.random() < 0.02:
            due_ms += rng.choice((-6000, -1000, 1000))
        offset = 10 + n - rng.choice((0,) * 60 + (1, 30))
        records.append(
            encode_record(TimerRecord(before, magic, due_ms, 7, 90, offset), rng.choice((0, due_ms, 4000)), 3)
        )
        before = n * RECORD_BYTES
    block = bytearray(b"".join(records))
    if rng.random() < 0.3:
        block[rng.randrange(len(block))] ^= 1 << rng.randrange(8)
    return bytes(block[: len(block) - rng.choice((0,) * 9 + (1, 30))])


@pytest.mark.parametrize("seed", range(6))
def test_both_walk_along_a_slot_alike_and_say_the_same_of_damage(seed: int) -> None:
    rng, damaged, found_some = Random(seed), 0, 0
    walks = PythonWalk(), NativeWalk(native_library())
    for _ in range(300):
        block, position = records_of(rng), rng.choice((0, 0, 520))
        last = (len(block) - 1) // RECORD_BYTES * RECORD_BYTES
        chain = Chain(
            SLOT_MS,
            Key(SLOT_MS + rng.randrange(-2, 1002), rng.choice((-1, 15, 1 << 62))),
            at=position + last,
            stop=rng.choice((NO_POSITION, position + last // 2 // RECORD_BYTES * RECORD_BYTES)),
        )
        if rng.random() < 0.3:
            chain.last_kept = pack(Key(SLOT_MS + rng.randrange(1000), 12), SLOT_MS)
        if position:
            chain.stop = NO_POSITION  # what comes before the block is not in it
        outcomes: list[tuple[object, ...]] = []
        for walk in walks:
            own, keys, looked, told = replace(chain), array("Q"), [], ""
            try:
                while own.at != own.stop:
                    many, some = walk(own, block, position, rng.choice((1, 4, 100)))
                    if not many:
                        break
                    looked.append(many)
                    keys += some
            except DamagedTimerFiles as error:
                told = str(error)
            # of damaged files all that was found is let go
            outcomes.append((told,) if told else (told, own, keys, sum(looked)))
        assert outcomes[0] == outcomes[1]
        damaged += bool(outcomes[0][0])
        found_some += bool(outcomes[0][2:] and outcomes[0][2])
    assert damaged > 20
    assert found_some > 40


def test_the_checks_at_load_find_a_library_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    library = native_library()
    assert due_entries_agree(library)
    assert walk_agrees(library)
    monkeypatch.setattr(Library, "function", lambda *_: lambda *_: 0)
    assert not due_entries_agree(library)
    monkeypatch.setattr(NativeWalk, "__call__", lambda *_: (0, array("Q")))
    assert not walk_agrees(library)
