"""What topics say of how long their messages stay in a broker's files, from their attribute to the files of the log."""

from __future__ import annotations

import asyncio

import pytest

from brokerd.composition.retention_figures import retention_families, retention_state
from brokerd.metadata.configs import TopicConfig
from brokerd.replication.roles.effects import Role
from brokerd.store.housekeeping import Housekeeper
from brokerd.store.settings import HOUR_MS, RetentionSettings
from remoting.disk import DiskUsage
from remoting.errors import RequestError
from remoting.exposition import render
from remoting.settings import Live
from tests.support.alone import AloneBroker
from tests.support.disks import MemoryDisk
from tests.support.turns import Turns
from tests.unit.brokerd.store.stores import SEGMENT_BYTES, SETTINGS, STORE_HOST, bodies, draft, sync

RETENTION = RetentionSettings(enough_free_bytes=0)
ROOMY = DiskUsage(100 * SEGMENT_BYTES, 90 * SEGMENT_BYTES)


class Broker(AloneBroker):
    """A core on the disk, with its housekeeper; hours pass when a test says so."""

    def __init__(self, disk: MemoryDisk | None = None, turns: Turns | None = None) -> None:
        super().__init__(disk or MemoryDisk(), turns or Turns(), SETTINGS, STORE_HOST)
        self.store = self.core.store
        self.usage = ROOMY
        self.disk.usage = lambda: self.usage
        self.keeper = Housekeeper(self.store, self.disk, SETTINGS, Live(RETENTION), self.turns.wall_ms)

    def lead(self) -> Broker:
        self.replica.become(Role.MASTER)
        self.replica.on_appended(self.store.commitlog.end_offset)
        self.turns.run(500)
        return self

    def topic(self, name: str, **attributes: str) -> object:
        """Make it, or change it (`local_reserve_time`); why that is refused."""
        given = {key.replace("_", "."): value for key, value in attributes.items()}
        answers: list[object] = []
        self.core.metadata.put_topic(TopicConfig(name, 1, 1, attributes=given), answers.append)
        self.turns.run(100)
        return answers[0]

    def put(self, topic: str, count: int = 1) -> None:
        for _ in range(count):
            self.store.append_messages([draft(bytes(800), topic=topic)])
            self.replica.on_appended(self.store.commitlog.end_offset)
            self.turns.run(10)
        sync(self.store)

    def pass_hours(self, hours: int) -> None:
        self.turns.set_wall_clock(hours * HOUR_MS)

    async def begin(self) -> int:
        """Where the log begins when all has gone that may; residents of the log let go of it first."""
        for _ in range(3):
            self.put("Other", 12)
            self.turns.run(60_000)
        sync(self.store)
        async with asyncio.timeout(60):
            await self.keeper.remove_expired_now()
        return self.store.commitlog.min_offset

    async def stop(self) -> None:
        await self.keeper.stop()
        self.core.close()


def scraped(broker: Broker) -> str:
    return render(retention_families(broker.store)).decode()


def aged() -> Broker:
    """A broker with a message of Kept, and many behind it, four days old."""
    broker = Broker().lead()
    assert broker.topic("Kept", local_reserve_time="240") is None
    assert broker.topic("Other") is None
    broker.put("Kept")
    broker.put("Other", 20)
    broker.pass_hours(4 * 24)
    return broker


async def test_a_topic_keeps_its_messages_longer_than_the_broker_keeps_files() -> None:
    broker = aged()
    assert await broker.begin() < SEGMENT_BYTES
    assert len(bodies(broker.store, "Kept")) == 1
    told = retention_state(broker.store, RETENTION)
    assert (told.reserved_ms, told.kept_topic, told.overruled_files) == (72 * HOUR_MS, "Kept", 0)
    assert told.kept_files > 0
    assert told.kept_bytes == told.kept_files * SEGMENT_BYTES
    assert f"logboom_retention_kept_files {told.kept_files}" in scraped(broker)
    broker.pass_hours(6 * 24)
    assert await broker.begin() > SEGMENT_BYTES
    assert bodies(broker.store, "Kept") == []
    await broker.stop()


@pytest.mark.parametrize("change", ["shorter", "none", "broker's", "deleted", "deleted and made again"])
async def test_what_a_topic_says_may_change(change: str) -> None:
    broker = aged()
    assert await broker.begin() < SEGMENT_BYTES
    if change.startswith("deleted"):
        broker.core.metadata.delete_topic("Kept", lambda _: None)
        broker.turns.run(100)
    if change == "deleted and made again":
        assert broker.topic("Kept", local_reserve_time="240") is None
        broker.put("Kept")
    elif change != "deleted":
        attributes = {"shorter": {"local_reserve_time": "80"}, "none": {}, "broker's": {"local_reserve_time": "-1"}}
        assert broker.topic("Kept", **attributes[change]) is None
    assert await broker.begin() > SEGMENT_BYTES
    await broker.stop()


async def test_a_replica_keeps_by_the_same_rule_and_so_does_who_starts_again() -> None:
    broker = aged()
    broker.store.checkpoint()
    await broker.stop()
    broker.store.close()
    again = Broker(broker.disk, broker.turns)
    assert not again.replica.is_master
    again.turns.run(100)
    async with asyncio.timeout(60):
        await again.keeper.remove_expired_now()
    assert again.store.commitlog.min_offset < SEGMENT_BYTES
    again.lead()
    assert await again.begin() < SEGMENT_BYTES
    again.replica.become(Role.REPLICA)
    async with asyncio.timeout(60):
        await again.keeper.remove_expired_now()
    assert again.store.wanted.kept.topic == "Kept"
    await again.stop()


async def test_a_disk_without_room_comes_first() -> None:
    broker = aged()
    assert await broker.begin() < SEGMENT_BYTES
    broker.usage = DiskUsage(100 * SEGMENT_BYTES, 14 * SEGMENT_BYTES)
    await broker.keeper.remove_old_files()
    assert broker.store.commitlog.min_offset == SEGMENT_BYTES
    told = retention_state(broker.store, RETENTION)
    assert (told.overruled_files, told.overruled_topic, told.overruled_ms) == (1, "Kept", broker.turns.wall_ms())
    assert "logboom_retention_overruled_files_total 1" in scraped(broker)
    await broker.stop()


@pytest.mark.parametrize("value", ["0", "-2", "x", "1.5", "", "876001", "9" * 400, "0" * 15 + "1" + "9" * 5000])
def test_what_is_no_number_of_hours_is_refused(value: str) -> None:
    broker = Broker().lead()
    refusal = broker.topic("Kept", local_reserve_time=value)
    assert isinstance(refusal, RequestError)
    assert "local.reserve.time must be -1 or a number of hours up to 876000" in str(refusal)
    broker.core.close()
