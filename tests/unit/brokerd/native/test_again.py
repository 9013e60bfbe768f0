"""Records that are stored again: C finds and writes what Python does, a copy is what the decoded message would be stored as, and
nothing beside the bytes is looked at."""

from __future__ import annotations

import ctypes
import mmap
from itertools import chain, pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerd.delay import ordinary as levels
from brokerd.delay.rules import Target, deliver
from brokerd.store.again import Again, Copies, Looked, Names, PythonAgain
from brokerd.store.draft import lay_out_draft
from brokerd.store.log.derive import NO_RULES, Entry, RecordShape, derive
from brokerd.store.log.entry_columns import EntryColumns
from brokerd.store.native_again import NativeAgain, again_agrees
from brokerd.store.queues.queue_offsets import TakenOffsets
from brokerd.store.run import Run
from brokerd.store.unit import UNIT, Unit
from brokerd.timers.codes import ROLLED
from brokerd.timers.copies import delivered, place_of
from brokerd.timers.ordinary import NAMES
from remoting.record.checksum import TAIL_BYTES, reserve, seal
from remoting.record.codec import decode_record, encode_record
from remoting.record.hosts import pack_host
from remoting.record.layout import MAX_PROPERTIES_BYTES, Field
from tests.support.native_library import native_library

HOST, OTHER = pack_host("10.0.0.1", 10911), pack_host("fe80::1", 10911)
MOST_BYTES = 40_000
LONG = MAX_PROPERTIES_BYTES - TAIL_BYTES
PROPERTIES = (
    *(
        b"KEYS\x01k\x02",
        b"TAGS\x01red\x02",
        b"TAGS\x01\xc3\xa9\xf0\x9f\x98\x80\x02",
        b"TAGS\x01\xff\x02",
        b"UNIQ_KEY\x01A1\x02",
    ),
    *(
        b"\xff\x01\xfe\x02",
        b"KEYS\x01\x02",
        b"\x01x\x02",
        b"a\x01b\x01c\x02",
        b"a\x02",
        b"__CRC32#\x01x\x02",
        b"z\x01\0\x02",
    ),
    *(
        b"REAL_QID\x0199\x02",
        b"REAL_TOPIC\x01Other\x02",
        b"TIMER_DUE_MS\x01x1\x02",
        b"UNIQ_KEY\x01B\x02",
        b"p\x01" + b"v" * 90 + b"\x02",
    ),
    *(b"TIMER_LEG_MS\x015\x02", b"TIMER_DEL_UNIQKEY\x01a+b\x02", b"DELAY\x013\x02", b"say\x01TIMER_ROLL_TIMES\x02"),
    *(b"TIMER_PLACE\x017\x02", b"TIMER_ROLL_TIMES\x011\x02", b"TIMER_PLACE\x0107\x02", b"unended\x01x"),
)
REAL = (
    *(b"REAL_TOPIC\x01Orders\x02", b"REAL_TOPIC\x01" + b"T" * 127 + b"\x02", b"REAL_TOPIC\x01" + b"T" * 128 + b"\x02"),
    *(b"REAL_TOPIC\x01a/b\x02", b"REAL_TOPIC\x01%RETRY%g\x02", b"REAL_TOPIC\x01\xc3\xa9\x02", b""),
)
QUEUES = (b"0", b"3", b"0007", b"999999999", b"1234567890", b"-1", b"")
DUES = (b"1700000000000", b"0", b"1234567890123456", b"12345678901234567", b"1.5", b"")


