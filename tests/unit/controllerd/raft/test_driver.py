"""The driver over a real log file: it decides, remembers, reads, founds its group, and bears a failing disk."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from controllerd.raft.core import RaftCore
from controllerd.raft.driver import DriverEvents, MemberRemoved, RaftDriver
from controllerd.raft.leading import CoreSettings
from controllerd.raft.log_file import RaftLogFile
from controllerd.raft.membership import ChangeKind, MemberChange
from controllerd.raft.messages import Message, MessageKind, Role, SoftState
from controllerd.raft.node import OutcomeUnknown, RaftNode
from controllerd.raft.proposals import ProposalRefused, TransferRefused
from controllerd.raft.quorum import Configuration
from remoting.errors import LogboomError, NotLeader, RequestTimeout, StorageError
from tests.support.disks import FaultyDisk, MemoryDisk
from tests.unit.controllerd.raft.test_node import Recorder


async def until(what: str, condition: object) -> None:
    async with asyncio.timeout(60):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.005)


def make_driver(
    disk: MemoryDisk,
    voters: tuple[str, ...] = ("n0",),
    *,
    changed: list[SoftState] | None = None,
    founding: tuple[str, dict[str, str]] | None = None,
    seen: list[Configuration] | None = None,
) -> tuple[RaftDriver, Recorder, list[Message]]:
    file = RaftLogFile(disk, "group", "n0", voters)
    recovered = file.open()
    settings = CoreSettings(election_ticks=5)
    core = RaftCore("n0", recovered.founders, recovered.log, recovered.hard_state, settings, random.Random(1))
    machine, sent = Recorder(), []
    node = RaftNode(core, machine, compact_after_entries=20, keep_entries=2)
    states = [] if changed is None else changed
    events = DriverEvents(sent.append, states.append, ([] if seen is None else seen).append)
    driver = RaftDriver(node, file, events, 5, founding=founding)
    return driver, machine, sent


@asynccontextmanager
async def running(driver: RaftDriver) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.get_running_loop().create_task(driver.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_node_alone_decides_reads_compacts_and_remembers() -> None:
    disk, states = MemoryDisk(), []
    driver, machine, _ = make_driver(disk, changed=states)
    async with running(driver):
        with pytest.raises(NotLeader):
            await driver.propose(b"early", 1000)
        await until("leading", lambda: driver.is_serving)
        replies = await asyncio.gather(*(driver.propose(b"c%d" % number, 5000) for number in range(50)))
        assert replies == [f"did c{number}" for number in range(50)]
        await driver.read_barrier(1000)
        await until("a compaction", lambda: driver.node.core.log.compacted_index > 0)
    assert states[-1].leader == "n0"
    again, machine, _ = make_driver(disk)
    async with running(again):
        await until("leading", lambda: again.is_serving)
        assert machine.applied == [b"c%d" % number for number in range(50)]


async def test_without_a_majority_a_request_times_out_and_a_closing_node_answers() -> None:
    driver, _, sent = make_driver(MemoryDisk(), ("n0", "n1", "n2"))
    async with running(driver):
        await until("a pre-vote", lambda: sent)
        driver.receive(Message(MessageKind.PRE_VOTE_RESPONSE, "n1", "n0", 1))
        await until("a vote request", lambda: sent[-1].kind is MessageKind.VOTE)
        driver.receive(Message(MessageKind.VOTE_RESPONSE, "n1", "n0", 1))
        await until("an append", lambda: sent[-1].kind in (MessageKind.APPEND, MessageKind.HEARTBEAT))
        driver.receive(Message(MessageKind.APPEND_RESPONSE, "n1", "n0", 1, index=1))
        await until("serving", lambda: driver.is_serving)
        with pytest.raises((RequestTimeout, NotLeader)):
            await driver.propose(b"x", 10)
        with pytest.raises((RequestTimeout, NotLeader)):
            await driver.read_barrier(10)


async def test_what_is_asked_for_has_not_waited_for_the_time_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, _, _ = make_driver(MemoryDisk())
    async with running(driver):
        await until("leading", lambda: driver.is_serving)
        now_s = asyncio.get_running_loop().time()
        driver._look_at(now_s + 60)  # as where ticks bring nothing for long
        driver._ticking.at_s, driver._ticking._ticked_s = now_s + 60, now_s - 0.0525
        told: list[str] = []

        def read(answered: Callable[[object], None]) -> None:
            told.append("a request")
            answered(None)

        monkeypatch.setattr(driver.node, "tick", lambda: told.append("a tick"))
        monkeypatch.setattr(driver.node, "read", read)
        await driver.read_barrier(1000)
        assert told.index("a request") >= 10, "ticks of before come before it"


async def test_a_failing_disk_ends_the_node() -> None:
    disk = FaultyDisk(random.Random(1))
    driver, _, _ = make_driver(disk)
    async with running(driver) as task:
        await until("leading", lambda: driver.is_serving)
        disk.fail_sync_at(1)
        with pytest.raises(LogboomError):
            await driver.propose(b"x", 5000)
        with pytest.raises(StorageError):
            await task


async def test_a_lost_log_ends_the_node() -> None:
    driver, _, _ = make_driver(MemoryDisk(), ("n0", "n1", "n2"))
    async with running(driver) as task:
        driver.receive(Message(MessageKind.HEARTBEAT, "n1", "n0", 3, commit=9))
        with pytest.raises(StorageError, match="its data was lost or replaced"):
            await task
        assert not driver.is_serving


async def test_a_full_disk_takes_a_leader_out_of_service_until_there_is_room() -> None:
    disk = FaultyDisk(random.Random(1))
    driver, machine, _ = make_driver(disk)
    async with running(driver):
        await until("leading", lambda: driver.is_serving)
        term = driver.node.core.soft_state.term
        disk.capacity_bytes = disk.used_bytes
        with pytest.raises(OutcomeUnknown):
            await driver.propose(b"x", 5000)
        assert driver.node.core.soft_state.role is Role.FOLLOWER
        assert not driver.is_serving
        assert "No space left" in str(driver.disk_error)
        with pytest.raises(NotLeader, match=r"out of service.*No space left"):
            await driver.propose(b"y", 5000)
        with pytest.raises(NotLeader):
            await driver.read_barrier(1000)
        driver.receive(Message(MessageKind.HEARTBEAT, "n1", "n0", 99, commit=0))
        assert driver.node.core.soft_state.term == term, "it hears nothing that it could not remember"
        disk.capacity_bytes = 1 << 40
        await until("serving again", lambda: driver.is_serving)
        assert driver.disk_error is None
        await driver.propose(b"z", 5000)
        assert machine.applied == [b"x", b"z"], "what was not known to fail may have happened, once"
    assert disk.counters.no_space_errors >= 1


async def test_a_compaction_that_finds_no_room_is_made_later() -> None:
    disk = _NoRoomForSnapshots(random.Random(1))
    driver, _, _ = make_driver(disk)
    async with running(driver):
        await until("leading", lambda: driver.is_serving)
        for number in range(60):
            await driver.propose(b"c%d" % number, 5000)
            disk.has_room = disk.refused >= 2
        await until("a compaction", lambda: disk.exists("raft/snapshot"))
    assert disk.refused >= 2
    again, machine, _ = make_driver(disk)
    async with running(again):
        await until("leading", lambda: again.is_serving)
        assert machine.applied == [b"c%d" % number for number in range(60)]


class _NoRoomForSnapshots(FaultyDisk):
    has_room = False
    refused = 0

    def replace_bytes(self, path: str, content: bytes) -> None:
        if path == "raft/snapshot" and not self.has_room:
            self.refused += 1
            raise StorageError(f"cannot replace {path}: No space left on device")
        super().replace_bytes(path, content)


async def test_the_first_leader_founds_the_group_once() -> None:
    disk = MemoryDisk()
    for attempt in ("c1", "c2"):
        seen: list[Configuration] = []
        driver, _, _ = make_driver(disk, founding=(attempt, {"n0": "127.0.0.1:1", "n9": "elsewhere:1"}), seen=seen)
        async with running(driver):
            await until("founded", lambda driver=driver: driver.node.core.configuration.cluster and driver.is_serving)
        assert seen[-1] == Configuration(("n0",), addresses=(("n0", "127.0.0.1:1"),), cluster="c1")


async def test_a_group_is_founded_when_all_its_members_hold_entries() -> None:
    driver, _, sent = make_driver(MemoryDisk(), ("n0", "n1", "n2"), founding=("c1", {}))
    core = driver.node.core
    async with running(driver):
        await _lead_with(driver, "n1")
        sent.clear()
        await until("a heartbeat later", lambda: sent)
        assert core.log.last_index == 1, "n2 may have never been started"
        driver.receive(Message(MessageKind.APPEND_RESPONSE, "n2", "n0", 1, index=1))
        await until("the founding is logged", lambda: core.log.last_index == 2)
        driver.receive(Message(MessageKind.APPEND_RESPONSE, "n2", "n0", 1, index=2))
        await until("founded", lambda: core.configuration.cluster == "c1")


async def test_a_removed_node_answers_tells_the_others_and_ends_when_they_know() -> None:
    driver, _, sent = make_driver(MemoryDisk(), ("n0", "n1"))
    async with running(driver) as task:
        await _lead_with(driver, "n1")
        removal = asyncio.ensure_future(driver.change_membership([MemberChange(ChangeKind.REMOVE, "n0")], {}, 5000))
        await until("the removal is logged", lambda: driver.node.core.log.last_index == 2)
        driver.receive(Message(MessageKind.APPEND_RESPONSE, "n1", "n0", 1, index=2))
        assert (await removal).voters == ("n1",)
        assert driver.node.core.soft_state.role is Role.FOLLOWER
        told = [MessageKind.TIMEOUT_NOW, MessageKind.PRE_VOTE_RESPONSE, MessageKind.PRE_VOTE_RESPONSE]
        await until("it told the other one", lambda: [message.kind for message in sent if message.kind in told] == told)
        assert (sent[-1].to, sent[-1].commit, sent[-1].reject) == ("n1", 2, True)
        assert not task.done()
        driver.fail(MemberRemoved())
        with pytest.raises(MemberRemoved, match="was removed from its group"):
            await task


async def test_a_transfer_is_answered_when_the_target_leads_or_does_not() -> None:
    driver, _, sent = make_driver(MemoryDisk(), ("n0", "n1"))
    async with running(driver):
        await _lead_with(driver, "n1")
        # Nobody takes over: after an election timeout this node leads on, as long as it is heard.
        transfer = asyncio.ensure_future(driver.transfer_leader("n1", 5000))
        await until("the request", lambda: any(message.kind is MessageKind.TIMEOUT_NOW for message in sent))
        with pytest.raises(ProposalRefused, match="handed to n1"):
            await driver.propose(b"x", 1000)
        while not transfer.done():
            driver.receive(Message(MessageKind.HEARTBEAT_RESPONSE, "n1", "n0", 1))
            await asyncio.sleep(0.002)
        with pytest.raises(TransferRefused, match="did not take over in time"):
            await transfer
        assert driver.is_serving
        transfer = asyncio.ensure_future(driver.transfer_leader("n1", 5000))
        await asyncio.sleep(0)
        driver.receive(Message(MessageKind.VOTE, "n1", "n0", 2, index=1, log_term=1, forced=True))
        driver.receive(Message(MessageKind.HEARTBEAT, "n1", "n0", 2))
        await transfer
        assert driver.node.core.soft_state.leader == "n1"


async def _lead_with(driver: RaftDriver, other: str) -> None:
    """Make the node lead a group of two, with its first entry decided."""
    core = driver.node.core
    await until("a pre-vote", lambda: core.role is Role.PRE_CANDIDATE)
    driver.receive(Message(MessageKind.PRE_VOTE_RESPONSE, other, "n0", 1))
    await until("a candidate", lambda: core.role is Role.CANDIDATE)
    driver.receive(Message(MessageKind.VOTE_RESPONSE, other, "n0", 1))
    await until("a leader", lambda: core.role is Role.LEADER)
    driver.receive(Message(MessageKind.APPEND_RESPONSE, other, "n0", 1, index=1))
    await until("serving", lambda: driver.is_serving)
