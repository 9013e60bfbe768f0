"""The store as its users see it: what an append gives and refuses, what dispatch shows, what a cut takes away."""

from __future__ import annotations

import errno
from itertools import pairwise
from random import Random

import pytest

from brokerd.store.derived.dispatcher import Arrival
from brokerd.store.draft import Draft
from brokerd.store.log.derive import derive
from brokerd.store.run import Run
from brokerd.store.settings import StoreSettings
from brokerd.store.store import MessageStore
from remoting import codes
from remoting.errors import CorruptedFile, NotMaster, ProtocolError, RequestError, StorageError
from remoting.java_hash import java_hash
from remoting.record.checksum import TAIL_BYTES, without
from remoting.record.codec import decode_record
from remoting.record.properties import tags_code
from tests.support.disks import FaultyDisk, MemoryDisk
from tests.unit.brokerd.store.stores import (
    SEGMENT_BYTES,
    SETTINGS,
    SHAPE,
    STORE_HOST,
    Clock,
    bodies,
    dispatch_all,
    draft,
    log_bytes,
    log_entries,
    make_store,
    open_store,
    payloads,
    put,
    queue_contents,
    sync,
)


def assert_illegal(store: MessageStore, bad: Draft, rule: str) -> None:
    end = store.commitlog.end_offset
    with pytest.raises(RequestError, match=rule) as caught:
        store.append_messages([draft(), bad])
    assert caught.value.code == codes.MESSAGE_ILLEGAL
    assert store.commitlog.end_offset == end
    assert store.queue_offsets.next("TopicA", 0) == 0


# -- appending -----------------------------------------------------------------------------------------------------------------


def test_an_append_says_where_each_message_went() -> None:
    store = open_store(MemoryDisk())
    first, second, other = put(store, draft(b"a"), draft(b"b" * 50), draft(b"c", queue_id=7))
    assert (first.physical_offset, first.queue_offset, first.end_offset) == (0, 0, first.size)
    assert (second.physical_offset, second.queue_offset) == (first.end_offset, 1)
    assert (other.physical_offset, other.queue_offset) == (second.end_offset, 0)
    assert store.commitlog.end_offset == other.end_offset


def test_the_record_holds_every_field_of_the_draft() -> None:
    clock = Clock(1_700_000_000_123)
    store = open_store(MemoryDisk(), clock)
    given = draft(b"body", queue_id=3, tag="t", flag=7, sys_flag=1, reconsume_times=2, prepared_transaction_offset=99)
    result = put(store, given)[0]
    record = decode_record(store.read_physical(result.physical_offset) or b"")
    assert record.body == b"body"
    assert (record.topic, record.queue_id, record.flag, record.sys_flag) == ("TopicA", 3, 7, 1)
    assert (record.queue_offset, record.physical_offset, record.size) == (0, 0, result.size)
    assert (record.born_timestamp_ms, record.born_host) == (given.born_timestamp_ms, given.born_host)
    assert (record.store_timestamp_ms, record.store_host) == (1_700_000_000_123, STORE_HOST)
    assert (record.reconsume_times, record.prepared_transaction_offset) == (2, 99)
    assert without(record.properties) == given.properties


def test_prepared_and_rolled_back_messages_take_no_queue_offset() -> None:
    store = open_store(MemoryDisk())
    flags = [0, 4, 8, 12, 0]
    results = put(store, *(draft(sys_flag=flag) for flag in flags))
    assert [result.queue_offset for result in results] == [0, -1, 1, -1, 2]
    assert store.max_offset("TopicA", 0) == 3
    assert len(bodies(store)) == 3


def test_every_record_lies_in_one_file_at_the_place_it_names() -> None:
    rng, store = Random(5), open_store(MemoryDisk())
    for _ in range(80):
        put(store, *(draft(bytes(rng.randrange(1200))) for _ in range(rng.randrange(1, 5))))
    for start in store.commitlog.segment_starts():
        data = store.commitlog.read(start, SEGMENT_BYTES)
        assert derive(data, start, SHAPE.checked()).end_offset == start + len(data)
    entries = log_entries(store)
    assert [entry[2] for entry in entries] == list(range(len(entries)))
    assert all(entry[3] % SEGMENT_BYTES + entry[4] + 8 <= SEGMENT_BYTES for entry in entries)


