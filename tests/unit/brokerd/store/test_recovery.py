"""What a start makes of what it finds: torn tails, damage, pages that are not there, queues that somebody removed."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from brokerd.composition.log_access import StoreReplicatedLog
from brokerd.store.log.derive import RecordShape
from brokerd.store.start.checkpoint_page import PATH, Positions
from brokerd.store.start.decisions import (
    decide_confirm_offset,
    decide_queues_start,
    decide_start,
    find_record,
    judge_end,
)
from brokerd.store.start.watermark import TOPIC as WATERMARKS
from brokerd.store.start.watermark import encode_watermark
from remoting.errors import CorruptedFile, StorageError
from tests.support.disks import SECTOR_BYTES, FaultyDisk, MemoryDisk
from tests.unit.brokerd.store.stores import (
    SEGMENT_BYTES,
    SETTINGS,
    SHAPE,
    Clock,
    bodies,
    dispatch_all,
    draft,
    log_bytes,
    make_store,
    open_store,
    payloads,
    put,
    queue_contents,
    sync,
)

ACCEPTING = replace(SETTINGS, truncate_damaged_log=True)


# -- decisions ---------------------------------------------------------------------------------------------------------------


def test_checking_begins_some_way_before_what_is_not_proven() -> None:
    known = Positions(flushed_offset=15_000, queues_offset=9000, recheck_offset=5000)
    assert decide_start(known, 0, 20_000) == 5000
    assert decide_start(known, 12288, 20_000) == 12288
    assert decide_start(known, 0, 4096) == 4096
    assert decide_start(None, 4096, 20_000) == 4096


def test_queues_are_derived_from_where_their_files_end() -> None:
    assert decide_queues_start(Positions(queues_offset=500), 0, 900) == 500
    assert decide_queues_start(Positions(queues_offset=500), 0, 400) == 400
    assert decide_queues_start(Positions(queues_offset=500), 600, 900) == 600
    assert decide_queues_start(None, 100, 900) == 100


def test_the_confirm_offset_stays_within_the_log() -> None:
    assert decide_confirm_offset(Positions(confirm_offset=500), 0, 900) == 500
    assert decide_confirm_offset(Positions(confirm_offset=5000), 0, 900) == 900
    assert decide_confirm_offset(Positions(confirm_offset=5), 100, 900) == 100
    assert decide_confirm_offset(None, 100, 900) == 100
    assert decide_confirm_offset(None, 100, 900, marked=500) == 500
    assert decide_confirm_offset(None, 100, 900, marked=5000) == 900
    assert decide_confirm_offset(Positions(confirm_offset=400), 100, 900, marked=500) == 400


def test_a_log_may_end_behind_what_was_durable_but_not_before() -> None:
    judge_end(500, Positions(flushed_offset=500))
    judge_end(500, Positions(flushed_offset=400))
    judge_end(500, None)
    with pytest.raises(CorruptedFile, match="at offset 499, although everything before 500 had been durable"):
        judge_end(499, Positions(flushed_offset=500))


def test_a_record_behind_damage_is_found_wherever_it_is() -> None:
    store = open_store(MemoryDisk())
    results = put(store, *(draft(body) for body in payloads(80, 300)))
    log = log_bytes(store)

    def read(offset: int, length: int) -> bytes:
        return log[offset : min(offset + length, (offset // SEGMENT_BYTES + 1) * SEGMENT_BYTES)]

    for result, following in pairwise(results):
        offset = result.physical_offset
        assert find_record(read, offset, len(log), SHAPE) == offset
        assert find_record(read, offset + 1, len(log), SHAPE) == following.physical_offset
    assert find_record(read, results[-1].physical_offset + 1, len(log), SHAPE) is None


def test_a_body_that_looks_like_a_record_is_none() -> None:
    store = open_store(MemoryDisk())
    put(store, draft(b"whatever"))
    record = log_bytes(store)
    put(store, draft(record * 3))
    log = log_bytes(store)
    assert find_record(lambda offset, length: log[offset : offset + length], len(record) + 1, len(log), SHAPE) is None
    assert isinstance(SHAPE, RecordShape)


# -- starts --------------------------------------------------------------------------------------------------------------------


def killed_store(count: int = 40, *, synced: bool = True) -> tuple[FaultyDisk, bytes]:
    """A disk after the death of a process that had stored so many messages, and its log's bytes."""
    disk = FaultyDisk(Random(3))
    store = open_store(disk)
    put(store, *(draft(body, queue_id=n % 3) for n, body in enumerate(payloads(count, 150))))
    if synced:
        sync(store)
    log = log_bytes(store)
    disk.kill()
    return disk, log


