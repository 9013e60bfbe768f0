"""The lease: whatever fails, and whoever sleeps, two never serve at once; and a mount has what the group had in the tier."""

from __future__ import annotations

import random
from typing import Any

import pytest

from brokerd.composition.environment import Tier
from brokerd.replication.roles.effects import Role
from brokerd.store.queues.queue_reads import GetStatus
from brokerd.tiers.mounting import leases
from brokerd.tiers.mounting.group import MountedGroup, read_group
from brokerd.tiers.mounting.keeping import MountedElsewhere, refuse_mounted
from brokerd.tiers.mounting.leases import Clock, LeaseHeld, LeaseHolder, latest_lease
from brokerd.tiers.objects.interface import ObjectStoreError
from remoting.facts.words import TierCondition
from remoting.record.codec import decode_record
from remoting.settings import Live
from remoting.tier.leases import LEASE_S, LeaseState
from tests.support.alone import AloneBroker
from tests.support.disks import MemoryDisk
from tests.support.tiered_broker import HOST, SETTINGS, STORE, TieredBroker
from tests.support.tiers import FaultyObjects, Steps, Stored
from tests.support.turns import Turns

SEEDS = 40
MINUTES = 6


class Overlap(AssertionError):
    """Two served at once."""


class Contender:
    """A process that wants to serve. Its clock is its own; it may sleep, and then goes on as if nothing had been."""

    def __init__(self, name: str, race: Race) -> None:
        self.name = name
        self.race = race
        self.offset_s = race.rng.uniform(0, 1e6)
        self.objects = FaultyObjects(race.stored, race.steps, race.turns, race.rng)
        self.objects.fails_before = self.objects.fails_after = race.failures
        self.objects.slow_s = race.rng.choice([0.01, 0.5, 4.0])
        self.holder = self.make_holder()
        self.times = self.gave_up = 0

    def make_holder(self) -> LeaseHolder:
        clock = Clock(
            lambda: self.race.turns.time() + self.offset_s,
            self.pause,
            self.race.turns.wall_ms,
            self.race.rng.getrandbits,
        )
        return LeaseHolder(self.objects, self.name, clock, f"{self.race.rng.getrandbits(64):x}")

    async def pause(self, seconds: float) -> None:
        await self.race.steps.pause(seconds)
        if self.race.rng.random() < 0.02:
            await self.race.steps.pause(self.race.rng.choice([5, 20, 45, 200]))

    async def live(self) -> None:
        while True:
            try:
                await self.holder.take(lambda _: None, 2 * LEASE_S)
                self.times += 1
                while True:
                    await self.pause(leases.RENEW_S)
                    if self.race.rng.random() < 0.1:
                        await self.holder.rest()
                        break
                    await self.holder.renew()
                    await self.holder.remove_old()
            except LeaseHeld:
                self.gave_up += 1
            except ObjectStoreError:
                await self.pause(1)
            await self.pause(self.race.rng.uniform(1, 40))
            self.holder = self.make_holder()