def stored(rng: Random, offset: int, *, is_ordinary: bool) -> bytes:
    """A record of the timers' topic as a log may have it."""
    rare = rng.random
    topic = REAL[0] if is_ordinary or rare() < 0.8 else rng.choice(REAL)
    queue = rng.choice(QUEUES[:3]) if is_ordinary or rare() < 0.8 else rng.choice(QUEUES)
    due = DUES[0] if is_ordinary or rare() < 0.8 else rng.choice(DUES)
    pieces = [topic, b"REAL_QID\x01%b\x02" % queue, b"TIMER_DUE_MS\x01%b\x02" % due]
    if is_ordinary:
        pieces += rng.sample(PROPERTIES[:2], rng.randrange(3))
        pieces += rng.choice(((), PROPERTIES[4:5], (b"TIMER_PLACE\x0177\x02", b"TIMER_ROLL_TIMES\x012\x02")))
    else:
        pieces += rng.sample(PROPERTIES, rng.choice((0, 1, 1, 2, 5)))
        if rare() < 0.02:
            pieces.append(b"long\x01" + b"x" * (LONG - sum(map(len, pieces)) - rng.randrange(4, 40)) + b"\x02")
    rng.shuffle(pieces)
    properties, seals = b"".join(pieces)[:MAX_PROPERTIES_BYTES], rare() < 0.7
    properties = reserve(properties)[-MAX_PROPERTIES_BYTES:] if seals else properties
    hosts = (HOST, HOST) if is_ordinary or rare() < 0.9 else (rng.choice((HOST, OTHER)), rng.choice((HOST, OTHER)))
    record = encode_record(
        topic=b"rmq_sys_wheel_timer"
        if is_ordinary or rare() < 0.9
        else rng.choice((b"T" * 128, b"\xff", b"x\0", b"T")),
        queue_id=0,
        queue_offset=rng.getrandbits(40),
        physical_offset=offset,
        body=rng.randbytes(
            rng.choice((0, 1, 15, 64, 1500) if is_ordinary else (0, 9, 200, MOST_BYTES - 300, MOST_BYTES))
        ),
        properties=properties,
        born_timestamp_ms=rng.getrandbits(41),
        born_host=hosts[0],
        store_timestamp_ms=rng.getrandbits(41),
        store_host=hosts[1],
        flag=rng.getrandbits(31),
        sys_flag=rng.choice((0, 1, 0x101, 8)) if is_ordinary else rng.choice((0, 4, 8, 12)),
        reconsume_times=rng.getrandbits(10),
        prepared_transaction_offset=rng.getrandbits(40),
    )
    return seal(record) if seals else record


def log_of(rng: Random, count: int, *, is_ordinary: bool) -> tuple[bytes, list[Unit]]:
    records, units, offset = [], [], rng.choice((0, 1 << 31, 1 << 40))
    for _ in range(count):
        record = stored(rng, offset, is_ordinary=is_ordinary)
        records.append(record)
        units.append((offset, len(record), rng.getrandbits(40)))
        offset += len(record) + rng.choice((0, 300))
    return b"".join(records), units


def run_of(rng: Random) -> Run:
    return Run(1 << 33, 1 << 34, 1 << 30, 1_700_000_000_123, TakenOffsets({("Orders", 3): 9}), rng.random() < 0.5)


def pieces_of(looked: Looked) -> list[tuple[int, int]]:
    edges = [0, *(n for n in range(1, looked.count) if looked.ordinary[n] != looked.ordinary[n - 1]), looked.count]
    return [(begin, end) for begin, end in pairwise(edges) if looked.ordinary[begin]]


def outcome_of(again: Again, content: bytes, units: list[Unit], run: Run, names: Names = NAMES) -> tuple[object, ...]:
    """All that both have to agree in."""
    looked = again.look(content, units, range(1000, 1000 + len(units)), names)
    targets = [Target(topic, queue_id % 5) for topic, queue_id in looked.groups]
    for begin, end in pieces_of(looked):
        place = again.lay_out(run, Copies(looked, begin, end, targets))
        assert place is not None
        assert place.end_offset == run.end_offset == place.physical_offset + place.size
    columns = [
        (looked.group[n], looked.number[n], looked.place[n], looked.is_added[n], looked.size[n], looked.key(n))
        for n in range(looked.count)
        if looked.ordinary[n]
    ]
    return bytes(looked.ordinary), columns, b"".join(run.records), entries_of(run), sorted(run.next_offsets.items())


def entries_of(run: Run) -> list[Entry]:
    return list(chain.from_iterable(entries for _, entries, _ in run.offers()))


def general_run(content: bytes, units: list[Unit], ordinary: bytes, run: Run, names: Names = NAMES) -> None:
    """The ordinary ones as decoded messages, of timers or of delay levels."""
    at = 0
    for n, (_, size, _) in enumerate(units):
        if ordinary[n]:
            record = decode_record(content, at)
            properties = record.property_map()
            target = Target(properties["REAL_TOPIC"], int(properties["REAL_QID"]) % 5)
            place = place_of(ROLLED if "TIMER_PLACE" in properties else 0, properties, 1000 + n)
            draft = delivered(record, target, place) if names is NAMES else deliver(record, target)
            assert lay_out_draft(run, draft, HOST, NO_RULES, MOST_BYTES) is not None
        at += size


def engines() -> tuple[PythonAgain, NativeAgain]:
    return PythonAgain(HOST, MOST_BYTES), NativeAgain(native_library(), HOST, MOST_BYTES)


