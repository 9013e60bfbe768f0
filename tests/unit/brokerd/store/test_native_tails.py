"""Entries that C puts behind their queues, as it laid them out or derived them, are there as Python puts them, whatever happens
to the queues between."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from brokerd.native.library import Library
from brokerd.store.log.derive import NO_RULES, Entry, RecordShape
from brokerd.store.log.entry_columns import EntryColumns, of_topic
from brokerd.store.log.laid_out import LAID_OUT, LaidOut, QueueKey, QueueSlots, Tally
from brokerd.store.log.native_derive import NativeDeriver
from brokerd.store.queues import consume_queues, native_tails
from brokerd.store.queues.consume_queues import ConsumeQueues
from brokerd.store.queues.named_tails import named_tails_agree
from brokerd.store.queues.native_tails import tails_agree
from brokerd.store.queues.round_codes import RoundCodes
from brokerd.store.unit import UNIT
from remoting.record.codec import encode_record
from remoting.record.hosts import pack_host
from tests.support.disks import MemoryDisk
from tests.support.native_library import native_library
from tests.unit.brokerd.store.stores import SETTINGS

TOPICS = ("A", "B", "C/D")
QUEUES = 3
KEYS = [(topic, queue_id) for topic in TOPICS for queue_id in range(QUEUES)]


@pytest.fixture
def library() -> Library:
    return native_library()


def laid_out(slots: QueueSlots, rows: Sequence[tuple[int, int, int, int, int, int]]) -> LaidOut:
    """Entries of (slot, queue offset, position, size, code, count)."""
    return LaidOut(b"".join(LAID_OUT.pack(row[0] // QUEUES, row[0] % QUEUES, *row) for row in rows), slots, 5)


HOST = pack_host("192.0.2.1", 10911)


def derived(library: Library, numbers: Sequence[tuple[QueueKey, int]], position: int, tags: Random) -> EntryColumns:
    """Entries of records for these queues and queue offsets, one behind the other from a position of the log on."""
    log = b""
    for (topic, queue_id), queue_offset in numbers:
        log += encode_record(
            topic=topic.encode("utf-8", "surrogateescape"),
            queue_id=queue_id,
            queue_offset=queue_offset,
            physical_offset=position + len(log),
            body=bytes(tags.randrange(9)),
            properties=tags.choice((b"", b"TAGS\x01a", b"TAGS\x01\xff\x02", b"TAGS\x01b\x02")),
            born_timestamp_ms=3,
            born_host=HOST,
            store_timestamp_ms=5,
            store_host=HOST,
        )
    found = NativeDeriver(library)(log, position, RecordShape(1 << 30, 1 << 20), NO_RULES).entries
    assert isinstance(found, EntryColumns)
    assert [(entry[:2], entry[2]) for entry in found] == list(numbers)
    return found


class Pair:
    """Queues that C knows, and their twin, to which the same happens."""

    def __init__(self, library: Library, *, may_clear: bool) -> None:
        self.library = library
        self.may_clear = may_clear
        self.both = [
            ConsumeQueues(MemoryDisk(), SETTINGS, library=library),
            ConsumeQueues(MemoryDisk(), SETTINGS),
        ]
        self.slots = QueueSlots(TOPICS, KEYS)
        self.position = 0

    def rows(self, random: Random) -> list[tuple[int, int, int, int, int, int]]:
        """What comes next in queues; now and then another number."""
        found = []
        ends = self.both[1].max_offsets()
        for _ in range(random.randrange(30)):
            slot, count = random.randrange(len(KEYS)), random.choice((1, 1, 1, 2, 40))
            size = random.randrange(91, 200)
            offset = ends.get(KEYS[slot], random.choice((0, 0, 7)))
            if random.random() < 0.04:
                offset = max(0, offset + random.choice((-2, 3, -offset)))
            ends[KEYS[slot]] = offset + count
            found.append((slot, offset, self.position, size, random.randrange(3), count))
            self.position += size * count
        return found

    def read_back(self, random: Random) -> EntryColumns:
        """What comes next in queues; now and then another number, or no queue."""
        ends, numbers = self.both[1].max_offsets(), list[tuple[QueueKey, int]]()
        for _ in range(random.randrange(1, 30)):
            key = random.choice(KEYS) if random.random() < 0.97 else random.choice((("..", 0), ("A", -1), ("B", 7)))
            offset = ends.get(key, random.choice((0, 0, 7)))
            if random.random() < 0.04:
                offset = max(-1, offset + random.choice((-2, 3, -offset)))
            ends[key] = offset + 1
            numbers.append((key, offset))
        entries = derived(self.library, numbers, self.position, random)
        self.position = entries[-1][3] + entries[-1][4]
        return entries

    def state(self, queues: ConsumeQueues) -> Any:
        table = {
            key: (bytes(each.tail), each.first_offset, each.max_offset, each.last_physical, each.dirty, each.tail_start)
            for key, each in queues.table.items()
        }
        units = {key: list(each.units(each.first_offset, 1 << 20)) for key, each in queues.table.items()}
        dirty = sorted(each.directory for each in queues._dirty)
        return table, units, dirty, queues.buffered_units, queues.refused_entries, queues.expired(self.position // 2)

    def apply(self, random: Random) -> None:
        """Entries of one kind or the other."""
        if random.random() < 0.5:
            self.apply_laid_out(random)
        else:
            self.apply_derived(random)

    def apply_derived(self, random: Random) -> None:
        """Entries that C derived, and others among them."""
        told, rounds, others = [], [self.read_back(random) for _ in range(2)], self.rows(random)
        for queues, is_native in zip(self.both, (True, False), strict=True):
            codes = RoundCodes()
            for entries in rounds:
                if is_native:
                    queues.apply_derived(entries, codes)
                else:
                    queues.apply(list(entries), codes.present())
            queues.apply_laid_out(laid_out(self.slots, others), codes)
            topics, keys = codes.topics(), set(codes.queues())
            told.append(
                (bool(codes), (topics, keys) == ({key[0] for key in codes.all()}, codes.all().keys()), codes.all())
            )
        assert told[0][2] == told[1][2]
        assert told[0][:2] == (bool(told[1][2]), True)
        self.check()

    def apply_laid_out(self, random: Random) -> None:
        """Entries of C, and others among them."""
        rows, third = self.rows(random), random.randrange(3)
        told = []
        for queues in self.both:
            codes, entries = RoundCodes(), laid_out(self.slots, rows)
            at = len(entries) * third // 3
            queues.apply_laid_out(entries.part(0, at), codes)
            queues.apply(list(entries.part(at, at + 1)), codes.present())
            queues.apply_laid_out(entries.part(at + 1, len(entries)), codes)
            topics, keys = codes.topics(), set(codes.queues())
            told.append(
                (bool(codes), topics >= {key[0] for key in codes.all()}, keys == codes.all().keys(), codes.all())
            )
        assert told[0] == told[1]
        assert told[0][2]
        self.check()

    def change(self, random: Random) -> None:
        """Something else that happens to queues, or nothing."""
        what, cut = random.randrange(12), max(random.randrange(self.position + 1), self.position - 3000)
        topic, key = random.choice(TOPICS), random.choice(KEYS)
        for queues in self.both:
            if what == 3:
                queues.truncate(cut)
            elif what == 4:
                queues.delete(topic, self.position + 1)
            elif what == 5 and key in queues.table:
                queues.empty({key: queues.table[key].max_offset + 2}, self.position + 1)
            elif what == 6 and self.may_clear:
                queues.clear()
        self.check()

    def write(self, random: Random) -> None:
        """In slices, between which other things happen; now and then it fails at one of them."""
        for queues in self.both:  # slices are to have the same queues, in whatever order they came
            queues._dirty.sort(key=lambda queue: queue.directory)
        writes = [queues.begin_write_in_slices() for queues in self.both]
        steps = random.choice((0, 1, 2, 1 << 20, 1 << 20, 1 << 20))
        while steps and all([queues.take_slice(write) for queues, write in zip(self.both, writes, strict=True)]):
            self.apply(random)
            self.change(random)
            steps -= 1
        if steps < 1 << 19:
            for queues, write in zip(self.both, writes, strict=True):
                queues.abandon_write(write)
            return
        for write in writes:
            write.run()
        while all([queues.finish_slice(write) for queues, write in zip(self.both, writes, strict=True)]):
            self.apply(random)
            self.change(random)

    def check(self) -> None:
        native, twin = map(self.state, self.both)
        assert native == twin


@pytest.mark.parametrize("seed", range(24))
def test_queues_become_the_same(library: Library, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consume_queues, "_SLICE_QUEUES", 2)
    random, pair = Random(seed), Pair(library, may_clear=seed % 3 == 0)
    for _ in range(40):
        pair.apply(random)
        pair.change(random)
        if random.random() < 0.4:
            pair.write(random)
    for queues in pair.both:
        write = queues.begin_write()
        write.run()
        queues.finish_write(write)
        for queue in queues.table.values():
            first, count = queue.first_offset, queue.max_offset - queue.first_offset
            assert queue.written_offset == queue.max_offset
            assert queue.read_written(first, count) == b"".join(UNIT.pack(*unit) for unit in queue.units(first, count))
            if count:
                queue.read_checked(first, count)
    pair.check()


def test_a_queue_of_a_deleted_topic_is_none_of_those_that_come(library: Library) -> None:
    """Its number is given to another one, and who has it still can ask it."""
    queues, slots = ConsumeQueues(MemoryDisk(), SETTINGS, library=library), QueueSlots(TOPICS, KEYS)
    queues.apply_laid_out(laid_out(slots, [(0, 0, 0, 100, 1, 3), (3, 0, 300, 100, 1, 1)]), RoundCodes())
    gone = queues.table["A", 0]
    queues.apply_laid_out(laid_out(slots, [(0, 3, 400, 100, 1, 2)]), RoundCodes())
    assert gone.max_offset == 5
    queues.delete("A", 1 << 30)
    queues.apply_laid_out(laid_out(slots, [(1, 0, 600, 100, 1, 2), (3, 1, 800, 100, 1, 1)]), RoundCodes())
    queues.apply_laid_out(laid_out(slots, [(1, 2, 900, 100, 1, 2), (0, 0, 1100, 100, 1, 1)]), RoundCodes())
    assert (gone.max_offset, gone.last_physical, gone.tail) == (0, -1, b"")
    assert {key: queue.max_offset for key, queue in queues.table.items()} == {("A", 1): 4, ("B", 0): 2, ("A", 0): 1}


def test_numbers_are_of_the_queues_that_were_asked_for(library: Library) -> None:
    slots = QueueSlots(TOPICS, KEYS)
    for _ in range(3):
        queues = ConsumeQueues(MemoryDisk(), SETTINGS, library=library)
        queues.apply_laid_out(laid_out(slots, [(4, 0, 0, 100, 1, 1)]), RoundCodes())
        queues.apply_laid_out(laid_out(slots, [(2, 0, 100, 100, 1, 1), (4, 1, 200, 100, 1, 1)]), RoundCodes())
        assert queues.max_offsets() == {("B", 1): 2, ("A", 2): 1}


def test_messages_of_known_queues_are_all_put_there_by_c(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where an area is full."""
    queues, slots = ConsumeQueues(MemoryDisk(), SETTINGS, library=library), QueueSlots(TOPICS, KEYS)
    queues.apply_laid_out(laid_out(slots, [(slot, 0, slot * 100, 100, 1, 1) for slot in range(5)]), RoundCodes())
    monkeypatch.setattr(queues, "apply", None)
    position = 1000
    for number in range(1, 400):
        rows = [(slot, number, position + 100 * slot, 100, 1, 1) for slot in range(5)]
        position += 1000
        codes = RoundCodes()
        queues.apply_laid_out(laid_out(slots, rows), codes)
        assert codes.all() == {key: [1] for key in KEYS[:5]}
    assert set(queues.max_offsets().values()) == {400}
    assert queues.buffered_units == 2000