def test_a_first_start_finds_nothing_and_says_that_it_runs() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    assert store.commitlog.end_offset == 0
    assert disk.exists("abort")
    store.close()
    assert not disk.exists("abort")


def test_after_a_clean_end_the_same_is_there_and_nothing_is_derived_again() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    put(store, *(draft(body, queue_id=n % 3) for n, body in enumerate(payloads(60, 200))))
    expected = queue_contents(store)
    store.close()
    store = make_store(disk)
    store.load()
    assert store.dispatch_offset == store.commitlog.end_offset
    assert store.queues.buffered_units == 0
    assert queue_contents(store) == expected


def test_recovering_twice_is_recovering_once() -> None:
    disk, log = killed_store()
    found = []
    for _ in range(3):
        store = open_store(disk)
        dispatch_all(store)
        found.append((log_bytes(store), queue_contents(store), dict(store.queue_offsets.table)))
        disk.kill()
    assert found[0] == found[1] == found[2]
    assert found[0][0] == log


def test_a_start_verifies_a_bounded_part_of_what_was_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brokerd.store.start.durable_positions._RECHECK_BYTES", 5000)
    disk, read = FaultyDisk(Random(1)), 0
    store = open_store(disk)
    for body in payloads(200, 150):
        put(store, draft(body))
        store.checkpoint()
    end = store.commitlog.end_offset
    store.close()
    disk.kill()
    store = make_store(disk)
    original = store.commitlog.read

    def counting(offset: int, length: int) -> bytes:
        nonlocal read
        content = original(offset, length)
        read += len(content)
        return content

    store.commitlog.read = counting  # type: ignore[method-assign]
    store.load()
    assert store.commitlog.end_offset == end > 30_000
    assert 5000 < read < 20_000


def test_what_a_start_found_it_also_makes_durable() -> None:
    disk, log = killed_store(synced=False)
    assert len(log) > 2 * SEGMENT_BYTES
    make_store(disk).load()
    disk.crash()
    store = open_store(disk)
    assert log_bytes(store) == log
    assert disk.counters.kills == disk.counters.crashes == 1


def test_clean_and_unclean_starts_give_the_same_queues_offsets_and_end() -> None:
    results = []
    for clean in (True, False):
        disk = FaultyDisk(Random(1))
        store = open_store(disk)
        put(store, *(draft(body, queue_id=n % 3) for n, body in enumerate(payloads(50, 150))))
        sync(store)
        store.checkpoint()
        if clean:
            store.close()
        disk.kill()
        store = open_store(disk)
        results.append((store.commitlog.end_offset, queue_contents(store), store.queue_offsets.table))
    assert results[0] == results[1]


def test_removed_queues_are_made_again_from_the_log() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    put(store, *(draft(body, queue_id=n % 3, tag="t") for n, body in enumerate(payloads(60, 200))))
    expected = queue_contents(store)
    store.close()
    files = {path: bytes(file.seen.held) for path, file in disk.files.items() if path.startswith("consumequeue/")}
    disk.remove("consumequeue")
    store = open_store(disk)
    assert queue_contents(store) == expected
    store.close()
    assert files == {p: bytes(f.seen.held) for p, f in disk.files.items() if p.startswith("consumequeue/")}


def test_without_the_checkpoint_everything_is_read_again() -> None:
    disk, log = killed_store()
    disk.remove(PATH)
    store = open_store(disk)
    dispatch_all(store)
    assert log_bytes(store) == log
    assert sum(len(bodies(store, queue_id=queue_id)) for queue_id in range(3)) == 40


