"""Somebody sets a broker's wall clock by an hour: nothing but the times that people read may change."""

from __future__ import annotations

import pytest

from brokerd.loop.steady_clock import SteadyClock
from brokerd.store.log.retention import FileAge, decide_retention
from brokerd.store.settings import RetentionSettings
from brokerd.store.store import MessageStore
from remoting.disk import DiskUsage
from tests.support.disks import MemoryDisk
from tests.unit.brokerd.store.stores import Clock, draft, log_bytes, log_entries, make_store, open_store, put, sync

HOUR_MS = 3_600_000


def store_times(store: MessageStore) -> list[int]:
    """Of every record, in the log's order."""
    return [entry[6] for entry in log_entries(store)]


@pytest.mark.parametrize("by_ms", [HOUR_MS, -HOUR_MS])
def test_store_times_never_decrease_on_one_broker(by_ms: int) -> None:
    clock, disk = Clock(), MemoryDisk()
    store = open_store(disk, clock)
    for number in range(30):
        clock.now_ms += by_ms if number == 10 else -by_ms if number == 20 else 7
        put(store, draft(b"%d" % number))
    times = store_times(store)
    assert len(times) == 30
    assert times == sorted(times)
    sync(store)
    store.close()
    clock.now_ms -= 2 * HOUR_MS
    again = open_store(disk, clock)
    put(again, draft(b"after a restart"))
    assert store_times(again) == sorted(store_times(again)), "the log says what was stamped last, not the clock"


def test_store_times_never_decrease_over_a_failover_to_a_broker_whose_clock_is_behind() -> None:
    clock = Clock()
    master, replica = open_store(MemoryDisk(), clock), make_store(MemoryDisk(), Clock(clock.now_ms - HOUR_MS))
    replica.load()
    for number in range(10):
        clock.now_ms += 1000
        put(master, draft(b"%d" % number))
    replica.append_replicated(0, log_bytes(master))
    replica.set_appendable(True)
    put(replica, draft(b"of the new master"))
    times = store_times(replica)
    assert len(times) == 11
    assert times == sorted(times)


@pytest.mark.parametrize("by_ms", [HOUR_MS, -HOUR_MS])
def test_no_file_grows_old_in_a_moment(by_ms: int) -> None:
    retention = RetentionSettings()
    wall_ms, monotonic_s = 1_700_000_000_000, 100.0
    clock = SteadyClock(lambda: wall_ms, lambda: monotonic_s)
    nearly = wall_ms - retention.reserved_time_ms + HOUR_MS // 2
    files = [FileAge(0, 1000, nearly), FileAge(1000, 2000, nearly), FileAge(2000, 3000, wall_ms)]
    roomy = DiskUsage(10**12, 10**12)
    wall_ms += by_ms
    for _ in range(60):
        monotonic_s += 10
        wall_ms += 10_000
        assert decide_retention(files, roomy, 3000, clock(), False, retention).remove == 0
    monotonic_s += 2 * HOUR_MS / 1000
    wall_ms += 2 * HOUR_MS
    assert decide_retention(files, roomy, 3000, clock(), False, retention).remove == 2, "in its time it goes"
