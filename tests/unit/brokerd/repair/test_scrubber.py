"""The scrubber finds what a disk has changed, wherever it is, and the log's bytes come from a replica that has them."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest

from brokerd.repair import log_range
from brokerd.repair.ledger import DamageLedger
from brokerd.repair.settings import ScrubSettings
from brokerd.store.queues.consume_queue import DamagedUnits
from brokerd.store.scrub import progress
from brokerd.store.store_reads import Suspicion
from remoting.errors import CorruptedFile, StorageError
from remoting.record.layout import Field
from remoting.record.properties import tags_code
from tests.support.disks import PAGE_BYTES
from tests.unit.brokerd.repair.brokers import Broker, make_group, take_index
from tests.unit.brokerd.store.stores import SEGMENT_BYTES, SETTINGS, bodies, draft, log_bytes, open_store, put, sync

# Every field whose change its record shows without a checksum over the whole of it
COVERED = [
    (Field.SIZE, 3),
    (Field.SIZE, 0),
    (Field.MAGIC, 2),
    (Field.BODY_CRC, 0),
    (Field.PHYSICAL_OFFSET, 7),
    (Field.SYS_FLAG, 3),
    (Field.BODY_LENGTH, 3),
]


def places(broker: Broker, queue_id: int = 0) -> list[int]:
    return [unit[0] for unit in broker.store.read_units("TopicA", queue_id, 0, 1000)]


async def assert_is_repaired(broker: Broker, sound: bytes, ranges: int = 1) -> None:
    await broker.round()
    assert log_bytes(broker.store) == sound
    assert broker.files("commitlog")["commitlog/" + "0" * 20] == sound[:SEGMENT_BYTES]  # it is durable
    assert (broker.ledger.ranges_found, broker.ledger.ranges_repaired) == (ranges, ranges)
    assert not broker.ledger.unrepaired


@pytest.mark.parametrize("name", ["m", "r1"])
@pytest.mark.parametrize(("field", "byte"), COVERED)
@pytest.mark.parametrize("which", [0, 3, -1])
async def test_a_flip_in_a_field_is_repaired_in_place(name: str, field: Field, byte: int, which: int) -> None:
    group = make_group()
    broker = next(each for each in group if each.name == name)
    sound = log_bytes(broker.store)
    broker.rot(places(broker)[which] + field.at + byte, 4)
    assert log_bytes(broker.store) != sound
    await broker.round()
    assert log_bytes(broker.store) == sound
    assert broker.ledger.ranges_repaired == 1
    assert [bodies(broker.store, queue_id=each) for each in (0, 1)] == [
        bodies(group[2].store, queue_id=each) for each in (0, 1)
    ]


@pytest.mark.parametrize(("byte", "bit"), [(3, 5), (2, 3), (1, 0), (4, 1), (100, 2)])
async def test_a_flip_in_the_last_record_of_the_log_is_repaired(byte: int, bit: int) -> None:
    group = make_group()
    sound = log_bytes(group[0].store)
    group[0].rot(max(places(group[0], 0)[-1], places(group[0], 1)[-1]) + byte, bit)
    await group[0].round()
    assert log_bytes(group[0].store) == sound
    assert (group[0].ledger.ranges_found, group[0].ledger.ranges_repaired) == (1, 1)


async def test_a_flip_in_a_body_is_repaired_on_disk() -> None:
    group = make_group()
    sound = log_bytes(group[0].store)
    group[0].rot(places(group[0])[5] + Field.BODY_LENGTH.at + 8)
    await assert_is_repaired(group[0], sound)


async def test_a_filler_is_repaired() -> None:
    group = make_group()
    sound = log_bytes(group[1].store)
    last = max(at for queue_id in (0, 1) for at in places(group[1], queue_id) if at < SEGMENT_BYTES)
    size = int.from_bytes(sound[last : last + 4], "big")
    group[1].rot(last + size + 5)
    await assert_is_repaired(group[1], sound)


async def test_many_records_in_a_row_are_repaired() -> None:
    group = make_group()
    sound = log_bytes(group[0].store)
    for at in (*places(group[0], 0)[3:6], *places(group[0], 1)[3:6]):
        group[0].rot(at + Field.MAGIC.at)
    await assert_is_repaired(group[0], sound)


async def test_a_sector_of_zeros_is_written_again() -> None:
    group = make_group()
    sound = log_bytes(group[1].store)
    file = group[1].disk.files[group[1].log_path(0)[0]]
    for image in (file.seen, file.platter):
        image.write(512, bytes(512))
    await assert_is_repaired(group[1], sound)


LARGE = replace(SETTINGS, segment_size_bytes=8 * PAGE_BYTES)


@pytest.mark.parametrize("pages", [[1], [0], [2, 3, 4], [7], [5, 6, 7]])
@pytest.mark.parametrize("answer_bytes", [500, 1 << 16])
async def test_what_cannot_be_read_is_written_again(
    pages: list[int], answer_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a peer's answer, or the log's last record before a filler, ends within a bad page."""
    monkeypatch.setattr(log_range, "MOST_ANSWER_BYTES", answer_bytes)
    group = make_group(messages=300, settings=LARGE)
    broker, sound = group[1], log_bytes(group[1].store)
    assert len(sound) > LARGE.segment_size_bytes
    for page in pages:
        broker.disk.spoil_page(broker.log_path(0)[0], page * PAGE_BYTES)
    await broker.round()
    assert not broker.ledger.unrepaired
    assert broker.ledger.ranges_repaired
    assert log_bytes(broker.store) == sound
    assert broker.files("commitlog")[broker.log_path(0)[0]] == sound[: LARGE.segment_size_bytes]


