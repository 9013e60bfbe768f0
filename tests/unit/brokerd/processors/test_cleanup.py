"""Codes 306, 316 and 329: what they remove is really gone, what anybody needs stays, and a restart changes nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from brokerd.metadata.configs import TopicConfig
from brokerd.metadata.names import METADATA_TOPIC
from brokerd.processors.administration.cleanup import CleanupProcessor
from brokerd.store.housekeeping import Housekeeper
from brokerd.store.log.retention import RetentionDecision
from brokerd.store.queues.consume_queue import DIRECTORY
from brokerd.store.settings import RetentionSettings
from remoting import codes
from remoting.frame import Command
from remoting.settings import Live
from tests.support.disks import MemoryDisk
from tests.support.remoting_broker import Peer
from tests.unit.brokerd.config.test_takeover import Opened
from tests.unit.brokerd.store.stores import SETTINGS, bodies, draft, payloads, sync


class Cleaned:
    """A broker with the processor, and the clock of its retention."""

    def __init__(self, disk: MemoryDisk, *, master: bool = True) -> None:
        self.disk = disk
        self.broker = Opened(disk)
        if master:
            self.broker.promote()
        self.store = self.broker.core.store
        self.now_ms = self.broker.turns.wall_ms()
        self.housekeeper = Housekeeper(
            self.store,
            disk,
            SETTINGS,
            Live(RetentionSettings(files_per_round=2)),
            lambda: self.now_ms,
        )
        metadata = self.broker.core.metadata
        self.processor = CleanupProcessor(
            self.store,
            self.housekeeper,
            metadata,
            metadata.names.is_system_topic,
            lambda: self.broker.replica.is_master,
            lambda: self.now_ms,
        )

    async def ask(self, code: int) -> Command:
        peer = Peer()
        connection: Any = peer
        self.processor.handlers()[code](connection, [Command(code, 1, {}, b"", 0)])
        async with asyncio.timeout(60):
            while not peer.answers:
                self.broker.turns.run(10)
                await asyncio.sleep(0)
        self.broker.turns.run(100)
        return peer.answers[1]

    def make(self, topic: str) -> None:
        answers: list[object] = []
        self.broker.core.metadata.put_topic(TopicConfig(topic, 1, 1), answers.append)
        self.broker.turns.run(100)
        assert answers == [None]

    def put(self, topic: str, count: int, size: int = 300) -> None:
        for body in payloads(count, size):
            self.store.append_messages([draft(body, topic=topic)])
            self.broker.replica.on_appended(self.store.commitlog.end_offset)
            self.broker.turns.run(10)
        sync(self.store)

    def expire_all(self) -> None:
        """Remove all files of the log that nobody needs."""
        held = self.store.held_offset()
        while len(starts := self.store.commitlog.segment_starts()) > 1 and starts[1] <= held:
            for removal in self.store.apply_retention(RetentionDecision(1, False)):
                removal()

    async def stop(self) -> None:
        await self.processor.close()
        await self.housekeeper.stop()
        self.broker.stop()


async def expired_and_young() -> Cleaned:
    """Topic Old, whose twenty messages are all gone from the log, and topic Young, whose are not."""
    cleaned = Cleaned(MemoryDisk())
    cleaned.make("Old")
    cleaned.make("Young")
    cleaned.put("Old", 20)
    cleaned.put("Young", 30)
    cleaned.store.checkpoint()
    cleaned.expire_all()
    assert cleaned.store.commitlog.min_offset > cleaned.store.queues.table["Old", 0].last_physical
    return cleaned


async def test_queues_without_a_message_lose_their_files_and_keep_their_place() -> None:
    cleaned = await expired_and_young()
    young = bodies(cleaned.store, "Young")
    assert cleaned.disk.names(f"{DIRECTORY}/Old/0")
    answer = await cleaned.ask(codes.CLEAN_EXPIRED_CONSUMEQUEUE)
    assert (answer.code, "those of 1 queues" in str(answer.remark)) == (codes.SUCCESS, True)
    cleaned.store.checkpoint()
    assert cleaned.disk.names(f"{DIRECTORY}/Old/0") == []
    assert cleaned.disk.names(f"{DIRECTORY}/{METADATA_TOPIC}/0")
    assert cleaned.store.max_offset("Old", 0) == cleaned.store.min_offset("Old", 0) == 20
    assert bodies(cleaned.store, "Young") == young
    again = await cleaned.ask(codes.CLEAN_EXPIRED_CONSUMEQUEUE)
    assert "those of 0 queues" in str(again.remark)
    await cleaned.stop()
    restarted = Cleaned(cleaned.disk)
    assert restarted.store.max_offset("Old", 0) == 20
    restarted.put("Old", 2)
    assert restarted.store.min_offset("Old", 0) == 20
    assert restarted.store.max_offset("Old", 0) == 22
    assert bodies(restarted.store, "Old") == list(payloads(2, 300))
    await restarted.stop()


async def test_a_copy_of_the_log_knows_where_they_go_on() -> None:
    cleaned = await expired_and_young()
    await cleaned.ask(codes.CLEAN_EXPIRED_CONSUMEQUEUE)
    copy = Cleaned(MemoryDisk(), master=False)
    log, offset = cleaned.store.commitlog, cleaned.store.commitlog.min_offset
    while offset < log.end_offset:
        piece = log.read(offset, 1000)
        copy.store.append_replicated(offset, piece)
        offset += len(piece)
    copy.broker.replica.on_appended(offset)
    copy.broker.turns.run(100)
    assert copy.store.max_offset("Old", 0) == 20
    assert (await copy.ask(codes.CLEAN_EXPIRED_CONSUMEQUEUE)).code == codes.SUCCESS
    copy.broker.promote()
    copy.put("Old", 1)
    assert copy.store.max_offset("Old", 0) == 21
    await cleaned.stop()
    await copy.stop()


async def test_queues_of_topics_that_do_not_exist_go_for_good() -> None:
    cleaned = Cleaned(MemoryDisk())
    cleaned.make("Known")
    for topic in ("Known", "Unknown", "SCHEDULE_TOPIC_XXXX"):
        cleaned.put(topic, 5)
    cleaned.store.checkpoint()
    answer = await cleaned.ask(codes.CLEAN_UNUSED_TOPIC)
    assert (answer.code, answer.remark) == (0, "the queues of 1 topics that do not exist are removed")
    assert cleaned.store.topics_with_queues() == {"Known", "SCHEDULE_TOPIC_XXXX", METADATA_TOPIC}
    cleaned.store.checkpoint()
    assert cleaned.disk.names(f"{DIRECTORY}/Unknown") == []
    await cleaned.stop()
    cleaned.disk.remove(DIRECTORY)
    restarted = Cleaned(cleaned.disk)
    assert restarted.store.topics_with_queues() == {"Known", "SCHEDULE_TOPIC_XXXX", METADATA_TOPIC}
    assert len(bodies(restarted.store, "Known")) == 5
    await restarted.stop()


async def test_expired_files_of_the_log_go_at_once_but_none_that_is_needed() -> None:
    cleaned = Cleaned(MemoryDisk())
    cleaned.make("Orders")
    cleaned.put("Orders", 120)
    starts = cleaned.store.commitlog.segment_starts()
    assert len(starts) > 6
    assert "0 expired" in str((await cleaned.ask(codes.DELETE_EXPIRED_COMMITLOG)).remark)
    cleaned.now_ms += RetentionSettings().reserved_time_ms + 60_000
    cleaned.store.position_holders.append(lambda: starts[5] + 1)
    assert "5 expired" in str((await cleaned.ask(codes.DELETE_EXPIRED_COMMITLOG)).remark), "more than one round's"
    assert cleaned.store.commitlog.min_offset == starts[5]
    cleaned.store.position_holders.pop()
    await cleaned.ask(codes.DELETE_EXPIRED_COMMITLOG)
    assert starts[5] < cleaned.store.commitlog.min_offset <= cleaned.store.held_offset()
    await cleaned.stop()


@pytest.mark.parametrize("code", [codes.CLEAN_EXPIRED_CONSUMEQUEUE, codes.CLEAN_UNUSED_TOPIC])
async def test_what_cannot_be_recorded_is_not_done(code: int) -> None:
    cleaned = await expired_and_young()
    cleaned.put("Unknown", 2)
    cleaned.broker.replica.is_taking = False
    before = cleaned.store.queues.max_offsets()
    answer = await cleaned.ask(code)
    assert answer.code != codes.SUCCESS
    assert cleaned.store.queues.max_offsets() == before
    cleaned.broker.replica.is_taking = True
    assert (await cleaned.ask(code)).code == codes.SUCCESS
    await cleaned.stop()
