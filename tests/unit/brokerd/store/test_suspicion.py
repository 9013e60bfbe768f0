"""Rot behind the last durable checkpoint: a start tells it from what a crash leaves, and keeps what is behind it."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from brokerd.composition.log_access import StoreReplicatedLog
from brokerd.store.start.decisions import lacks_bytes
from brokerd.store.start.log_recovery import SuspectLog
from brokerd.store.start.suspicion import PATH, SuspectEnd, SuspicionFile
from brokerd.store.start.watermark import TOPIC, encode_watermark
from brokerd.store.store import MessageStore
from remoting.errors import CorruptedFile
from tests.support.disks import FaultyDisk, MemoryDisk
from tests.unit.brokerd.store.stores import (
    SEGMENT_BYTES,
    SETTINGS,
    SHAPE,
    bodies,
    dispatch_all,
    draft,
    log_bytes,
    make_store,
    open_store,
    put,
    sync,
)


def lose_power_with(count: int, size: int = 60) -> tuple[FaultyDisk, list[tuple[int, int]], bytes]:
    """A disk after a loss of power behind so many synced messages, since whose first nothing was written to the checkpoint's
    page; where each of them was, and the log."""
    disk = FaultyDisk(Random(5))
    store = open_store(disk)
    put(store, draft(b"first"))
    store.checkpoint()
    places = []
    for n in range(count):
        result = put(store, draft(b"acked-%d" % n + b"." * size))[0]
        sync(store)
        places.append((result.physical_offset, result.end_offset))
    log = log_bytes(store)
    disk.files["checkpoint"].unsynced.clear()
    disk.crash()
    return disk, places, log


def flip(disk: FaultyDisk, at: int) -> None:
    disk.flip_bit(f"commitlog/{at - at % SEGMENT_BYTES:020d}", at % SEGMENT_BYTES, 0)


def started(disk: FaultyDisk) -> MessageStore:
    store = make_store(disk)
    store.load()
    return store


def content(disk: FaultyDisk, start: int, end: int) -> bytes:
    """What the files have there, whatever the store says that the log is."""
    found = b""
    while start < end:
        stop = min(end, start - start % SEGMENT_BYTES + SEGMENT_BYTES)
        path = f"commitlog/{start - start % SEGMENT_BYTES:020d}"
        found += disk.open(path).read(start % SEGMENT_BYTES, stop - start)
        start = stop
    return found


@pytest.mark.parametrize("place", [2, 5, 30, 100])
@pytest.mark.parametrize("message", [0, 4, 39])
def test_rot_behind_the_durable_checkpoint_makes_the_log_suspect(message: int, place: int) -> None:
    disk, places, log = lose_power_with(40)
    start, _ = places[message]
    assert len(log) > SEGMENT_BYTES
    flip(disk, start + place)
    store = started(disk)
    assert store.commitlog.end_offset == start
    assert store.suspicion == SuspectEnd(start, len(log) if message < 39 else start)
    assert "is not elected" in store.suspicion.sentence


@pytest.mark.parametrize("message", [0, 4, 38])
def test_a_hole_under_a_checkpoint_that_rots_is_suspect(message: int) -> None:
    """Nobody knows what had been durable, so it is neither a torn end nor a reason to stay away: others have the rest."""
    disk, places, log = lose_power_with(40)
    start, end = places[message]
    disk.flip_bit("checkpoint", 45, 3)
    hole = disk.open(f"commitlog/{start - start % SEGMENT_BYTES:020d}")
    hole.write(start % SEGMENT_BYTES, (bytes(min(end - start, SEGMENT_BYTES - start % SEGMENT_BYTES)),))
    hole.sync()
    with pytest.raises(SuspectLog):
        make_store(disk).load(ask_first=True)
    store = started(disk)
    assert store.suspicion == SuspectEnd(start, len(log), len(log)), "perhaps all of it was acknowledged"
    assert "start once with" in store.suspicion.sentence
    assert content(disk, end, len(log)) == log[end:], "what is behind the hole is kept until somebody has judged"
    disk.kill()
    again = started(disk)
    assert again.suspicion == SuspectEnd(start, len(log), len(log)), (
        "the page is whole again, and the hole is still one"
    )


def test_what_is_behind_the_damage_is_kept_through_starts_and_given_up_when_the_log_goes_on() -> None:
    disk, places, log = lose_power_with(40)
    start, end = places[4]
    flip(disk, start + 100)
    for _ in range(2):
        store = started(disk)
        assert store.commitlog.end_offset == start
        assert content(disk, end, len(log)) == log[end:]
        assert store.commitlog.keeps_rest
        store.commitlog.prepare_next()
        store.checkpoint()
        disk.crash()
    store = started(disk)
    store.append_replicated(start, log[start:end])
    assert not any(content(disk, end, SEGMENT_BYTES))
    assert disk.names("commitlog") == [f"{0:020d}"]
    assert store.suspicion is not None, "nobody was told yet that this log lacked something"
    store.append_replicated(end, log[end:])
    sync(store)
    store.judged()
    assert store.suspicion is None
    disk.kill()
    store = started(disk)
    assert store.suspicion is None
    assert log_bytes(store) == log


def test_a_suspicion_outlives_the_damage_until_somebody_was_told() -> None:
    disk, places, log = lose_power_with(20)
    start, end = places[4]
    flip(disk, start + 100)
    store = started(disk)
    store.append_replicated(start, log[start:end])
    sync(store)
    disk.crash()
    store = started(disk)
    assert store.commitlog.end_offset == end
    assert store.suspicion == SuspectEnd(start, len(log))
    store.judged()
    disk.crash()
    assert started(disk).suspicion is None


def test_whoever_takes_messages_gave_up_what_was_behind_the_damage() -> None:
    disk, places, _ = lose_power_with(40)
    start, _ = places[4]
    flip(disk, start + 100)
    store = started(disk)
    store.set_appendable(True)
    results = put(store, *(draft(b"later") for _ in range(60)))
    assert results[0].physical_offset == start
    sync(store)
    store.judged()
    disk.kill()
    store = open_store(disk)
    dispatch_all(store)
    assert bodies(store) == [b"first", *(b"acked-%d" % n + b"." * 60 for n in range(4)), *[b"later"] * 60]


def test_cutting_and_dropping_a_suspect_log_leave_nothing_behind() -> None:
    for change in ("truncate", "reset"):
        disk, places, log = lose_power_with(40)
        flip(disk, places[30][0] + 100)
        store = started(disk)
        if change == "truncate":
            store.truncate(places[3][0])
        else:
            store.reset(0)
        begin = store.commitlog.end_offset
        assert not disk.names("commitlog") or not any(content(disk, begin, SEGMENT_BYTES))
        store.append_replicated(begin, log[begin:])
        assert log_bytes(store) == log


def test_a_crash_leaves_no_suspicion() -> None:
    """Power is lost while messages are under way; only what was under way may make a log suspect, and never a torn end alone."""
    suspect = 0
    for seed in range(60):
        disk = FaultyDisk(Random(seed))
        store = open_store(disk)
        put(store, draft(b"synced"))
        sync(store)
        end = store.commitlog.end_offset
        put(store, draft(b"x" * 1500))
        disk.crash()
        store = started(disk)
        assert store.commitlog.end_offset >= end
        suspect += store.suspicion is not None
    assert disk.counters.crashes == 1
    assert suspect == 0


@pytest.mark.parametrize("size", [1, 5, 30, 40, 89, 95, 150, 600, 1500])
def test_a_part_of_a_record_is_no_rot(size: int) -> None:
    store = open_store(MemoryDisk())
    put(store, draft(b"x" * 1600, tag="red"))
    log = log_bytes(store)
    for offset in (0, 500, 511):
        part = bytes(offset) + log[:size] + bytes(4096)

        def read(at: int, length: int, part: bytes = part) -> bytes:
            return part[at : at + length]

        assert offset or lacks_bytes(read, offset, SHAPE)


def test_an_end_of_which_one_byte_is_missing_is_taken_for_rot() -> None:
    """When in doubt: a record without properties ends with zeros."""
    store = open_store(MemoryDisk())
    put(store, draft(b"x", tag="red"))
    log = log_bytes(store)
    padded = log[:-1] + bytes(512)
    assert not lacks_bytes(lambda at, length: padded[at : at + length], 0, SHAPE)
    padded = log[:-3] + bytes(512)
    assert lacks_bytes(lambda at, length: padded[at : at + length], 0, SHAPE)


def test_a_clean_end_is_not_looked_behind() -> None:
    disk = FaultyDisk(Random(5))
    store = open_store(disk)
    put(store, draft(b"first"))
    store.close()
    disk.kill()
    assert started(disk).suspicion is None


def test_a_damaged_suspicion_is_one() -> None:
    disk = MemoryDisk()
    file = SuspicionFile(disk)
    assert file.load(7) is None
    file.save(SuspectEnd(100, 300, 200))
    whole = disk.read_bytes(PATH)
    assert whole is not None
    assert file.load(7) == SuspectEnd(100, 300, 200)
    for position in range(len(whole) - 1):
        disk.replace_bytes(PATH, whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        assert file.load(7) == SuspectEnd(7, 7)
    file.remove()
    assert file.load(7) is None


def test_damage_before_what_the_page_proves_durable_still_stops_the_start() -> None:
    disk, places, _ = lose_power_with(20)
    store = started(disk)  # which leaves word of what it found
    disk.kill()
    flip(disk, places[4][0] + 100)
    with pytest.raises(CorruptedFile, match="had been durable"):
        started(disk)
    assert not disk.exists(PATH)
    assert store.suspicion is None


def test_a_watermark_behind_the_damage_says_for_certain_what_is_lost() -> None:
    disk = FaultyDisk(Random(5))
    store = open_store(disk)
    put(store, draft(b"first"))
    store.checkpoint()
    [damaged] = put(store, draft(b"acknowledged" * 9))
    end = store.commitlog.end_offset
    for confirmed in (end, end - 5, 3):
        put(store, draft(encode_watermark(confirmed))._replace(topic=TOPIC))
    put(store, draft(b"no watermark")._replace(topic=TOPIC))
    sync(store)
    disk.files["checkpoint"].unsynced.clear()
    disk.crash()
    flip(disk, damaged.physical_offset + 100)
    store = started(disk)
    assert store.suspicion is not None
    assert store.suspicion.confirmed == end
    assert "lacks acknowledged messages" in store.suspicion.sentence
    disk.crash()
    accepting = make_store(disk, settings=replace(SETTINGS, truncate_damaged_log=True))
    accepting.load()
    assert accepting.gave_up_durable
    assert accepting.suspicion is None
    assert not accepting.commitlog.keeps_rest


def test_who_leads_with_a_damaged_log_sets_aside_what_it_lacks() -> None:
    disk, places, log = lose_power_with(40)
    start, _ = places[4]
    flip(disk, start + 100)
    store = started(disk)
    StoreReplicatedLog(store, lambda: None).settle()
    assert store.suspicion is None
    assert disk.names("damaged") == [f"{start:020d}", f"{SEGMENT_BYTES:020d}"]
    kept = [disk.read_bytes(f"damaged/{name}") for name in disk.names("damaged")]
    copied = b"".join(each for each in kept if each is not None)
    assert copied[places[5][0] - start : len(log) - start] == log[places[5][0] :]
    assert not any(content(disk, start, SEGMENT_BYTES))
    store.set_appendable(True)
    put(store, draft(b"goes on"))


@pytest.mark.parametrize("place", [-1, -20, 30])
def test_a_last_record_that_rots_is_suspect_also_when_the_checkpoint_rots(place: int) -> None:
    """Nothing proves how far the log was durable then; but what stands there is no torn write."""
    disk, places, _ = lose_power_with(3)
    flip(disk, places[-1][1] + place if place < 0 else places[-1][0] + place)
    disk.flip_bit("checkpoint", 20, 3)
    with pytest.raises(CorruptedFile):
        make_store(disk).load(ask_first=True)
    store = started(disk)
    assert store.suspicion == SuspectEnd(places[-1][0], places[-1][0])
    assert not StoreReplicatedLog(store, lambda: None).keeps_tail(acked_after_flush=True)