def test_the_largest_record_fits_and_the_next_larger_is_refused() -> None:
    store = open_store(MemoryDisk())
    overhead = put(store, draft(b""))[0].size - TAIL_BYTES  # for the checksum of the largest there is no room
    largest = SETTINGS.largest_record_bytes
    result = put(store, draft(bytes(largest - overhead)))[0]
    assert (result.physical_offset, result.size) == (SEGMENT_BYTES, largest)
    with pytest.raises(RequestError, match=f"{largest + 1} bytes stored; at most {largest}"):
        put(store, draft(bytes(largest - overhead + 1)))
    assert store.commitlog.end_offset == SEGMENT_BYTES + largest
    assert len(store.commitlog.segment_starts()) == 2  # a refused record burns no file


def test_drafts_that_break_a_rule_are_refused_with_it() -> None:
    store = open_store(MemoryDisk(), settings=StoreSettings(segment_size_bytes=1 << 24))
    assert_illegal(store, draft(topic=""), "must have 1 to 255 bytes")
    assert_illegal(store, draft(topic="a/b"), "none of them '/'")
    assert_illegal(store, draft(topic="ü" * 128), "must have 1 to 255 bytes")
    assert_illegal(store, draft(queue_id=-1), "queue id -1 is negative")
    assert_illegal(store, draft(bytes(4 * 1024 * 1024 + 1)), "at most 4194304 are allowed")
    assert_illegal(store, draft(properties=b"P\1" + b"v" * 32767 + b"\2"), "at most 32767 are allowed")
    assert_illegal(store, draft(properties=b"P\1a\0b\2"), "a zero byte")
    assert_illegal(store, draft(born_host=b"abc"), "IPv4 or IPv6")
    put(store, draft(bytes(4 * 1024 * 1024), topic="%RETRY%" + "g" * 248))
    assert store.max_offset("%RETRY%" + "g" * 248, 0) == 1


def test_a_batch_stays_together_in_one_file_and_its_members_are_messages() -> None:
    store = open_store(MemoryDisk())
    put(store, draft(bytes(2000)))
    batch = [draft(body, tag=f"tag{n}") for n, body in enumerate(payloads(15, 100))]
    results = store.append_messages(batch, together=True)
    assert results[0].physical_offset == SEGMENT_BYTES
    assert [result.queue_offset for result in results] == list(range(1, 16))
    for before, after in pairwise(results):
        assert after.physical_offset == before.end_offset
    dispatch_all(store)
    for n, body in enumerate(payloads(15, 100)):
        found = store.read_messages("TopicA", 0, 1 + n, 1, 1, {java_hash(f"tag{n}")})
        record = decode_record(found.records[0])
        assert (record.body, record.property_map()["TAGS"]) == (body, f"tag{n}")


def test_a_batch_that_fits_into_no_file_is_refused_whole() -> None:
    store = open_store(MemoryDisk())
    with pytest.raises(RequestError, match="does not fit into one commitlog file"):
        store.append_messages([draft(bytes(1000))] * 4, together=True)
    assert store.commitlog.end_offset == 0
    assert len(store.append_messages([draft(bytes(1000))] * 4)) == 4


def test_store_times_never_go_back_whatever_the_clock_does() -> None:
    rng, clock = Random(1), Clock()
    store = open_store(MemoryDisk(), clock)
    for _ in range(100):
        clock.now_ms += rng.randrange(-5000, 5000)
        put(store, draft())
    times = [entry[6] for entry in log_entries(store)]
    assert times == sorted(times)
    assert len(set(times)) > 5


# -- refusing ------------------------------------------------------------------------------------------------------------------


def test_a_store_takes_messages_only_while_it_is_told_to() -> None:
    store = make_store(MemoryDisk())
    for loaded in (False, True):
        if loaded:
            store.load()
        with pytest.raises(NotMaster):
            store.append_messages([draft()])
    store.set_appendable(True)
    assert store.refusal is None
    put(store, draft())
    store.set_appendable(False)
    with pytest.raises(NotMaster):
        put(store, draft())
    assert store.commitlog.end_offset == store.dispatch_offset
    store.close()
    with pytest.raises(NotMaster, match="stopping"):
        store.append_messages([draft()])