def test_messages_that_are_read_back_are_all_put_behind_known_queues_by_c(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of more queues than it found room for at first, and where an area is full."""
    queues, random, position = ConsumeQueues(MemoryDisk(), SETTINGS, library=library), Random(1), 0
    monkeypatch.setattr(queues, "apply", None)
    keys = [(f"Topic{n % 40}", n) for n in range(300)]
    for number in range(40):
        random.shuffle(keys)
        entries = derived(library, [(key, number) for key in keys], position, random)
        position = entries[-1][3] + entries[-1][4]
        codes = RoundCodes()
        queues.apply_derived(entries, codes)
        assert codes.topics() == {key[0] for key in keys}
        assert codes.all() == {entry[:2]: [entry[5]] for entry in entries}
    assert queues.max_offsets() == dict.fromkeys(keys, 40)
    assert queues.buffered_units == 40 * 300
    assert sorted(each.directory for each in queues._dirty) == sorted(each.directory for each in queues.table.values())


def test_a_queue_is_found_by_its_name_after_others_have_gone(library: Library) -> None:
    queues, random = ConsumeQueues(MemoryDisk(), SETTINGS, library=library), Random(1)
    queues.apply_derived(derived(library, [(key, 0) for key in KEYS], 0, random), RoundCodes())
    gone = queues.table["A", 0]
    queues.delete("A", 1 << 30)
    queues.apply_derived(derived(library, [(("N", 0), 0), (("B", 0), 1), (("A", 1), 0)], 9000, random), RoundCodes())
    assert (gone.max_offset, gone.tail) == (0, b"")
    ends = {key: queue.max_offset for key, queue in queues.table.items()}
    assert ends == {("N", 0): 1, ("B", 0): 2, ("B", 1): 1, ("B", 2): 1, ("A", 1): 1}


class Rounds:
    """Messages of two queues, which are written when they are there."""

    def __init__(self, library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(consume_queues, "_WARM_UNITS", 4)
        self.queues = ConsumeQueues(MemoryDisk(), SETTINGS, library=library)
        self.slots = QueueSlots(TOPICS, KEYS)
        self.number = 0

    def run(self, count: int) -> list[int]:
        """So many for each queue: the areas' sizes then, in units."""
        for number in range(self.number, self.number + count):
            rows = [(slot, number, (2 * number + slot) * 100, 100, 1, 1) for slot in range(2)]
            self.queues.apply_laid_out(laid_out(self.slots, rows), RoundCodes())
        self.number += count
        write = self.queues.begin_write()
        write.run()
        self.queues.finish_write(write)
        for slot, queue in enumerate(self.queues.table.values()):
            wanted = [((2 * n + slot) * 100, 100, 1) for n in range(self.number)]
            assert list(queue.units(0, self.number)) == wanted
            assert len(queue.tail) == 4 * UNIT.size
        return [len(queue._area) // UNIT.size for queue in self.queues.table.values()]


def test_as_many_messages_as_before_need_no_larger_area(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ten thousand queues each would be made a larger one some times between two checkpoints."""
    rounds = Rounds(library, monkeypatch)
    before = rounds.run(150)
    monkeypatch.setattr(native_tails.NativeTails, "meet", None)
    for _ in range(5):
        assert rounds.run(150) == before


def test_an_area_goes_that_is_too_large_for_what_comes(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Rounds(library, monkeypatch)
    burst = rounds.run(600)
    assert all(600 <= units < 4 * 600 for units in burst)
    assert rounds.run(300) == burst
    assert all(units < 100 for units in rounds.run(8))
    assert all(4 <= units < 100 for units in rounds.run(5000)), "a very large one is made anew"
    rounds.queues.finish_write(rounds.queues.begin_write())
    assert all(not queue._area for queue in rounds.queues.table.values()), "no message came"


def test_laid_out_entries_are_a_sequence_like_any_other() -> None:
    slots = QueueSlots(TOPICS, KEYS)
    entries = laid_out(slots, [(0, 5, 100, 91, 3, 2), (4, 0, 300, 92, -4, 1), (0, 7, 400, 91, 3, 1)])
    expected: list[Entry] = [
        ("A", 0, 5, 100, 91, 3, 5, 2),
        ("B", 1, 0, 300, 92, -4, 5, 1),
        ("A", 0, 7, 400, 91, 3, 5, 1),
    ]
    assert list(entries) == [entries[n] for n in range(-3, 0)] == expected
    assert list(entries[1:]) == expected[1:]
    assert entries[::2] == expected[::2]
    assert entries.tallies == [Tally("A", 3, 273), Tally("B", 1, 92)]
    assert [list(each.queues()) for each in (entries, entries.part(1, 2), entries.part(1, 1))] == [
        [KEYS[0], KEYS[4]],
        [KEYS[4]],
        [],
    ]
    assert list(entries[1:2]) == list(entries.part(1, 2))
    assert entries.part(1, 2).tallies == [Tally("B", 1, 92)]
    assert [list(of_topic(entries, topic)) for topic in ("A", "none")] == [expected[::2], []]
    with pytest.raises(IndexError):
        entries[3]


def test_the_library_is_asked_before_it_is_used(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tails_agree(library)
    assert named_tails_agree(library)
    monkeypatch.setattr(native_tails, "_LAST", 0)
    assert not tails_agree(library)
    assert not named_tails_agree(library)
