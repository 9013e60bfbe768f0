"""`config/*.json` follows the log: only what changed is written, and what a disk refused is written later."""

from __future__ import annotations

from random import Random
from typing import Any

from brokerd.config import documents
from brokerd.metadata.configs import GroupConfig, TopicConfig
from brokerd.store.housekeeping import Housekeeper
from brokerd.store.settings import RetentionSettings
from remoting.errors import StorageError
from remoting.settings import Live
from tests.support.disks import FaultyDisk, MemoryDisk
from tests.unit.brokerd.config.test_takeover import Opened
from tests.unit.brokerd.store.stores import SETTINGS


def written(opened: Opened) -> dict[str, dict[str, Any]]:
    """Write; the documents that were replaced, by path."""
    replaced: list[str] = []
    replace_bytes = opened.disk.replace_bytes

    def watched(path: str, content: bytes) -> None:
        replaced.append(path)
        replace_bytes(path, content)

    opened.disk.replace_bytes = watched  # type: ignore[method-assign]
    opened.core.config.write()
    del opened.disk.replace_bytes  # type: ignore[method-assign]
    return {path: documents.parse(opened.disk.read_bytes(path) or b"", path) for path in replaced}


def put_topic(opened: Opened, name: str) -> None:
    answers: list[object] = []
    opened.core.metadata.put_topic(TopicConfig(name, 2, 2), answers.append)
    opened.turns.run(100)
    assert answers == [None]


def test_only_what_changed_is_written() -> None:
    opened = Opened(MemoryDisk()).promote()
    assert written(opened) == {}
    put_topic(opened, "Orders")
    first = written(opened)
    assert set(documents.decode_topics(first[documents.TOPICS])) == {"Orders"}
    assert written(opened) == {}
    assert opened.commit(0) == [None]
    assert documents.decode_offsets(written(opened)[documents.OFFSETS]) == {("GID", "Orders"): {0: 0}}
    put_topic(opened, "Payments")
    second = written(opened)
    assert documents.GROUPS not in second
    versions = [each[documents.TOPICS]["dataVersion"] for each in (first, second)]
    assert versions[0]["counter"] < versions[1]["counter"]
    answers: list[object] = []
    opened.core.metadata.put_group(GroupConfig("GID", fifo=True), answers.append)
    opened.core.metadata.delete_topic("Orders", answers.append)
    opened.turns.run(100)
    assert answers == [None, None]
    third = written(opened)
    assert documents.decode_groups(third[documents.GROUPS])["GID"].fifo
    assert set(documents.decode_topics(third[documents.TOPICS])) == {"Payments"}
    assert documents.decode_offsets(third[documents.OFFSETS]) == {}


def test_a_start_writes_them_all_again() -> None:
    opened = Opened(MemoryDisk()).promote()
    put_topic(opened, "Orders")
    opened.stop()
    assert set(written(Opened(opened.disk))) == set(documents.PATHS)


async def test_what_the_disk_refuses_is_written_later() -> None:
    disk = FaultyDisk(Random(1))
    opened = Opened(disk).promote()
    put_topic(opened, "Orders")
    opened.core.config.write()
    put_topic(opened, "Payments")
    failures: list[StorageError] = []
    opened.core.store.failure_listeners.append(failures.append)
    housekeeper = Housekeeper(
        opened.core.store, disk, SETTINGS, Live(RetentionSettings()), lambda: 0, opened.core.config.write_behind
    )
    capacity, disk.capacity_bytes = disk.capacity_bytes, 0
    await housekeeper.write_config()
    assert disk.counters.no_space_errors == 1
    disk.capacity_bytes = capacity
    await housekeeper.write_config()
    await housekeeper.stop()
    content = disk.read_bytes(documents.TOPICS) or b""
    assert set(documents.decode_topics(documents.parse(content, "file"))) == {"Orders", "Payments"}
    assert failures == []
