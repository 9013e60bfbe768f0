"""Ten thousand queues in one store: all of them are there after any end, and files are open for a few only."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from remoting.disk import LocalDisk
from tests.unit.brokerd.store.stores import SETTINGS, bodies, dispatch_all, draft, make_store, open_store, put, sync

TOPICS, QUEUES = 100, 100
FEW = replace(SETTINGS, segment_size_bytes=1 << 22, dispatch_chunk_bytes=1 << 20, open_queue_files=64)


def test_a_start_finds_ten_thousand_queues_with_few_files_open(tmp_path: Path) -> None:
    disk = LocalDisk(tmp_path)
    store = open_store(disk, settings=FEW)
    for topic in range(TOPICS):
        put(store, *(draft(b"1", topic=f"T{topic}", queue_id=queue_id) for queue_id in range(QUEUES)))
    sync(store)
    store.checkpoint()
    put(store, draft(b"2", topic="T7", queue_id=3))
    sync(store)
    expected = {(f"T{topic}", queue_id): 1 for topic in range(TOPICS) for queue_id in range(QUEUES)} | {("T7", 3): 2}
    disk.close()  # as if the process had died
    for _ in ("after a crash", "after a clean end"):
        disk = LocalDisk(tmp_path)
        open_before = len(os.listdir("/proc/self/fd"))
        store = make_store(disk, settings=FEW)
        store.load()
        dispatch_all(store)
        assert 0 < len(os.listdir("/proc/self/fd")) - open_before <= FEW.open_queue_files + 8
        assert {key: queue.max_offset for key, queue in store.queues.table.items()} == expected
        assert bodies(store, "T7", 3) == [b"1", b"2"]
        store.close()
        disk.close()