class Race:
    """Some contenders over one object store; at every moment at most one of them may serve."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.turns = Turns()
        self.steps = Steps(self.turns)
        self.stored = Stored()
        self.failures = self.rng.choice([0.0, 0.02, 0.2])
        self.contenders = [Contender(f"10.0.0.{number}", self) for number in range(3)]

    def run(self) -> None:
        for each in self.contenders:
            self.steps.spawn(each.live(), "serve")
        for _ in range(MINUTES * 60 * 2):
            self.turns.run(500)
            serving = [each.name for each in self.contenders if each.holder.is_held]
            if len(serving) > 1:
                raise Overlap(f"{serving} at {self.turns.time()}")


def test_two_never_have_the_lease() -> None:
    races = [Race(seed) for seed in range(SEEDS)]
    for race in races:
        race.run()
    assert sum(each.times for race in races for each in race.contenders) > SEEDS
    assert sum(len({each.name for each in race.contenders if each.times}) > 1 for race in races) > SEEDS // 4
    assert sum(each.gave_up for race in races for each in race.contenders) > SEEDS
    assert sum(each.objects.faults for race in races for each in race.contenders) > 100
    assert max(len([name for name in race.stored.objects if name.startswith("lease/")]) for race in races) < 40


async def not_watched(self: LeaseHolder, lease: Any) -> Any:
    return await latest_lease(self._objects)


MUTANTS: dict[str, tuple[Any, str, Any]] = {
    "taken without a watch": (LeaseHolder, "_watch", not_watched),
    "served longer than it lasts": (leases, "HOLDER_S", 3 * LEASE_S),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_rule_lets_two_serve(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MUTANTS[name])
    for seed in range(SEEDS):
        try:
            Race(seed).run()
        except Overlap:
            return
    pytest.fail(f"nobody noticed: {name}")


# ---- what is mounted


class Mounting:
    """A broker whose group is lost, and the mount of it."""

    def __init__(self) -> None:
        self.lost = TieredBroker()
        self.turns, self.stored = self.lost.turns, self.lost.objects.stored
        self.steps = Steps(self.turns)
        self.objects = FaultyObjects(self.stored, self.steps, self.turns, random.Random(3))

    def wait_for(self, work: Any) -> Any:
        found: list[Any] = []

        async def run() -> None:
            try:
                found.append(await work)
            except ObjectStoreError as error:
                found.append(error)

        self.steps.spawn(run(), "ask")
        self.turns.run(60_000)
        return found[0]

    def mount(self, epoch: int) -> AloneBroker:
        group = self.wait_for(read_group(self.objects, "broker-a"))
        assert isinstance(group, MountedGroup)
        tier = Tier(self.objects, self.steps.loop(), group)
        broker = AloneBroker(MemoryDisk(), self.turns, STORE, HOST, tier=tier, tiers=Live(SETTINGS))
        broker.replica.become(Role.MASTER, epoch)
        return broker

    def holder(self, name: str = "a") -> LeaseHolder:
        rng = random.Random(name)
        clock = Clock(self.turns.time, self.steps.pause, self.turns.wall_ms, rng.getrandbits)
        return LeaseHolder(self.objects, "10.0.0.9:10911", clock, name)


def read_all(broker: AloneBroker, queue_id: int, end: int) -> list[int]:
    """The queue offsets that are read from 0 on, over all the tier's fetches."""
    found: list[int] = []
    offset = 0
    for _ in range(1000):
        got = broker.core.store.read_messages("T", queue_id, offset, 32, 1 << 20)
        if got.status is GetStatus.BEING_FETCHED:
            broker.turns.run(100)
            continue
        found += [decode_record(record).queue_offset for record in got.records]
        offset = got.next_offset
        if offset >= end:
            return found
    raise AssertionError(f"{found} is all that can be read")


def test_a_mount_has_all_that_was_uploaded_and_consumers_go_on_where_they_were() -> None:
    world = Mounting()
    world.lost.send(40, 0)
    world.lost.send(3, 1)
    metadata = world.lost.core.metadata
    metadata.commit_offset("g", "T", 0, 17, None)
    metadata.commit_offset("g", "T", 1, 3, None)
    world.turns.run(60_000)
    world.lost.send(2, 1)  # acknowledged, and not uploaded: nobody has it any more
    metadata.commit_offset("g", "T", 1, 5, None)
    world.lost.core.close()

    mount = world.mount(epoch=7)
    store, core = mount.core.store, mount.core
    assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (0, 40)  # from the first moment on
    assert read_all(mount, 0, 40) == list(range(40))
    assert read_all(mount, 1, 3) == [0, 1, 2]
    assert [core.progress.consumer_offset("g", "T", each) for each in (0, 1)] == [17, 3]
    topic = core.metadata.topic("T")
    assert topic is not None
    assert topic.perm == 4
    assert core.tiers.condition is TierCondition.OPEN

    core.metadata.commit_offset("g", "T", 0, 30, None)
    world.turns.run(60_000)
    core.close()
    second = world.mount(epoch=9)
    assert second.core.progress.consumer_offset("g", "T", 0) == 30
    assert read_all(second, 0, 40) == list(range(40))