async def test_a_consumer_who_meets_what_cannot_be_read_has_it_repaired_at_once() -> None:
    group = make_group(messages=700, settings=LARGE)  # files at the end are mapped
    broker = group[1]
    broker.disk.spoil_page(broker.log_path(0)[0], PAGE_BYTES)
    broker.settings.change(ScrubSettings(bytes_per_s=0))
    at = next(n for n, place in enumerate(places(broker)) if place > PAGE_BYTES)
    with pytest.raises(CorruptedFile, match="another replica"):
        broker.store.read_messages("TopicA", 0, at, 1, 1 << 16)
    for _ in range(10):
        with contextlib.suppress(CorruptedFile):
            broker.store.read_messages("TopicA", 0, at, 1, 1 << 16)
        await broker.scrubber.step()
    assert len(broker.store.read_messages("TopicA", 0, at, 1, 1 << 16).records) == 1


async def test_damage_that_a_peer_has_as_well_comes_from_another_one() -> None:
    group = make_group()
    sound = log_bytes(group[0].store)
    for broker in group[:2]:
        broker.rot(places(broker)[7] + Field.BODY_LENGTH.at + 6)
    await assert_is_repaired(group[0], sound)
    await assert_is_repaired(group[1], sound)


async def test_while_a_group_is_upgraded_those_that_know_the_request_are_asked() -> None:
    group = make_group()
    sound = log_bytes(group[0].store)
    group[0].rot(places(group[0])[7] + Field.BODY_LENGTH.at + 6)
    group[0].peers.old = {"r1", "r2"}
    await group[0].round()
    (known,) = group[0].ledger.unrepaired.values()
    assert known.reason.count("not supported") == 2
    group[0].peers.old = {"r1"}
    group[0].time_s += 60
    await group[0].scrubber.step()
    assert log_bytes(group[0].store) == sound


@pytest.mark.parametrize("closed", [True, False])
async def test_a_disk_that_does_not_take_the_repair_is_told(closed: bool) -> None:
    group = make_group()
    broker = group[0]
    failures: list[StorageError] = []
    broker.store.failure_listeners.append(failures.append)
    broker.rot(places(broker)[7 if closed else -1] + Field.BODY_LENGTH.at + 6)
    del broker.peers.servers["r2"]
    broker.disk.fail_sync_at(1)
    await broker.round()
    assert "cannot sync" in next(iter(broker.ledger.unrepaired.values())).reason
    assert bool(failures) is not closed  # what was appended to the current file may be lost as well
    if closed:
        unsound = broker.files("commitlog")  # what readers see is right, what is on the platter is not
        broker.time_s += 60
        await broker.scrubber.step()
        assert not broker.ledger.unrepaired
        assert broker.files("commitlog") != unsound