EACH_NAMES = pytest.mark.parametrize("names", [NAMES, levels.NAMES], ids=["timers", "levels"])


@EACH_NAMES
@pytest.mark.parametrize("seed", range(8))
def test_ordinary_records_are_copied_as_their_decoded_messages_are_stored(seed: int, names: Names) -> None:
    rng = Random(seed)
    for _ in range(20):
        content, units = log_of(rng, rng.choice((1, 2, 9)), is_ordinary=True)
        for again in engines():
            runs = [run_of(Random(seed)) for _ in range(2)]
            ordinary, _, records, entries, numbers = outcome_of(again, content, units, runs[0], names)
            assert ordinary == b"\1" * len(units)
            general_run(content, units, ordinary, runs[1], names)
            assert records == b"".join(runs[1].records)
            assert entries == entries_of(runs[1])
            assert numbers == sorted(runs[1].next_offsets.items())
            derived = derive(records, runs[0].start, RecordShape(1 << 34, MOST_BYTES).checked())
            assert derived.entries == entries


@EACH_NAMES
@pytest.mark.parametrize("seed", range(20))
def test_both_leave_and_copy_the_same_of_unusual_records(seed: int, names: Names) -> None:
    rng, (twin, native) = Random(seed), engines()
    seen: set[int] = set()
    for _ in range(40):
        content, units = log_of(rng, rng.choice((1, 3, 12)), is_ordinary=False)
        runs = [run_of(Random(seed)) for _ in range(3)]
        wanted, found = (
            outcome_of(again, content, units, run, names) for again, run in zip((twin, native), runs, strict=False)
        )
        assert found == wanted, content.hex()
        assert isinstance(wanted[0], bytes)
        general_run(content, units, wanted[0], runs[2], names)
        assert wanted[2] == b"".join(runs[2].records), content.hex()
        seen.update(wanted[0])
    assert seen == {0, 1}


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 1 << 32),
    st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), max_size=4),
    st.integers(-400, 400),
    st.booleans(),
)
def test_both_do_the_same_with_damaged_and_truncated_records(
    seed: int, changes: list[tuple[int, int]], size_change: int, cut: bool
) -> None:
    rng, (twin, native) = Random(seed), engines()
    content, units = log_of(rng, 3, is_ordinary=True)
    damaged = bytearray(content)
    for at, value in changes:
        damaged[at % len(damaged)] = value
    number = seed % 3
    offset, size, code = units[number]
    if size_change % 4 == 0:
        units[number] = (offset, size + size_change, code)
    data = bytes(damaged[: size_change % len(damaged)] if cut else damaged)
    runs = [run_of(Random(seed)) for _ in range(2)]
    assert outcome_of(native, data, units, runs[1]) == outcome_of(twin, data, units, runs[0])


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 32), st.binary(max_size=120), st.sampled_from((12, 36, 84, 88)))
def test_both_do_the_same_with_records_that_a_liar_sealed(seed: int, inner: bytes, at: int) -> None:
    """Checksums fit, nothing else needs to."""
    rng, (twin, native) = Random(seed), engines()
    record = bytearray(stored(rng, 0, is_ordinary=True)[:-TAIL_BYTES])
    if seed % 2:
        record[at : at + len(inner)] = inner[: max(0, len(record) - at)]
    else:
        record[-len(inner) - 1 : -1] = inner
    size = len(record) + TAIL_BYTES
    record[:4] = size.to_bytes(4)
    data, units = seal(bytes(record) + bytes(TAIL_BYTES)), [(0, size, 0)]
    runs = [run_of(Random(seed)) for _ in range(2)]
    assert outcome_of(native, data, units, runs[1]) == outcome_of(twin, data, units, runs[0])


def test_a_body_that_its_checksum_does_not_fit_is_left() -> None:
    record = bytearray(stored(Random(1), 0, is_ordinary=True))
    record = bytearray(seal(bytes(reserve(bytes(record)))))  # longer than it says
    fits = encode_record(
        topic=b"T", queue_id=0, queue_offset=0, physical_offset=0, body=b"abc", born_timestamp_ms=0, born_host=HOST,
        store_timestamp_ms=0, store_host=HOST,
        properties=reserve(b"REAL_TOPIC\x01Orders\x02REAL_QID\x010\x02TIMER_DUE_MS\x015\x02"),
    )  # fmt: skip
    wrong = bytearray(fits)
    wrong[Field.BODY_CRC.at] ^= 1
    for again in engines():
        for data, wanted in ((seal(fits), b"\1"), (seal(bytes(wrong)), b"\0"), (bytes(record), b"\0")):
            assert bytes(again.look(data, [(0, len(data), 0)], [5], NAMES).ordinary) == wanted