def test_raising_a_refusal_again_and_again_does_not_grow_it() -> None:
    store = make_store(MemoryDisk())
    depths = set()
    for _ in range(5):
        with pytest.raises(NotMaster) as caught:
            store.append_messages([draft()])
        depths.add(len(caught.traceback))
    assert len(depths) == 1


def test_a_failed_disk_refuses_for_good_and_numbers_stay_dense() -> None:
    disk = FaultyDisk(Random(2))
    store = open_store(disk)
    put(store, draft(b"1"), draft(b"2"))
    disk.fail_write_at(1)
    with pytest.raises(StorageError):
        put(store, draft(b"3"))
    assert store.queue_offsets.next("TopicA", 0) == 2
    with pytest.raises(RequestError, match="disk failed"):
        put(store, draft(b"4"))
    store.set_appendable(False)
    store.set_appendable(True)
    store.set_full(False)
    with pytest.raises(RequestError, match="disk failed"):
        put(store, draft(b"5"))
    assert bodies(store) == [b"1", b"2"]
    store.close()
    disk.kill()
    again = open_store(disk)
    put(again, draft(b"6"))
    assert bodies(again) == [b"1", b"2", b"6"]


def test_a_full_disk_is_waited_out_without_a_hole() -> None:
    disk = FaultyDisk(Random(2), capacity_bytes=9000)
    store = open_store(disk)
    stored = []
    for body in payloads(50, 300):
        try:
            put(store, draft(body))
        except StorageError:
            break
        stored.append(body)
    assert disk.counters.no_space_errors == 2  # the record, and the zeros over what had been written of it
    with pytest.raises(RequestError, match="disk is full") as caught:
        put(store, draft(b"refused"))
    assert caught.value.code == codes.SERVICE_NOT_AVAILABLE
    assert bodies(store) == stored
    disk.capacity_bytes = 1 << 20
    store.set_full(False)
    put(store, draft(b"next"))
    assert bodies(store) == [*stored, b"next"]
    sync(store)
    disk.crash()
    again = open_store(disk)
    dispatch_all(again)
    assert bodies(again) == [*stored, b"next"]


@pytest.mark.parametrize("step", ["create", "append", "sync"])
def test_what_is_refused_is_not_stored_and_what_is_stored_was_not_refused(step: str) -> None:
    """The table of put results under a fault at each step, over many places of the fault."""
    refused = 0
    for place in range(1, 12):
        disk = FaultyDisk(Random(place))
        store = open_store(disk)
        if step == "append":
            disk.fail_write_at(place)
        acknowledged: list[bytes] = []
        for number, body in enumerate(payloads(20, 500)):
            try:
                if step == "create" and number == place:
                    disk.capacity_bytes = 0  # the next write of new bytes finds no room
                put(store, draft(body))
                if step == "sync" and number == place:
                    disk.fail_sync_at(1)
                sync(store)
                acknowledged.append(body)
            except RequestError:
                refused += 1
            except StorageError as error:  # as the flusher does
                refused += 1
                if not error.is_out_of_space:
                    store.fail(error)
        disk.capacity_bytes = 1 << 30
        disk.crash()
        again = open_store(disk)
        dispatch_all(again)
        found = bodies(again)
        assert found[: len(acknowledged)] == acknowledged
        assert len(found) <= len(acknowledged) + 1
    assert refused >= 11


@pytest.mark.parametrize("fault", ["EIO", "ENOSPC"])
def test_an_append_that_the_disk_refused_for_good_is_reported_once(fault: str) -> None:
    """A broker that could append nothing any more, but stayed master, would hold up its group for ever."""
    disk = FaultyDisk(Random(1))
    store = open_store(disk)
    reported: list[StorageError] = []
    store.failure_listeners.append(reported.append)
    if fault == "EIO":
        disk.fail_write_at(1)
    else:
        disk.capacity_bytes = 0
    for _ in range(3):
        with pytest.raises((StorageError, RequestError)):
            put(store, draft())
    assert len(reported) == (1 if fault == "EIO" else 0)


# -- dispatch ------------------------------------------------------------------------------------------------------------------