def test_what_was_confirmed_is_visible_at_once_and_the_rest_is_not() -> None:
    disk = FaultyDisk(Random(1))
    store = open_store(disk)
    results = put(store, *(draft(body) for body in payloads(20)), visible=False)
    store.dispatch(results[9].end_offset)
    store.checkpoint()
    disk.kill()
    store = make_store(disk)
    store.load()
    assert store.max_offset("TopicA", 0) == 10
    assert store.confirm_offset == store.dispatch_offset == results[9].end_offset


def test_numbers_of_unconfirmed_messages_are_not_given_again() -> None:
    disk = FaultyDisk(Random(1))
    store = open_store(disk)
    results = put(store, *(draft(body) for body in payloads(20)), visible=False)
    store.dispatch(results[9].end_offset)
    store.checkpoint()
    disk.kill()
    store = open_store(disk)
    assert put(store, draft(b"next"))[0].queue_offset == 20
    assert bodies(store) == [*payloads(20), b"next"]


def test_store_times_go_on_where_they_were_even_after_a_roll_and_a_clock_that_went_back() -> None:
    disk, clock = FaultyDisk(Random(1)), Clock(50_000)
    store = open_store(disk, clock)
    while len(store.commitlog.segment_starts()) < 2:
        put(store, draft(bytes(900)))
    store.commitlog.roll()
    sync(store)
    disk.kill()
    clock.now_ms = 10
    store = open_store(disk, clock)
    result = put(store, draft(b"later"))[0]
    assert store.commitlog.store_timestamp_at(result.physical_offset) == 50_000


# -- damage --------------------------------------------------------------------------------------------------------------------


def damaged(*, keep_page: bool = True) -> FaultyDisk:
    """A store of three files with a rotten bit in the body of the 20th message, in the second file."""
    disk, log = killed_store()
    at = log.index(payloads(20, 150)[-1])
    assert SEGMENT_BYTES < at < 2 * SEGMENT_BYTES < len(log)
    disk.flip_bit(f"commitlog/{at - at % SEGMENT_BYTES:020d}", at % SEGMENT_BYTES, 3)
    if not keep_page:
        disk.remove(PATH)
    return disk


def test_damage_before_what_was_durable_stops_the_start_with_a_sentence() -> None:
    disk = damaged()
    with pytest.raises(CorruptedFile, match=r"copies the log from its master.*store\.truncate_damaged_log=true"):
        make_store(disk).load()
    assert disk.counters.bit_flips == 1


def test_a_lost_log_is_not_a_new_one() -> None:
    disk, log = killed_store()
    disk.remove("commitlog")
    with pytest.raises(CorruptedFile, match=f"everything before {len(log)} had been durable"):
        make_store(disk).load()


def test_a_lost_tail_of_durable_bytes_stops_the_start() -> None:
    disk, log = killed_store()
    last = len(log) - len(log) % SEGMENT_BYTES
    disk.open(f"commitlog/{last:020d}").truncate(len(log) % SEGMENT_BYTES - 20)
    with pytest.raises(CorruptedFile, match="had been durable"):
        make_store(disk).load()


def test_when_told_to_the_start_gives_up_what_follows_the_damage_and_stays_with_it() -> None:
    disk = damaged()
    store = open_store(disk, settings=ACCEPTING)
    dispatch_all(store)
    end = store.commitlog.end_offset
    assert SEGMENT_BYTES < end < 2 * SEGMENT_BYTES
    assert sum(len(bodies(store, queue_id=queue_id)) for queue_id in range(3)) == 19
    assert disk.names("commitlog") == [f"{0:020d}", f"{SEGMENT_BYTES:020d}"]
    put(store, draft(b"after"))
    sync(store)
    disk.kill()
    store = open_store(disk)
    dispatch_all(store)
    assert store.commitlog.end_offset > end
    count = sum(len(bodies(store, queue_id=queue_id)) for queue_id in range(3))
    assert count == 20


def test_without_a_page_a_record_behind_the_damage_tells_damage_from_a_torn_tail() -> None:
    store = make_store(damaged(keep_page=False))
    store.load()
    assert store.suspicion is not None
    assert store.suspicion.until > store.commitlog.end_offset
    assert store.suspicion.confirmed == store.suspicion.until, "perhaps all of it was acknowledged"
    disk, log = killed_store()
    disk.remove(PATH)
    last = len(log) - len(log) % SEGMENT_BYTES
    disk.flip_bit(f"commitlog/{last:020d}", len(log) % SEGMENT_BYTES - 30, 0)
    store = open_store(disk)
    assert store.commitlog.end_offset < len(log)