@pytest.mark.parametrize("seed", range(8))
def test_the_entries_of_copies_are_each_queues_together(seed: int) -> None:
    """Also where some of what was looked at are copied, and where two queues are one now: then as entries one by one."""
    rng, native = Random(seed), engines()[1]
    for _ in range(20):
        content, units = log_of(rng, 9, is_ordinary=True)
        run = run_of(Random(seed))
        looked = native.look(content, units, range(len(units)), NAMES)
        queues = rng.choice((1, 2, 100))
        targets = [Target(topic, queue_id % queues) for topic, queue_id in looked.groups]
        first = rng.choice((0, 0, 1))
        assert native.lay_out(run, Copies(looked, first, len(units), targets)) is not None
        wanted = [
            Target(topic, queue_id % queues) for topic, queue_id in map(looked.groups.__getitem__, looked.group[first:])
        ]
        [(begin, entries, end)] = run.offers()
        assert (begin, end, run.message_count) == (run.start, run.end_offset, len(wanted))
        assert [entry[:2] for entry in entries] == wanted
        is_together = len(set(targets)) == len(targets) and set(wanted) == set(targets)
        assert isinstance(entries, EntryColumns) == is_together
        if is_together:
            assert isinstance(entries, EntryColumns)
            found = {each.key: each for each in entries.by_queue()}
            for key in set(wanted):
                own = [entry for entry in entries if entry[:2] == key]
                assert (found[key].first, found[key].is_dense) == (own[0][2], True)
                assert bytes(found[key].units) == b"".join(UNIT.pack(*entry[3:6]) for entry in own)
                assert (found[key].codes, found[key].last_physical) == ([entry[5] for entry in own], own[-1][3])
                assert entries.last_offsets()[key] == own[-1][2] == run.next_offsets[key] - 1


def test_a_run_without_room_takes_none_of_them() -> None:
    content, units = log_of(Random(3), 4, is_ordinary=True)
    for again in engines():
        looked = again.look(content, units, range(4), NAMES)
        copies = Copies(looked, 0, 4, looked.groups)
        run = Run(0, copies.size_bytes - 1, 1 << 30, 5, TakenOffsets({}), False)
        assert again.lay_out(run, copies) is None
        assert (run.records, entries_of(run), dict(run.next_offsets), run.end_offset) == ([], [], {}, 0)
        run = Run(0, copies.size_bytes, 1 << 30, 5, TakenOffsets({}), False)
        assert again.lay_out(run, copies) is not None
        assert run.room == 0


def test_nothing_is_read_behind_the_bytes() -> None:
    """They end where a page ends behind which nothing may be read: who does ends the process."""
    native = NativeAgain(native_library(), HOST, MOST_BYTES)
    pages = mmap.mmap(-1, 3 * mmap.PAGESIZE)
    begin, end = ctypes.addressof(ctypes.c_char.from_buffer(pages)), 2 * mmap.PAGESIZE
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(begin + end), mmap.PAGESIZE, 0) == 0
    rng = Random(7)
    for _ in range(400):
        content, units = log_of(rng, 1, is_ordinary=True)
        data = bytearray(content)
        data[rng.choice((0, 3, 4, 36, 39, 84, 87, len(data) - 3, rng.randrange(len(data))))] = rng.randrange(256)
        part = bytes(data[: rng.choice((len(data), len(data) - 21, rng.randrange(1, len(data))))])
        pages[end - len(part) : end] = part
        looked = native.look(part, [(units[0][0], len(part), 0)], [4], NAMES)
        looked.held[0].content = ctypes.cast(begin + end - len(part), ctypes.c_char_p)
        native._look(ctypes.addressof(looked.held[0]))


def test_the_check_at_load_finds_a_library_that_copies_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    library = native_library()
    assert again_agrees(library)
    lay_out = NativeAgain.lay_out

    def in_another_queue(self: NativeAgain, run: Run, copies: Copies) -> object:
        return lay_out(
            self, run, copies._replace(targets=[(topic, queue_id + 1) for topic, queue_id in copies.looked.groups])
        )

    monkeypatch.setattr(NativeAgain, "lay_out", in_another_queue)
    assert not again_agrees(library)
