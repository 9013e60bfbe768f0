"""A broker without sockets whose tier is an object store in memory; a test says when that store fails."""

from __future__ import annotations

import random

from brokerd.composition.environment import Tier
from brokerd.metadata.configs import TopicConfig
from brokerd.replication.roles.effects import Role
from brokerd.store.draft import Draft
from brokerd.store.log.retention import RetentionDecision
from brokerd.store.settings import StoreSettings
from brokerd.tiers.settings import TierSettings
from remoting.record.hosts import pack_host
from remoting.settings import Live
from tests.support.alone import AloneBroker
from tests.support.disks import MemoryDisk
from tests.support.tiers import FaultyObjects, Steps, Stored
from tests.support.turns import Turns

HOST = pack_host("127.0.0.1", 10911)
STORE = StoreSettings(segment_size_bytes=16 * 1024, queue_file_units=16, index_enabled=False)
SETTINGS = TierSettings(url="s3://bucket/prefix", commit_interval_ms=1000, commit_bytes=4096, buffer_bytes=1 << 20)


class TieredBroker(AloneBroker):
    """Master from the start; topic T has two queues."""

    def __init__(self, settings: TierSettings = SETTINGS, *, appends: bool = False) -> None:
        turns = Turns()
        steps = Steps(turns)
        self.objects = FaultyObjects(Stored(), steps, turns, random.Random(1), appends=appends)
        tier = Tier(self.objects, steps.loop())
        super().__init__(MemoryDisk(), turns, STORE, HOST, tier=tier, tiers=Live(settings))
        turns.run()
        self.replica.become(Role.MASTER)
        turns.run(1000)
        self.put_topic("T")

    def put_topic(self, name: str, **attributes: str) -> None:
        """Make it, or change its attributes (`tier_enable` is tier.enable)."""
        given = {key.replace("_", "."): value for key, value in attributes.items()}
        self.core.metadata.put_topic(TopicConfig(name, 2, 2, 6, attributes=given), lambda _: None)
        self.turns.run(100)

    def send(self, count: int, queue_id: int = 0, topic: str = "T") -> None:
        for _ in range(count):
            message = Draft(topic, queue_id, b"x" * 300, b"", self.turns.wall_ms(), HOST)
            self.core.record_log.append_messages([message])
        self.turns.run()

    def remove_files(self, *, needs_room: bool = False) -> None:
        """All but the newest that nobody needs; a full disk does not wait for uploads."""
        store = self.core.store
        store.checkpoint()
        store.set_full(needs_room)
        held = store.held_offset()
        count = sum(1 for age in store.file_ages()[:-1] if age.end <= held)
        for removal in store.apply_retention(RetentionDecision(count, False)):
            removal()