def test_what_a_mount_serves_follows_its_retention_and_nothing_else_goes() -> None:
    world = Mounting()
    world.lost.put_topic("Short", tier_reserve_time="2")
    world.lost.send(40, topic="Short")
    world.lost.send(40, 0)
    world.turns.run(60_000)
    world.lost.core.close()
    mount = world.mount(epoch=7)
    own = {
        "timers/0000472222-3-1a",
        "T/0/COMMIT_LOG/cfcd208400000000000000000000-3-ff",
    }  # only the lost log could name them
    world.stored.objects |= dict.fromkeys(own, b"x")
    world.stored.times |= dict.fromkeys(own, 0)
    world.turns.run(600_000)
    store = mount.core.store
    assert store.min_offset("Short", 0) == 0
    assert read_all(mount, 0, 40) == list(range(40))
    world.turns.set_wall_clock(2 * 3_600_000)
    world.turns.run(120_000)
    assert (store.min_offset("Short", 0), store.max_offset("Short", 0)) == (40, 40)
    assert read_all(mount, 0, 40) == list(range(40))
    world.turns.set_wall_clock(30 * 3_600_000)
    world.turns.run(600_000)
    assert not [name for name in world.stored.objects if name.startswith("Short/")]
    assert own <= world.stored.objects.keys()
    assert read_all(mount, 0, 40) == list(range(40))
    mount.core.close()
    second = world.mount(epoch=9)
    world.turns.run(1000)
    assert second.core.store.min_offset("Short", 0) == 40, "the manifest says so, too"


def test_the_groups_own_master_ends_beside_a_mount_and_leads_again_when_it_was_given_back() -> None:
    world = Mounting()
    world.lost.send(40)
    world.turns.run(60_000)
    failed: list[object] = []
    world.lost.core.store.failure_listeners.append(failed.append)
    holder = world.holder()
    world.wait_for(holder.take(lambda _: None, 0))
    refused = world.wait_for(refuse_mounted(world.objects, "broker-a"))
    assert isinstance(refused, MountedElsewhere)
    assert "10.0.0.9:10911" in str(refused)
    assert "--release-mount" in str(refused)
    assert [str(each) for each in failed] == [str(refused)]
    assert world.lost.core.tiers.condition is TierCondition.FENCED

    mount = world.mount(epoch=7)
    world.turns.run(60_000)
    mount.core.close()
    world.wait_for(holder.rest())
    assert isinstance(world.wait_for(refuse_mounted(world.objects, "broker-a")), MountedElsewhere)
    other = world.holder("b")
    world.wait_for(other.take(lambda _: None, 0))
    world.wait_for(other.release())
    lease = world.wait_for(latest_lease(world.objects))
    assert lease.state is LeaseState.RELEASED
    assert world.wait_for(refuse_mounted(world.objects, "broker-a")) is None

    world.lost.core.store.abandon()
    tier = Tier(world.objects, world.steps.loop())
    again = AloneBroker(world.lost.disk, world.turns, STORE, HOST, tier=tier, tiers=Live(SETTINGS))
    again.replica.epochs = list(world.lost.replica.epochs)
    again.replica.become(Role.MASTER, 8)
    world.turns.run(60_000)
    tiers = again.core.tiers
    assert tiers.condition is TierCondition.OPEN, tiers.trouble
    assert tiers.table.contents.holdings.messages == 40


def test_who_waits_beside_a_mount_that_goes_on_gives_up_and_says_whose_it_is() -> None:
    world = Mounting()
    first, second = world.holder("a"), world.holder("b")
    world.wait_for(first.take(lambda _: None, 0))

    async def keep() -> None:
        while True:
            await world.steps.pause(leases.RENEW_S)
            await first.renew()

    world.steps.spawn(keep(), "keep")
    told: list[Any] = []
    gave_up: list[LeaseHeld] = []

    async def wait() -> None:
        try:
            await second.take(told.append, 2 * LEASE_S)
        except LeaseHeld as error:
            gave_up.append(error)

    world.steps.spawn(wait(), "wait")
    world.turns.run(50_000)
    assert [each.who for each in told] == ["10.0.0.9:10911"]
    assert not gave_up, "it may still end"
    world.turns.run(30_000)
    assert "10.0.0.9:10911 has the lease, and renews it" in str(gave_up[0])
    assert first.is_held
    assert not second.is_held
