"""Messages that a store appends again from their records: the same log as of drafts, in each file, with each library."""

from __future__ import annotations

from random import Random

import pytest

from brokerd.native.library import Library
from brokerd.store.again import Copies, Role
from brokerd.store.draft import Draft
from brokerd.store.store import MessageStore
from remoting import codes
from remoting.errors import RequestError
from remoting.record.properties import encode_properties
from tests.support.disks import MemoryDisk
from tests.support.native_library import native_library
from tests.unit.brokerd.store.stores import Clock, dispatch_all, draft, log_bytes, open_store, put, queue_contents

NAMES = {"REAL": Role.TOPIC, "QUEUE": Role.QUEUE, "AT": Role.PLACE, "TIMES": Role.TIMES}
WAITING = "Waiting"


def waiting(number: int, body: bytes) -> Draft:
    properties = {
        "UNIQ_KEY": f"U{number}",
        "TAGS": f"t{number % 3}",
        "REAL": f"Own{number % 2}",
        "QUEUE": str(number % 3),
    }
    return draft(body, topic=WAITING, properties=encode_properties(properties))


def store_with(library: Library | None, count: int, seed: int) -> MessageStore:
    store = open_store(MemoryDisk(), Clock(), library=library)
    rng = Random(seed)
    for number in range(count):
        put(store, waiting(number, rng.randbytes(rng.randrange(1, 200))))
    return store


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("is_native", [False, True])
def test_copies_and_drafts_make_the_same_log(seed: int, is_native: bool) -> None:
    library = native_library() if is_native else None
    stores = [store_with(library, 24, seed) for _ in range(2)]
    rng = Random(seed)
    for _ in range(12):
        numbers = sorted(rng.sample(range(24), rng.choice((1, 3, 6))))
        cut = rng.randrange(len(numbers) + 1)
        for store, decodes in zip(stores, (False, True), strict=True):
            units = store.read_units(WAITING, 0, 0, 24)
            assert len(units) == 24
            looked = store.look_again([units[number] for number in numbers], numbers, NAMES)
            assert looked.ordinary == b"\1" * len(numbers)
            parts = [(begin, end) for begin, end in ((0, cut), (cut, len(numbers))) if begin < end]
            copies = [Copies(looked, begin, end, looked.groups) for begin, end in parts]
            behind = [each for part in copies for each in part.drafts()] if decodes else copies
            results = store.append_messages([draft(b"first"), *behind], together=True)
            assert results[-1].end_offset == store.commitlog.end_offset
    for store in stores:
        dispatch_all(store)
    assert log_bytes(stores[0]) == log_bytes(stores[1])
    assert queue_contents(stores[0]) == queue_contents(stores[1])
    assert stores[0].queue_offsets.table == stores[1].queue_offsets.table


@pytest.mark.parametrize("is_native", [False, True])
def test_records_that_are_gone_damaged_or_named_wrongly_are_left_and_no_others(is_native: bool) -> None:
    store = store_with(native_library() if is_native else None, 24, 3)
    units = list(store.read_units(WAITING, 0, 0, 24))
    wrong = [
        (units[3][0] + 1, units[3][1], 0),
        (units[4][0], units[4][1] - 1, 0),
        (store.commitlog.end_offset + 5, 100, 0),
        (1 << 40, 100, 0),
        (-5, 100, 0),
        (units[5][0], 0x7FFFFFFF, 0),
        (units[6][0], -1, 0),
    ]
    for bad in wrong:
        asked = [units[20], bad, units[2], units[7]]
        assert store.look_again(asked, range(4), NAMES).ordinary == b"\1\0\1\1", bad
        assert store.look_again([bad, *units[8:11]], range(4), NAMES).ordinary == b"\0\1\1\1", bad
    assert store.look_again(units[::-1], range(24), NAMES).ordinary == b"\1" * 24


def test_copies_that_fit_into_no_file_are_refused() -> None:
    store = store_with(None, 24, 3)
    before = store.commitlog.end_offset
    looked = store.look_again(store.read_units(WAITING, 0, 0, 24), range(24), NAMES)
    with pytest.raises(RequestError) as refused:
        store.append_messages([Copies(looked, 0, 24, looked.groups)] * 2, together=True)
    assert refused.value.code == codes.MESSAGE_ILLEGAL
    assert store.commitlog.end_offset == before