def random_drafts(seed: int, count: int) -> list[Draft]:
    rng = Random(seed)
    return [
        draft(
            rng.randbytes(rng.randrange(800)),
            topic=rng.choice(["A", "B", "%RETRY%g"]),
            queue_id=rng.randrange(3),
            tag=rng.choice(["", "x", "y"]),
            sys_flag=rng.choice([0, 0, 0, 4, 8, 12]),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("seed", range(5))
def test_offered_entries_and_the_log_read_back_give_the_same_queues(seed: int) -> None:
    offered, read_back = open_store(MemoryDisk()), open_store(MemoryDisk())
    for piece in range(0, 60, 7):
        drafts = random_drafts(seed, 60)[piece : piece + 7]
        offered.append_messages(drafts)
        read_back.append_messages(drafts)
        read_back.dispatcher._drop_offers()
        arrivals = []
        for store in (offered, read_back):
            seen: list[Arrival] = []
            while store.dispatch_offset < store.commitlog.end_offset:
                seen += store.dispatch(store.commitlog.end_offset)
            arrivals.append(merged(seen))
        assert arrivals[0] == arrivals[1]
    assert log_bytes(offered) == log_bytes(read_back)
    assert queue_contents(offered) == queue_contents(read_back)
    assert offered.dispatch_offset == read_back.dispatch_offset == offered.commitlog.end_offset


def merged(arrivals: list[Arrival]) -> dict[tuple[str, int], tuple[int, list[int]]]:
    result: dict[tuple[str, int], tuple[int, list[int]]] = {}
    for topic, queue_id, max_offset, tags in arrivals:
        result[(topic, queue_id)] = (max_offset, [*result.get((topic, queue_id), (0, []))[1], *tags])
    return result


@pytest.mark.parametrize("seed", range(5))
def test_nothing_behind_the_confirm_offset_is_seen_wherever_it_stands(seed: int) -> None:
    rng = Random(seed)
    store = open_store(MemoryDisk())
    for n in range(0, 60, 10):
        store.append_messages(random_drafts(seed, 60)[n : n + 10])
    entries = log_entries(store)
    confirm = 0
    while confirm < store.commitlog.end_offset:
        confirm += rng.randrange(1, 700)
        if rng.random() < 0.2:
            store.dispatcher._drop_offers()
        store.dispatch(confirm)
        visible = sum(queue.max_offset for queue in store.queues.table.values())
        if rng.random() < 0.5:
            dispatched = [entry for entry in entries if entry[3] + entry[4] <= store.dispatch_offset]
            assert visible == len(dispatched)
        assert store.dispatch_offset <= store.confirm_offset <= confirm
    dispatch_all(store)
    assert store.dispatch_offset == store.commitlog.end_offset
    assert sum(queue.max_offset for queue in store.queues.table.values()) == len(entries)


def test_an_offer_of_several_messages_in_one_entry_is_seen_as_far_as_it_is_confirmed() -> None:
    together, apart = open_store(MemoryDisk()), open_store(MemoryDisk())
    for store in (together, apart):
        store.append_messages([draft(body=b"x" * 50)] * 6)
    singles = log_entries(together)
    together.dispatcher.truncate(0)
    together.dispatcher.offer(0, [singles[0], (*singles[1][:-1], 4), singles[5]], together.commitlog.end_offset)
    for confirm_offset in range(0, together.commitlog.end_offset + 1, 40):
        for store in (together, apart):
            store.dispatch(confirm_offset)
        assert together.dispatch_offset == apart.dispatch_offset
        assert queue_contents(together) == queue_contents(apart)
    assert together.dispatch_offset > singles[4][3]


def test_listeners_hear_of_each_queue_once_per_round_when_it_can_be_read() -> None:
    store = open_store(MemoryDisk())
    heard: list[list[tuple[str, int, int, list[int], int]]] = []

    def listen(arrivals: object) -> None:
        heard.append([(*arrival, len(bodies(store, arrival.topic, arrival.queue_id))) for arrival in arrivals])  # type: ignore[attr-defined]

    store.dispatcher.listeners.append(listen)
    store.append_messages([draft(tag="x"), draft(topic="B"), draft(tag="y"), draft(queue_id=1)])
    store.append_messages([draft(tag="z")])
    assert store.dispatch(0) == []
    arrivals = store.dispatch(store.commitlog.end_offset)
    x, y, z = map(java_hash, "xyz")
    assert heard == [[("TopicA", 0, 3, [x, y, z], 3), ("B", 0, 1, [0], 1), ("TopicA", 1, 1, [0], 1)]]
    assert list(arrivals) == [entry[:4] for entry in heard[0]]
    assert store.dispatch(store.commitlog.end_offset) == []


def test_the_confirm_offset_never_falls_by_itself() -> None:
    store = open_store(MemoryDisk())
    end = put(store, draft(), draft())[-1].end_offset
    store.dispatch(10)
    assert store.confirm_offset == end
    store.dispatch(1 << 60)
    assert store.confirm_offset == end


def test_when_too_many_offers_wait_the_log_is_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brokerd.store.derived.dispatcher._MAX_OFFERED_ENTRIES", 10)
    store = open_store(MemoryDisk())
    for body in payloads(47):
        store.append_messages([draft(body)])
        assert len(store.dispatcher._offers) <= 10
    dispatch_all(store)
    assert bodies(store) == list(payloads(47))


def test_damage_under_a_running_dispatch_is_not_passed_over() -> None:
    disk = FaultyDisk(Random(1))
    store = open_store(disk)
    results = put(store, *(draft(body) for body in payloads(5)), visible=False)
    store.dispatcher._drop_offers()
    disk.flip_bit("commitlog/" + "0" * 20, results[2].physical_offset + 5, 0)
    with pytest.raises(CorruptedFile, match=f"no record at offset {results[2].physical_offset}"):
        dispatch_all(store)


def test_a_far_behind_dispatch_works_in_slices() -> None:
    settings = StoreSettings(segment_size_bytes=1 << 20, dispatch_chunk_bytes=4096)
    store = open_store(MemoryDisk(), settings=settings)
    put(store, *(draft(body) for body in payloads(300)), visible=False)
    store.dispatcher._drop_offers()
    slices = 0
    while store.dispatch_offset < store.commitlog.end_offset:
        before = store.dispatch_offset
        store.dispatch(store.commitlog.end_offset)
        assert 0 < store.dispatch_offset - before <= 2 * 4096
        slices += 1
    assert slices > 5
    assert bodies(store) == list(payloads(300))


# -- copying, cutting, deleting ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_two_disks_with_one_log_hold_the_same_files_and_queues(seed: int) -> None:
    rng = Random(seed)
    disks = MemoryDisk(), MemoryDisk()
    master, replica = open_store(disks[0]), make_store(disks[1])
    replica.load()
    for n in range(0, 60, 6):
        master.append_messages(random_drafts(seed, 60)[n : n + 6])
        while replica.commitlog.end_offset < master.commitlog.end_offset:
            end = replica.commitlog.end_offset
            replica.append_replicated(end, master.commitlog.read(end, rng.randrange(1, 900)))
            replica.dispatch(rng.randrange(end + 1))
            sync(replica)
    for store in (master, replica):
        dispatch_all(store)
        store.close()
    assert contents(disks[0], "commitlog") == contents(disks[1], "commitlog")
    assert contents(disks[0], "consumequeue") == contents(disks[1], "consumequeue")


def contents(disk: MemoryDisk, directory: str) -> dict[str, bytes]:
    return {path: file.seen.read(0, file.seen.size) for path, file in disk.files.items() if path.startswith(directory)}


def test_a_promoted_replica_cuts_a_part_of_a_record_and_goes_on_with_every_number() -> None:
    master, replica = open_store(MemoryDisk()), make_store(MemoryDisk())
    replica.load()
    put(master, *(draft(body) for body in payloads(10)))
    log = log_bytes(master)
    replica.append_replicated(0, log[:-10])
    replica.dispatch(log_entries(master)[3][3])
    replica.set_appendable(True)
    assert replica.commitlog.end_offset == log_entries(master)[9][3]
    assert put(replica, draft(b"new"))[0].queue_offset == 9
    assert bodies(replica) == [*payloads(9), b"new"]
    assert replica.last_timestamp_ms >= master.last_timestamp_ms


def test_a_log_copied_from_its_masters_first_file_begins_there() -> None:
    master, replica = open_store(MemoryDisk()), make_store(MemoryDisk())
    put(master, *(draft(body) for body in payloads(60, 200)))
    start = SEGMENT_BYTES
    replica.load()
    replica.reset(start)
    while (end := replica.commitlog.end_offset) < master.commitlog.end_offset:
        replica.append_replicated(end, master.commitlog.read(end, 1000))
    dispatch_all(replica)
    first = replica.min_offset("TopicA", 0)
    assert first > 0
    assert bodies(replica) == list(payloads(60, 200))[first:]
    assert replica.max_offset("TopicA", 0) == 60
    replica.set_appendable(True)
    assert put(replica, draft(b"x"))[0].queue_offset == 60


def test_a_log_that_was_to_begin_elsewhere_and_got_nothing_is_an_empty_one_to_the_next_start() -> None:
    disk = MemoryDisk()
    replica = make_store(disk)
    replica.load()
    replica.reset(5 * SEGMENT_BYTES)  # and the disk has no room for the first file
    replica.close()
    again = make_store(disk)
    again.load()
    assert (again.commitlog.min_offset, again.commitlog.end_offset, again.dispatch_offset) == (0, 0, 0)
    again.close()


@pytest.mark.parametrize("seed", range(8))
def test_cutting_is_as_if_what_follows_had_never_been_written(seed: int) -> None:
    rng = Random(seed)
    drafts = random_drafts(seed, 50)
    disks = MemoryDisk(), MemoryDisk()
    cut, never = open_store(disks[0]), open_store(disks[1])
    results = [cut.append_messages([each])[0] for each in drafts]
    keep = rng.randrange(51)
    offset = results[keep].physical_offset if keep < 50 else cut.commitlog.end_offset
    cut.dispatch(rng.randrange(cut.commitlog.end_offset))
    if rng.random() < 0.5:
        sync(cut)
        cut.checkpoint()
    heard: list[int] = []
    cut.truncate_listeners.append(heard.append)
    cut.truncate(offset)
    assert heard == ([offset] if keep < 50 else [])
    for each in drafts[:keep]:
        never.append_messages([each])
    if never.commitlog.end_offset != offset:  # the cut came right behind a roll
        never.commitlog.roll()
    more = random_drafts(seed + 100, 10)
    for store in (cut, never):
        for each in more:
            store.append_messages([each])
        dispatch_all(store)
    assert log_bytes(cut) == log_bytes(never)
    assert queue_contents(cut) == queue_contents(never)
    assert {k: v for k, v in cut.queue_offsets.table.items() if v} == {
        k: v for k, v in never.queue_offsets.table.items() if v
    }
    for store in (cut, never):
        store.close()
    assert contents(disks[0], "commitlog") == contents(disks[1], "commitlog")


def test_a_cut_at_no_boundary_changes_nothing() -> None:
    store = open_store(MemoryDisk())
    put(store, *(draft(body) for body in payloads(10)))
    with pytest.raises(ProtocolError, match="no record starts there"):
        store.truncate(log_entries(store)[5][3] + 1)
    assert len(bodies(store)) == 10
    assert store.dispatch_offset == store.commitlog.end_offset


def test_a_checkpoint_that_began_before_a_cut_vouches_for_nothing() -> None:
    disk = FaultyDisk(Random(1))
    store = open_store(disk)
    put(store, *(draft(body) for body in payloads(15)))
    store.checkpoint()
    put(store, *(draft(body) for body in payloads(15, start=15)))
    mark = store.sync()
    store.mark_flushed(mark)
    store.note_flushed(mark)
    checkpoint = store.begin_checkpoint()
    store.truncate(log_entries(store)[10][3])
    checkpoint.run()
    store.finish_checkpoint(checkpoint)
    store.note_flushed(mark)
    put(store, *(draft(body) for body in payloads(3, 50, 900)))
    sync(store)
    disk.crash()
    store = open_store(disk)
    dispatch_all(store)
    assert bodies(store) == [*payloads(10), *payloads(3, 50, 900)]


def test_a_deleted_topic_begins_at_0_again_here_and_where_the_log_is_read_back() -> None:
    disk = FaultyDisk(Random(1))
    store = open_store(disk)
    put(store, *(draft(body) for body in payloads(5)))
    put(store, draft(b"stays", topic="B"))
    store.queue_offsets.forget("TopicA")
    store.queues.delete("TopicA", store.commitlog.end_offset)
    assert store.read_messages("TopicA", 0, 0, 10, 1000).records == []
    assert put(store, draft(b"again"))[0].queue_offset == 0
    put(store, draft(b"and again"))
    assert bodies(store) == [b"again", b"and again"]
    sync(store)
    disk.kill()
    store = open_store(disk)
    dispatch_all(store)
    assert bodies(store) == [b"again", b"and again"]
    assert bodies(store, "B") == [b"stays"]
    assert put(store, draft(b"third"))[0].queue_offset == 2


def test_what_is_laid_out_elsewhere_is_appended_as_if_the_store_had_done_it() -> None:
    general, fast = open_store(MemoryDisk()), open_store(MemoryDisk())
    for n in range(0, 60, 8):
        drafts = random_drafts(3, 60)[n : n + 8]
        before = general.commitlog.end_offset
        general.append_messages(drafts)
        for start, records in pieces(general, before):
            run = fast.begin_run(len(records))
            assert run.start == start
            run.records.append(records)
            run.entries += derive(records, start, SHAPE).entries
            run.end_offset += len(records)
            run.next_offsets.update({(topic, queue_id): number + 1 for topic, queue_id, number, *_ in run.entries})
            fast.append_laid_out(run)
        for store in (general, fast):
            dispatch_all(store)
    assert log_bytes(fast) == log_bytes(general)
    assert queue_contents(fast) == queue_contents(general)
    assert fast.queue_offsets.table == general.queue_offsets.table


def test_a_run_that_the_disk_refuses_or_that_comes_too_late_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    store, other = open_store(MemoryDisk()), open_store(MemoryDisk())
    put(store, draft(b"first"))
    place = other.append_messages([draft(b"first"), draft(b"second")])[1]
    record = other.commitlog.read(place.physical_offset, place.size)

    def laid_out() -> Run:
        run = store.begin_run()
        run.records.append(record)
        run.entries.append(("TopicA", 0, run.next_offsets["TopicA", 0], run.start, len(record), 0, 1, 1))
        run.next_offsets["TopicA", 0] += 1
        run.end_offset += len(record)
        return run

    before = log_bytes(store)
    run = laid_out()

    def refuse(*_: object) -> int:
        raise StorageError("no space left") from OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patched:
        patched.setattr(store.commitlog, "append", refuse)
        with pytest.raises(StorageError):
            store.append_laid_out(run)
    assert store.is_full
    with pytest.raises(RequestError, match="disk is full"):
        store.append_laid_out(run)
    with pytest.raises(RequestError, match="disk is full"):
        store.begin_run()
    store.set_full(False)
    run = laid_out()
    store.set_appendable(False)
    with pytest.raises(NotMaster):
        store.append_laid_out(run)
    store.set_appendable(True)
    assert log_bytes(store) == before
    assert store.queue_offsets.next("TopicA", 0) == 1
    assert store.dispatch_offset == store.commitlog.end_offset
    store.append_laid_out(laid_out())
    dispatch_all(store)
    assert bodies(store) == [b"first", b"second"]


def pieces(store: MessageStore, start: int) -> list[tuple[int, bytes]]:
    """The records from `start` on, one piece per file, without fillers."""
    found = []
    while start < store.commitlog.end_offset:
        data = store.commitlog.read(start, SEGMENT_BYTES)
        length = 0
        while length < len(data) and data[length + 4 : length + 8] == b"\xda\xa3\x20\xa7":
            length += int.from_bytes(data[length : length + 4], "big")
        if length:
            found.append((start, data[:length]))
        start += len(data)
    return found


# -- the two ways to a unit ----------------------------------------------------------------------------------------------------


def test_every_unit_points_at_its_message() -> None:
    store = open_store(MemoryDisk())
    put(store, *random_drafts(9, 80))
    checked = 0
    for (topic, queue_id), queue in store.queues.table.items():
        for number, (physical, size, code) in enumerate(queue.units(0, queue.max_offset)):
            record = decode_record(store.commitlog.read(physical, size))
            assert (record.topic, record.queue_id, record.queue_offset, record.size) == (topic, queue_id, number, size)
            assert tags_code(record.properties) == code
            checked += 1
    assert checked == len(log_entries(store)) > 30
