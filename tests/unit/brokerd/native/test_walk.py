"""Logs that C takes apart give what they give in Python, whatever their bytes are; what is asked of the entries is answered
alike, and nothing beside the bytes is looked at."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import pytest

from brokerd.delay.levels import DEFAULT_DELAYS, code_rules
from brokerd.store.log import native_derive
from brokerd.store.log.derive import NO_RULES, CodeRules, Derived, Entry, RecordShape, derive, derive_range
from brokerd.store.log.entry_columns import EntryColumns, last_offsets, of_topic
from brokerd.store.log.native_derive import NativeDeriver, derive_agrees
from brokerd.store.queues.consume_queues import ConsumeQueues
from brokerd.store.queues.queue_offsets import QueueOffsets
from brokerd.timers.codes import CODE_RULES
from remoting.names import SCHEDULE_TOPIC, TIMER_TOPIC
from remoting.record.checksum import TAIL_BYTES, reserve, seal
from remoting.record.codec import encode_filler, encode_record
from remoting.record.hosts import pack_host
from remoting.record.layout import FILLER_BYTES
from remoting.record.walk import Stop
from tests.support.disks import MemoryDisk
from tests.support.native_library import native_library
from tests.support.page_end import PageEnd
from tests.unit.brokerd.store.stores import SETTINGS

HOSTS = (pack_host("10.0.0.1", 10911), pack_host("fe80::1", 10911))
TOPICS = (
    *(b"T", b"Orders", b"Orders", b"T" * 127, b"T" * 128, b"%RETRY%" + b"g" * 248, b"\xff\xfe", b"a/b", b"\xc3\xa9"),
    *(TIMER_TOPIC.encode(), SCHEDULE_TOPIC.encode()),
)
PROPERTIES = (
    *(
        b"",
        b"TAGS\x01red\x02",
        b"TAGS\x01",
        b"TAGS\x01\x02",
        b"TAGS\x01a\x02TAGS\x01b",
        b"K\x01TAGS\x01x\x02",
        b"\x02TAGS\x01z",
    ),
    *(
        b"K\x01v\x02TAGS\x01\xc3\xa9\xf0\x9f\x98\x80\x02",
        b"TAGS\x01\xff\x02",
        b"XTAGS\x01q\x02",
        b"TAG",
        b"\x02\x02",
        b"TAGS\x01t",
    ),
    *(b"TIMER_DUE_MS\x011700000000123\x02", b"TIMER_OUT_MS\x01500\x02DELAY\x013\x02", b"DELAY\x0199\x02TAGS\x01d\x02"),
)
RULES: CodeRules = {**code_rules(DEFAULT_DELAYS), **CODE_RULES, "\udcff\udcfe": lambda properties, _: len(properties)}
FILE_BYTES = 6000


class Log(NamedTuple):
    """Files of a log, the last of which is not full; the first one begins at the offset."""

    content: bytes
    offset: int


def record(rng: Random, offset: int, queue_offset: int) -> bytes:
    """A record as logs have them, or nearly."""
    rare = rng.random
    sealed = rare() < 0.6
    properties = rng.choice(PROPERTIES) if rare() < 0.95 else b"z\x01\0\x02"
    encoded = encode_record(
        topic=rng.choice(TOPICS) if rare() < 0.98 else rng.choice((b"", b"a\0")),
        queue_id=rng.choice((0, 0, 0, 1, 5, -1, (1 << 31) - 1)),
        queue_offset=queue_offset if rare() < 0.95 else rng.choice((0, -1, 5, 1 << 40, (1 << 63) - 1)),
        physical_offset=offset,
        body=rng.randbytes(rng.choice((0, 1, 15, 64, 400))),
        properties=reserve(properties) if sealed else properties,
        born_timestamp_ms=rng.getrandbits(41),
        born_host=rng.choice(HOSTS),
        store_timestamp_ms=rng.choice((rng.getrandbits(41), -3)),
        store_host=rng.choice(HOSTS),
        sys_flag=rng.choice((0, 0, 0, 1, 4, 8, 12, 0x140)),
    )
    return seal(encoded) if sealed else encoded


def log_of(rng: Random, count: int) -> Log:
    begin = rng.choice((0, FILE_BYTES, FILE_BYTES * (1 << 25)))
    content = b""
    for number in range(count):
        rest = FILE_BYTES - len(content) % FILE_BYTES
        each = record(rng, begin + len(content), number // 3)
        if len(each) + FILLER_BYTES > rest or (rest < FILE_BYTES and rng.random() < 0.05):
            filler = encode_filler(rest)
            content += filler + rng.randbytes(rest - len(filler))
            each = record(rng, begin + len(content), number // 3)
        content += each
    return Log(content, begin)


def changed(rng: Random, content: bytes) -> bytes:
    """Damage of some kind: bits, fields that decide what is read, sectors of zeros, bytes that are gone."""
    damaged = bytearray(content)
    at = rng.randrange(len(damaged))
    match rng.randrange(5):
        case 0:
            damaged[at] ^= 1 << rng.randrange(8)
        case 1:
            damaged[at : at + 4] = rng.choice((-1, 0, 91, 1 << 30, -(1 << 31))).to_bytes(4, "big", signed=True)
        case 2:
            damaged[at : at + 512] = bytes(len(damaged[at : at + 512]))
        case 3:
            del damaged[at:]
        case _:
            damaged[at : at + rng.randrange(1, 40)] = b""
    return bytes(damaged)


def seen(derived: Derived) -> tuple[object, ...]:
    return (list(derived.entries), *derived[1:])


def shapes(rng: Random) -> Sequence[RecordShape]:
    shape = RecordShape(FILE_BYTES, rng.choice((FILE_BYTES - FILLER_BYTES, 400)))
    return (shape, shape.checked())


@pytest.mark.parametrize("seed", range(16))
def test_both_derive_the_same_of_logs_whole_and_damaged(seed: int) -> None:
    rng, native = Random(seed), NativeDeriver(native_library())
    stops = []
    for _ in range(25):
        log = log_of(rng, rng.choice((1, 3, 12, 50)))
        for data in (log.content, *(changed(rng, log.content) for _ in range(4))):
            for shape in shapes(rng):
                for rules in (NO_RULES, RULES):
                    wanted = derive(data, log.offset, shape, rules)
                    assert seen(native(data, log.offset, shape, rules)) == seen(wanted), (data.hex(), log.offset)
                stops.append((wanted.stop, bool(wanted.entries)))
    assert set(stops) >= {(Stop.END, True), (Stop.PARTIAL, True), (Stop.DAMAGED, True), (Stop.DAMAGED, False)}


def test_both_derive_the_same_of_a_log_that_ends_at_any_byte_and_with_any_bit_changed() -> None:
    rng, native = Random(3), NativeDeriver(native_library())
    log = log_of(rng, 5)
    last = RecordShape(FILE_BYTES, FILE_BYTES - FILLER_BYTES)
    for end in range(len(log.content) + 1):
        for shape in (last, last.checked()):
            data = log.content[:end]
            assert seen(native(data, log.offset, shape, RULES)) == seen(derive(data, log.offset, shape, RULES))
    for bit in range(8 * len(log.content)):
        damaged = bytearray(log.content)
        damaged[bit // 8] ^= 1 << bit % 8
        shape = last.checked() if bit % 3 else last
        assert seen(native(damaged, log.offset, shape, RULES)) == seen(derive(damaged, log.offset, shape, RULES)), bit


@pytest.mark.parametrize("seed", range(4))
def test_both_derive_the_same_of_records_that_a_liar_sealed(seed: int) -> None:
    """Checksums fit, nothing else needs to."""
    rng, native = Random(seed), NativeDeriver(native_library())
    shape = RecordShape(FILE_BYTES, FILE_BYTES - FILLER_BYTES, check_content=True)
    entries = 0
    for _ in range(400):
        part = bytearray(record(rng, 0, 1)[:-TAIL_BYTES])
        at = rng.choice((4, 36, 84, 88, 96, 100, len(part) - 20))
        part[at : at + rng.choice((1, 2, 4))] = rng.randbytes(rng.choice((1, 2, 4)))
        part[:4] = (len(part) + TAIL_BYTES).to_bytes(4)
        data = seal(bytes(part) + bytes(TAIL_BYTES)) + record(rng, len(part) + TAIL_BYTES, 2)
        wanted = derive(data, 0, shape, RULES)
        assert seen(native(data, 0, shape, RULES)) == seen(wanted), data.hex()
        entries += len(wanted.entries)
    assert entries > 20


@pytest.mark.parametrize("seed", range(4))
def test_a_range_read_in_chunks_gives_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brokerd.store.log.derive._MANY_BYTES", 0)
    rng, native = Random(seed), NativeDeriver(native_library())
    for _ in range(8):
        begin, content = log_of(rng, 60)[::-1]
        data = changed(rng, content) if rng.random() < 0.5 else content

        def read(offset: int, length: int, data: bytes = data, begin: int = begin) -> bytes:
            at = offset - begin
            return data[at : min(at + length, at // FILE_BYTES * FILE_BYTES + FILE_BYTES)]

        for chunk in (100, 700, 1 << 20):
            plain = RecordShape(FILE_BYTES, FILE_BYTES - FILLER_BYTES, check_content=True)
            wanted, found = (
                [seen(each) for each in derive_range(read, begin, begin + len(data), shape, chunk, RULES)]
                for shape in (plain, plain._replace(deriver=native))
            )
            assert found == wanted


def in_columns(entries: Sequence[Entry], rng: Random) -> EntryColumns:
    """Entries of whole records of their sizes, as C derives them; each is the one of its record."""
    pieces, at = [], 0
    for topic, queue_id, queue_offset, _, body_length, _, _, _ in entries:
        pieces.append(
            encode_record(
                topic=topic.encode(),
                queue_id=queue_id,
                queue_offset=queue_offset,
                physical_offset=at,
                body=bytes(body_length),
                properties=rng.choice(PROPERTIES),
                born_timestamp_ms=1,
                born_host=HOSTS[0],
                store_timestamp_ms=2,
                store_host=HOSTS[0],
            )
        )
        at += len(pieces[-1])
    found = NativeDeriver(native_library())(b"".join(pieces), 0, RecordShape(1 << 30, 1 << 20), NO_RULES).entries
    assert isinstance(found, EntryColumns)
    assert len(found) == len(entries)
    return found


def untidy(rng: Random) -> list[Entry]:
    """Entries of several queues; now and then a number is missing, comes again, begins at 0 again, or is none."""
    following: dict[tuple[str, int], int] = {}
    entries: list[Entry] = []
    oddness = rng.choice((0, 0, 0.05, 0.5))
    for _ in range(rng.randrange(60)):
        key = (rng.choice(("A", "B", "C" * 255, "D/E", "..")), rng.choice((0, 0, 1, -1)))
        number = following.get(key, rng.choice((0, 0, 7, -2)))
        if rng.random() < oddness:
            number = max(-1, number + rng.choice((-3, -1, 1, 4, 40, -number)))
        following[key] = number + 1
        entries.append((*key, number, 0, rng.choice((0, 5)), 0, 0, 1))
    return entries


@pytest.mark.parametrize("seed", range(12))
def test_queues_become_the_same_of_columns_as_of_entries_one_by_one(seed: int) -> None:
    rng = Random(seed)
    for _ in range(30):
        rounds = [in_columns(untidy(rng), rng) for _ in range(2)]
        states = []
        for as_given in (True, False):
            queues, arrivals = ConsumeQueues(MemoryDisk(), SETTINGS), dict[tuple[str, int], list[int]]()
            for entries in rounds:
                queues.apply(entries if as_given else list(entries), arrivals)
            table = {
                key: (bytes(each.tail), each.first_offset, each.max_offset, each.last_physical, each.dirty)
                for key, each in queues.table.items()
            }
            dirty = sorted(each.directory for each in queues._dirty)
            states.append((table, arrivals, dirty, queues.buffered_units, queues.refused_entries))
        assert states[0] == states[1]


def test_what_is_asked_of_columns_is_what_the_entries_say() -> None:
    rng = Random(5)
    for _ in range(60):
        columns = in_columns(untidy(rng), rng)
        entries = list(columns)
        assert [columns[n] for n in range(-len(entries), len(entries))] == 2 * entries
        assert columns[1:7:2] == entries[1:7:2]
        assert bool(columns) is bool(entries)
        for before in (0, 1, 500, 1 << 40, *(entry[3] for entry in entries[:3])):
            assert last_offsets(columns, before) == last_offsets(entries, before)
        for topic in ("A", "none"):
            assert list(of_topic(columns, topic)) == [entry for entry in entries if entry[0] == topic]
        numbers = QueueOffsets(), QueueOffsets()
        numbers[0].take(columns)
        numbers[1].take(entries)
        assert numbers[0].table == numbers[1].table
    with pytest.raises(IndexError):
        columns[len(columns)]


def test_nothing_is_read_behind_the_bytes() -> None:
    """They end where a page ends behind which nothing may be read: who does ends the process."""
    rng, page, native = Random(7), PageEnd(), NativeDeriver(native_library())
    walks = native._count, native._walk

    def at_page_end(call: ctypes._CFuncPtr, walk: int) -> int | None:
        told = native_derive._Walk.from_address(walk)
        told.data = ctypes.cast(place, ctypes.c_char_p)
        result: int | None = call(walk)
        return result

    native._count = lambda walk: at_page_end(walks[0], walk)  # type: ignore[arg-type]
    native._walk = lambda walk: at_page_end(walks[1], walk)  # type: ignore[arg-type]
    for _ in range(300):
        log = log_of(rng, 4)
        data = changed(rng, log.content)
        data = data[: rng.choice((len(data), rng.randrange(len(data) + 1)))]
        place = page.put(data)
        for shape in shapes(rng):
            assert seen(native(data, log.offset, shape, RULES)) == seen(derive(data, log.offset, shape, RULES))


def test_the_check_at_load_finds_a_library_that_derives_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    library = native_library()
    assert derive_agrees(library)
    monkeypatch.setattr(native_derive, "tags_code", lambda _: 0)
    assert not derive_agrees(library)
