"""Three nodes, each on its own failing disk: who cannot remember does not lead, and nothing that was decided is lost."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import pytest

from controllerd.raft.core import RaftCore
from controllerd.raft.driver import DriverEvents, RaftDriver
from controllerd.raft.leading import CoreSettings
from controllerd.raft.log import LostLog
from controllerd.raft.log_file import RaftLogFile
from controllerd.raft.messages import Message
from controllerd.raft.node import RaftNode
from remoting.errors import LogboomError, StorageError
from tests.support.disks import FaultyDisk
from tests.unit.controllerd.raft.test_driver import until
from tests.unit.controllerd.raft.test_node import Recorder

NAMES = ("n0", "n1", "n2")


class Group:
    """Three drivers that hand one another their messages."""

    def __init__(self) -> None:
        self.disks = {name: FaultyDisk(random.Random(name)) for name in NAMES}
        self.drivers: dict[str, RaftDriver] = {}
        self.machines: dict[str, Recorder] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.decided: list[bytes] = []
        self.unknown: set[bytes] = set()

    def start(self, name: str) -> None:
        file = RaftLogFile(self.disks[name], "group", name, NAMES)
        recovered = file.open()
        settings = CoreSettings(election_ticks=10)
        core = RaftCore(name, recovered.founders, recovered.log, recovered.hard_state, settings, random.Random(name))
        machine = self.machines[name] = Recorder()
        node = RaftNode(core, machine, compact_after_entries=15, keep_entries=3)
        self.drivers[name] = RaftDriver(node, file, DriverEvents(self.send, lambda _: None), 5)
        self.tasks[name] = asyncio.get_running_loop().create_task(self.drivers[name].run())

    def send(self, message: Message) -> None:
        if not self.tasks[message.to].done():
            asyncio.get_running_loop().call_soon(self.drivers[message.to].receive, message)

    async def leader(self, among: tuple[str, ...] = NAMES) -> str:
        found: list[str] = []

        def is_there() -> bool:
            found[:] = [name for name in among if not self.tasks[name].done() and self.drivers[name].is_serving]
            return bool(found)

        await until("a leader", is_there)
        return found[0]

    async def decide(self, count: int, among: tuple[str, ...] = NAMES) -> None:
        """That many commands, each at whoever leads then."""
        end = len(self.decided) + count
        number = 0
        async with asyncio.timeout(60):
            while len(self.decided) < end:
                number += 1
                data = b"%d.%d" % (end, number)
                leader = await self.leader(among)
                try:
                    await self.drivers[leader].propose(data, 2000)
                except LogboomError:
                    self.unknown.add(data)
                else:
                    self.decided.append(data)

    async def agree(self) -> None:
        """Everybody has applied every decided command once, in the same order, and nothing that was never proposed."""

        def same() -> bool:
            return len({tuple(self.machines[name].applied) for name in NAMES}) == 1 and set(self.decided) <= set(
                self.machines["n0"].applied
            )

        await until("agreement", same)
        applied = self.machines["n0"].applied
        assert [data for data in applied if data not in self.unknown] == self.decided
        assert len(set(applied)) == len(applied)

    async def close(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)


@contextlib.asynccontextmanager
async def group() -> AsyncIterator[Group]:
    found = Group()
    try:
        for name in NAMES:
            found.start(name)
        yield found
    finally:
        await found.close()


@pytest.mark.parametrize("fault", ["ENOSPC", "EIO"])
async def test_a_leader_that_cannot_write_is_replaced_and_follows_when_it_can_again(fault: str) -> None:
    async with group() as nodes:
        await nodes.decide(10)
        for _ in range(3):
            leader = await nodes.leader()
            disk = nodes.disks[leader]
            if fault == "ENOSPC":
                disk.capacity_bytes = disk.used_bytes
            else:
                disk.fail_write_at(1)
            await nodes.decide(10)
            if fault == "ENOSPC":
                assert nodes.drivers[leader].disk_error is not None
                assert await nodes.leader() != leader
            disk.capacity_bytes = 1 << 40
        await nodes.agree()
        counters = [disk.counters for disk in nodes.disks.values()]
        assert sum(each.no_space_errors + each.write_errors for each in counters) >= 3
        assert all(not task.done() for task in nodes.tasks.values()), "no node had to end"


async def test_a_failed_sync_ends_the_node_which_comes_back_by_what_the_disk_really_holds() -> None:
    async with group() as nodes:
        await nodes.decide(10)
        for round_number in range(4):
            leader = await nodes.leader()
            disk = nodes.disks[leader]
            disk.fail_sync_at(1)
            others = tuple(name for name in NAMES if name != leader)
            with contextlib.suppress(LogboomError):
                await nodes.drivers[leader].propose(b"lost%d" % round_number, 2000)
            nodes.unknown.add(b"lost%d" % round_number)
            with pytest.raises(StorageError, match="cannot sync raft/log-"):
                await nodes.tasks[leader]
            await nodes.decide(10, others)
            disk.crash() if round_number % 2 else disk.kill()
            nodes.start(leader)
        await nodes.decide(5)
        await nodes.agree()
        assert sum(disk.counters.sync_errors for disk in nodes.disks.values()) == 4


async def test_a_torn_end_is_dropped_what_was_promised_is_missed_and_a_hole_refuses_to_start() -> None:
    async with group() as nodes:
        await nodes.decide(5)  # all that is decided here stays in the log: what is compacted cannot be torn off
        leader = await nodes.leader()
        victim = next(name for name in NAMES if name != leader)
        disk = nodes.disks[victim]

        async def stopped() -> str:
            nodes.tasks[victim].cancel()
            await asyncio.gather(nodes.tasks[victim], return_exceptions=True)
            return next(f"raft/{name}" for name in disk.names("raft") if name.startswith("log-"))

        # A write that power cut short: nobody was told of it.
        path = await stopped()
        segment = disk.open(path)
        segment.write(segment.size_bytes, [segment.read(0, 15)])
        nodes.start(victim)
        await nodes.decide(3)
        await nodes.agree()

        # A write that was acknowledged and is gone: the seal knows it, and if nothing here does, the leader counts on it.
        path = await stopped()
        whole = disk.read_bytes(path)
        assert whole is not None
        segment = disk.open(path)
        segment.truncate(segment.size_bytes - 3)
        with pytest.raises(LostLog, match="it was durable"):
            nodes.start(victim)
        disk.remove("raft/seal")
        nodes.start(victim)
        with pytest.raises(LostLog, match="was acknowledged by this controller"):
            await nodes.tasks[victim]

        # Damage before a whole record.
        path = await stopped()
        position = disk.open(path).size_bytes // 2
        disk.open(path).write(disk.open(path).size_bytes, [disk.open(path).read(0, 1 << 20)])
        disk.flip_bit(path, position, 0)
        with pytest.raises(
            LostLog, match=r"is damaged at .* before a whole record|not start with a whole header|it was durable"
        ):
            nodes.start(victim)
        assert disk.counters.bit_flips == 1