async def test_what_nobody_has_stays_damaged_is_told_and_is_asked_for_again() -> None:
    group = make_group(names=("m", "r1"))
    sound = log_bytes(group[0].store)
    at = places(group[0])[7]
    for broker in group:
        broker.rot(at + Field.BODY_LENGTH.at + 6)
    await group[0].round()
    (known,) = group[0].ledger.unrepaired.values()
    assert known.range.start == at
    assert "damaged here, too" in known.reason
    # Only that record cannot be read.
    found = group[0].store.read_messages("TopicA", 0, 0, 32, 1 << 20)
    assert found.next_offset == 7
    assert len(found.records) == 7
    group[1].rot(at + Field.BODY_LENGTH.at + 6)  # somebody restored the file
    group[0].time_s += 60
    await group[0].scrubber.step()
    assert log_bytes(group[0].store) == sound
    assert not group[0].ledger.unrepaired


async def test_a_reader_that_meets_damage_gets_it_a_moment_later() -> None:
    group = make_group()
    broker = group[0]
    sound = bodies(broker.store)
    broker.settings.change(ScrubSettings(bytes_per_s=0))
    broker.rot(places(broker)[4] + Field.BODY_LENGTH.at + 9)
    assert broker.store.read_messages("TopicA", 0, 0, 32, 1 << 20).next_offset == 4
    await broker.scrubber.step()
    assert bodies(broker.store) == sound
    assert broker.ledger.ranges_repaired == 1