def test_damage_behind_what_was_durable_ends_the_log_there(caplog: pytest.LogCaptureFixture) -> None:
    disk = FaultyDisk(Random(3))
    store = open_store(disk)
    durable = put(store, *(draft(body) for body in payloads(20, 150)))[-1].end_offset
    sync(store)
    results = put(store, *(draft(body) for body in payloads(10, 150, 20)))
    disk.kill()
    at = results[2].physical_offset + 95
    disk.flip_bit(f"commitlog/{at - at % SEGMENT_BYTES:020d}", at % SEGMENT_BYTES, 0)
    store = open_store(disk)
    dispatch_all(store)
    assert store.commitlog.end_offset == results[2].physical_offset >= durable
    assert (
        f"the commitlog is damaged at offset {results[2].physical_offset}, as no crash need have left it" in caplog.text
    )
    assert bodies(store) == list(payloads(22, 150))


@hypothesis_settings(max_examples=80, deadline=None)
@given(st.integers(0, 25), st.integers(1, 3000), st.binary(max_size=700), st.booleans())
def test_any_tail_behind_what_was_durable_leaves_a_prefix_that_goes_on(
    synced: int, lost: int, garbage: bytes, short: bool
) -> None:
    """The log breaks off anywhere behind what was synced; nothing, or zeros and then junk, follow in the file."""
    disk = FaultyDisk(Random(3))
    store = open_store(disk)
    everything = list(payloads(30, 200))
    for body in everything[:synced]:
        put(store, draft(body))
    durable = sync(store)
    for body in everything[synced:]:
        put(store, draft(body))
    log = log_bytes(store)
    disk.kill()
    last = len(log) - len(log) % SEGMENT_BYTES
    cut = max(durable, last, len(log) - lost)
    segment = disk.open(f"commitlog/{last:020d}")
    segment.truncate(cut - last)
    if not short:
        segment.truncate(SEGMENT_BYTES)
        junk_at = min(-(-(cut - last) // SECTOR_BYTES) * SECTOR_BYTES, SEGMENT_BYTES)
        segment.write(junk_at, [garbage[: SEGMENT_BYTES - junk_at]])
    store = open_store(disk)
    dispatch_all(store)
    end = store.commitlog.end_offset
    assert durable <= end <= cut
    assert log_bytes(store) == log[:end]
    found = bodies(store)
    assert synced <= len(found)
    assert found == everything[: len(found)]
    result = put(store, draft(b"goes on"))[0]
    assert result.queue_offset == len(found)
    assert bodies(store) == [*found, b"goes on"]


# -- what recovery does not touch --------------------------------------------------------------------------------------------


def test_a_replica_that_held_a_part_of_a_record_starts_with_the_whole_ones() -> None:
    master = open_store(MemoryDisk())
    put(master, *(draft(body) for body in payloads(10)))
    log = log_bytes(master)
    for cut in (len(log) - 1, len(log) - 80, len(log) - 130):
        disk = FaultyDisk(Random(1))
        replica = make_store(disk)
        replica.load()
        replica.append_replicated(0, log[:cut])
        sync(replica)
        disk.crash()
        replica = make_store(disk)
        replica.load()
        assert replica.commitlog.end_offset == replica.commitlog.complete_offset <= cut
        replica.append_replicated(replica.commitlog.end_offset, log[replica.commitlog.end_offset :])
        assert log_bytes(replica) == log


def test_what_a_failed_sync_left_readable_is_durable_before_it_counts() -> None:
    """Linux forgets that pages are dirty when their write fails: they can be read, and are gone after a power loss."""
    for seed in range(20):
        disk = FaultyDisk(Random(seed))
        store = open_store(disk)
        put(store, draft(b"one" * 600))
        sync(store)
        for _ in range(4):
            put(store, draft(b"two" * 600))  # the log goes on into a second and a third file
        disk.fail_sync_at(1 + seed % 3)
        with pytest.raises(StorageError):
            store.sync()
        disk.kill()
        recovered = make_store(disk)
        recovered.load()
        before = log_bytes(recovered)
        assert recovered.commitlog.flushed_offset == recovered.commitlog.end_offset
        disk.crash()
        after = make_store(disk)
        after.load()
        assert log_bytes(after) == before
        assert disk.counters.sync_errors == 1


def test_who_acknowledges_from_memory_says_after_a_power_loss_that_its_tail_may_be_gone() -> None:
    disk = FaultyDisk(Random(3))
    store = open_store(disk)
    put(store, draft(b"acknowledged from memory"))
    disk.crash()
    started = make_store(disk)
    started.load()
    log = StoreReplicatedLog(started, lambda: None)
    assert log.keeps_tail(acked_after_flush=True)
    assert not log.keeps_tail(acked_after_flush=False)


@pytest.mark.parametrize("host_bytes", [8, 20])
def test_a_record_whose_body_or_place_changed_on_disk_is_never_given_out(host_bytes: int) -> None:
    disk = FaultyDisk(Random(3))
    store = open_store(disk)
    born_host = bytes(range(host_bytes))
    flags = 1 << 4 if host_bytes == 20 else 0
    for _ in range(3):
        put(store, draft(b"body" * 50, born_host=born_host, sys_flag=flags))
    assert len(store.read_messages("TopicA", 0, 0, 10, 1 << 20).records) == 3
    (unit,) = store.read_units("TopicA", 0, 1, 1)
    body_at = unit[0] + 88 + (host_bytes - 8)
    for position in (
        unit[0] + 35,
        body_at,
        body_at + 199,
    ):  # the last byte of its physical offset, the ends of its body
        disk.flip_bit("commitlog/00000000000000000000", position, 3)
        assert len(store.read_messages("TopicA", 0, 0, 1, 1 << 20).records) == 1
        with pytest.raises(CorruptedFile, match=f"at offset {unit[0]} of the commitlog is damaged"):
            store.read_messages("TopicA", 0, 1, 10, 1 << 20)
        before = store.read_messages("TopicA", 0, 0, 10, 1 << 20)
        assert (len(before.records), before.next_offset) == (1, 1)
        disk.flip_bit("commitlog/00000000000000000000", position, 3)
    assert len(store.read_messages("TopicA", 0, 0, 10, 1 << 20).records) == 3
    assert disk.counters.bit_flips == 6


@pytest.mark.parametrize("place", [3, 5, 14, 25, 31, 37, 90, -8])
def test_a_queue_does_not_end_before_a_record_that_rots(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number would be given to another message, and a table of the system would begin without it."""
    monkeypatch.setattr("brokerd.store.start.durable_positions._RECHECK_BYTES", 0)
    disk = FaultyDisk(Random(5))
    store = open_store(disk)
    put(store, *(draft(body) for body in payloads(5)))
    (lone,) = put(store, draft(b"the only one", topic="TopicB"))
    put(store, *(draft(body) for body in payloads(60)))
    for _ in range(3):
        store.checkpoint()
    disk.kill()
    start, end = lone.physical_offset, lone.end_offset
    disk.flip_bit("commitlog/" + "0" * 20, (end if place < 0 else start) + place, 2)
    store = make_store(disk)
    store.load()
    assert store.max_offset("TopicB", 0) == 1
    assert store.max_offset("TopicA", 0) == 65
    assert store.read_units("TopicB", 0, 0, 1)[0][:2] == (start, end - start)


def test_without_a_page_the_log_itself_says_how_far_it_was_confirmed() -> None:
    """A broker whose checkpoint rotted told consumers that there is no such group, until it had heard from its master."""
    disk = FaultyDisk(Random(3))
    store = open_store(disk)
    confirmed = put(store, *(draft(body) for body in payloads(20, 150)))[-1].end_offset
    put(store, draft(encode_watermark(confirmed), topic=WATERMARKS, tag="confirmed"))
    put(store, draft(b"not known to be confirmed"))
    store.close()
    disk.flip_bit(PATH, 44, 3)
    store = make_store(disk)
    store.load()
    assert store.dispatch_offset == confirmed
    assert bodies(store) == list(payloads(20, 150))