@pytest.mark.parametrize("byte", range(20))
@pytest.mark.parametrize("unit", [0, 3, 29])
async def test_a_flip_in_a_unit_is_put_right_from_the_log(byte: int, unit: int) -> None:
    group = make_group()
    broker = group[0]
    sound = broker.files("consumequeue")
    path = sorted(sound)[unit // 16]
    broker.rot_file(path, unit % 16 * 20 + byte, 2)
    await broker.round()
    assert broker.files("consumequeue") == sound
    assert broker.ledger.units_repaired == 1
    assert broker.ledger.ranges_found == 0


def restarted(broker: Broker, *, covered: bool = True) -> Broker:
    """The same broker with nothing in memory, whose round does not run; of an earlier release without what covers the units."""
    broker.store.close()
    if not covered:
        broker.disk.remove("queueChecks")
    broker.disk.kill()
    fresh = Broker(broker.name, broker.disk, open_store(broker.disk), broker.peers)
    fresh.settings.change(ScrubSettings(bytes_per_s=0))
    return fresh


UNITS = "consumequeue/TopicA/0/" + "0" * 20


async def test_a_reader_that_meets_a_wrong_unit_has_it_put_right() -> None:
    group = make_group()
    sound = bodies(group[1].store)
    fresh = restarted(group[0], covered=False)
    fresh.rot_file(UNITS, 4 * 20 + 6, 3)
    assert fresh.store.read_messages("TopicA", 0, 0, 32, 1 << 20).next_offset == 4
    await fresh.scrubber.step()
    assert bodies(fresh.store) == sound
    assert (fresh.ledger.units_repaired, fresh.ledger.ranges_found) == (1, 0)


@pytest.mark.parametrize("byte", range(20))
async def test_units_are_not_believed_that_do_not_pass_their_check(byte: int) -> None:
    """A consumer of one tag skips what its unit says is of another: nobody would ever look at that record."""
    group = make_group()
    code = tags_code(b"TAGS\x01t1\x02")
    sound = group[1].store.read_messages("TopicA", 0, 0, 32, 1 << 20, [code])
    assert sound.records
    fresh = restarted(group[0])
    before = fresh.files("consumequeue"), fresh.shown("queueChecks")
    fresh.rot_file(UNITS, 10 * 20 + byte, 5)
    with pytest.raises(DamagedUnits):
        fresh.store.read_messages("TopicA", 0, 0, 32, 1 << 20, [code])
    await fresh.scrubber.step()
    assert fresh.store.read_messages("TopicA", 0, 0, 32, 1 << 20, [code]) == sound
    assert (fresh.files("consumequeue"), fresh.shown("queueChecks")) == before
    assert (fresh.ledger.units_repaired, fresh.ledger.ranges_found) == (1, 0)


@pytest.mark.parametrize("byte", range(8))
async def test_a_check_that_rots_is_made_again(byte: int) -> None:
    group = make_group()
    sound = bodies(group[1].store)
    fresh = restarted(group[0])
    before = fresh.shown("queueChecks")
    fresh.rot_file(UNITS.replace("consumequeue", "queueChecks"), byte, 2)
    with contextlib.suppress(DamagedUnits):  # half of these flips leave nothing to say
        bodies(fresh.store)
    await fresh.scrubber.step()
    assert bodies(fresh.store) == sound
    if byte > 3:
        assert fresh.shown("queueChecks") == before


async def test_a_round_covers_what_an_earlier_release_wrote() -> None:
    group = make_group(messages=300)
    before = group[0].shown("queueChecks")
    fresh = restarted(group[0], covered=False)
    fresh.settings.change(ScrubSettings())
    await fresh.round()
    after = fresh.shown("queueChecks")
    assert {path: after.get(path) for path in before if not path.endswith("2880")} == {
        path: content for path, content in before.items() if not path.endswith("2880")
    }
    assert fresh.ledger == DamageLedger()


async def test_a_start_after_a_crash_is_not_fooled_by_a_unit_that_rots() -> None:
    for unit in range(30):
        group = make_group()
        sound = bodies(group[1].store)
        group[0].rot_file(f"consumequeue/TopicA/0/{unit // 16 * 320:020d}", unit % 16 * 20 + 10, 3)
        group[0].disk.kill()
        fresh = Broker("m", group[0].disk, open_store(group[0].disk), group[0].peers)
        with contextlib.suppress(DamagedUnits):  # the start did not look at that one
            bodies(fresh.store)
        await fresh.scrubber.step()
        assert bodies(fresh.store) == sound, unit


@pytest.mark.parametrize("at", [7, 10])
@pytest.mark.parametrize("messages", [1, 2, 4, 6])
async def test_a_start_after_a_crash_does_not_begin_a_queue_behind_a_first_unit_that_rots(
    messages: int, at: int
) -> None:
    """It was taken for a queue of which nothing had been durable, and began again behind what is not dispatched twice."""
    group = make_group(messages)
    sound = bodies(group[1].store)
    group[0].rot_file(f"consumequeue/TopicA/0/{0:020d}", at, 3)
    group[0].disk.kill()
    fresh = Broker("m", group[0].disk, open_store(group[0].disk), group[0].peers)
    with contextlib.suppress(DamagedUnits):
        bodies(fresh.store)
    await fresh.scrubber.step()
    assert bodies(fresh.store) == sound


async def test_progress_survives_a_restart() -> None:
    group = make_group()
    broker = group[0]
    broker.settings.change(ScrubSettings(bytes_per_s=1))
    broker.scrubber._slice_bytes = 1000
    await broker.scrubber.step()
    await broker.scrubber.step()
    offset = broker.scrubber.progress.offset
    assert 0 < offset < broker.scrubber.limit
    broker.scrubber._save()
    broker.make_scrubber()
    assert broker.scrubber.progress.offset == offset
    await broker.scrubber.step()
    assert broker.scrubber.progress.offset > offset


async def test_a_log_that_is_cut_and_goes_on_otherwise_is_not_taken_for_damaged() -> None:
    group = make_group()
    broker = group[1]  # a replica
    broker.settings.change(ScrubSettings(bytes_per_s=1))
    broker.scrubber._slice_bytes = 5000
    await broker.scrubber.step()
    await broker.scrubber.step()
    cut, before = places(broker)[4], broker.scrubber.progress.offset
    assert cut < before
    broker.rot(places(broker)[-1] + Field.MAGIC.at)
    broker.scrubber.suspect(Suspicion(places(broker)[-1]))
    saved = replace(broker.scrubber.progress)
    broker.store.truncate(cut)
    assert broker.scrubber.progress.offset == cut
    broker.store.set_appendable(True)
    for n in range(60):
        put(broker.store, draft(b"another history %03d" % n))
    sync(broker.store)
    await broker.round()
    assert broker.ledger == DamageLedger()
    # The same where the cut was the last thing that the process did.
    broker.disk.replace_bytes("scrub", progress.encode(saved))
    broker.make_scrubber()
    await broker.round()
    assert broker.ledger == DamageLedger()


async def test_rounds_follow_one_another_after_their_time() -> None:
    group = make_group()
    broker = group[0]
    await broker.round()
    await broker.scrubber.step()
    assert broker.scrubber.progress.ended_ms >= 0
    broker.clock.now_ms += broker.settings.value.round_ms
    await broker.scrubber.step()
    assert broker.scrubber.progress.ended_ms == -1


async def test_what_is_not_confirmed_is_left_alone() -> None:
    group = make_group()
    broker = group[0]
    broker.scrubber.suspect(Suspicion(broker.store.commitlog.end_offset + 5))
    broker.scrubber.suspect(Suspicion(-4))
    await broker.scrubber.step()
    assert broker.ledger.ranges_found == 0


# -- with a checksum over whole records

SEALED = replace(SETTINGS, record_checksums=True)


@pytest.mark.parametrize("name", ["m", "r2"])
@pytest.mark.parametrize("what", [b"TopicA", b"TAGS", b"t2", b"U0017", b"k17"])
async def test_a_flip_in_what_is_beside_the_body_is_repaired(name: str, what: bytes) -> None:
    group = make_group(settings=SEALED)
    broker = next(each for each in group if each.name == name)
    sound = log_bytes(broker.store)
    broker.rot(sound.index(what, places(broker, 1)[8]) + 1)
    await assert_is_repaired(broker, sound)


@pytest.mark.parametrize("field", [each for each in Field if each is not Field.BORN_HOST])
async def test_a_flip_in_any_field_is_repaired(field: Field) -> None:
    group = make_group(settings=SEALED)
    sound = log_bytes(group[1].store)
    group[1].rot(places(group[1])[6] + field.at + field.size - 1)
    await assert_is_repaired(group[1], sound)


# -- the index of keys


@pytest.mark.parametrize("byte", range(20))
async def test_a_flip_in_an_item_of_the_index_has_it_made_again(byte: int) -> None:
    group = make_group()
    broker = group[0]
    sound = broker.files("index")
    first = sorted(sound)[1]
    broker.rot_file(first, 40 + 4 * 16 + 20 * 5 + byte, 1)
    await broker.round()
    assert broker.ledger.index_repaired == 1
    take_index(broker.store)
    broker.store.checkpoint(closing=True)
    assert broker.files("index") == sound


@pytest.mark.parametrize("byte", [3, 12, 20, 31, 35, 39])
async def test_a_flip_in_the_header_of_a_full_file_of_the_index_has_it_made_again(byte: int) -> None:
    group = make_group()
    broker = group[0]
    sound = broker.files("index")
    broker.rot_file(sorted(sound)[1], byte, 1)
    await broker.round()
    take_index(broker.store)
    broker.store.checkpoint(closing=True)
    assert broker.files("index") == sound
    assert broker.ledger.index_repaired == 1


@pytest.mark.parametrize("bit", range(5))
async def test_a_flip_in_a_slot_of_the_index_has_it_made_again(bit: int) -> None:
    group = make_group()
    broker = group[0]
    sound = broker.files("index")
    first = sorted(sound)[0]
    used = next(at for at in range(43, 40 + 4 * 16, 4) if sound[first][at])  # an unused one hides nothing
    broker.rot_file(first, used, bit)
    await broker.round()
    take_index(broker.store)
    broker.store.checkpoint(closing=True)
    assert broker.files("index") == sound
    assert broker.ledger.index_repaired == 1


@pytest.mark.parametrize("which", [0, 1, 2, 11, 12, 23, 24, 40])
async def test_an_index_that_was_made_while_a_record_had_lost_its_keys_gets_them(which: int) -> None:
    """A file of the index that begins behind the record does not have what is missing in front of it."""
    group = make_group(settings=SEALED)
    broker = group[0]
    sound, log = broker.files("index"), log_bytes(broker.store)
    place = sorted(places(broker, 0) + places(broker, 1))[which]
    for name in (b"UNIQ_KEY", b"KEYS"):
        broker.rot(log.index(name, place))
    assert broker.store.index is not None
    broker.store.index.restart(0)  # as a start does that knows nothing of it
    take_index(broker.store)
    for _ in range(3):  # the first one puts the record right
        await broker.round()
        take_index(broker.store)
    broker.store.checkpoint(closing=True)
    assert broker.files("index") == sound


async def test_nothing_is_written_where_nothing_is_wrong() -> None:
    for broker in make_group(messages=200, settings=SEALED):
        before = {path: file.seen.read(0, file.seen.size) for path, file in broker.disk.files.items()}
        await broker.round()
        after = {path: file.seen.read(0, file.seen.size) for path, file in broker.disk.files.items()}
        assert {path for path in after if after[path] != before.get(path)} == {"scrub"}
        assert broker.ledger == DamageLedger()
        assert broker.scrubber.read_bytes > 20_000
