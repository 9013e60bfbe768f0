"""The feature level is raised when every member is there and reads it, and not before; who cannot read on says what to do."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from controllerd.raft.core import RaftCore
from controllerd.raft.driver import DriverEvents, RaftDriver
from controllerd.raft.leading import CoreSettings
from controllerd.raft.log_file import RaftLogFile
from controllerd.raft.membership import ChangeKind, MemberChange
from controllerd.raft.node import RaftNode
from controllerd.records.subject import Subjects, UnknownFormat
from controllerd.state.features import RaiseLevel
from controllerd.state.machine import ControllerMachine
from controllerd.state.raising import Raising
from controllerd.state.subjects import SUBJECTS
from remoting.transport.tasks import TaskOwner
from tests.support.disks import MemoryDisk
from tests.unit.controllerd.raft.test_driver import running, until
from tests.unit.controllerd.records.newer import LEVEL, NEWER, Note
from tests.unit.controllerd.single import single


def ignore(_: object) -> None:
    return None


def make_driver(disk: MemoryDisk, subjects: Subjects) -> tuple[RaftDriver, ControllerMachine]:
    file = RaftLogFile(disk, "group", "n0", ("n0",))
    recovered = file.open()
    settings = CoreSettings(election_ticks=5)
    core = RaftCore("n0", recovered.founders, recovered.log, recovered.hard_state, settings, random.Random(1))
    machine = ControllerMachine(subjects=subjects)
    node = RaftNode(core, machine, compact_after_entries=20, keep_entries=2)
    return RaftDriver(node, file, DriverEvents(ignore, ignore), 5), machine


def look(driver: RaftDriver, machine: ControllerMachine, owner: TaskOwner, levels: Mapping[str, int]) -> None:
    Raising(driver, machine, lambda node: levels.get(node, 0), 5000, owner).look()


async def test_the_leader_raises_the_level_when_all_read_it() -> None:
    driver, machine = make_driver(MemoryDisk(), NEWER)
    owner = TaskOwner("test")
    async with running(driver):
        look(driver, machine, owner, {"n0": LEVEL})
        assert not owner._tasks, "it does not lead yet"
        await until("leading", lambda: driver.is_serving)
        changes = [MemberChange(ChangeKind.ADD_LEARNER, "n1", "127.0.0.1:1")]
        await driver.change_membership(changes, {"n0": "127.0.0.1:2"}, 5000)
        for levels in ({"n0": LEVEL}, {"n0": LEVEL, "n1": 1}, {"n1": LEVEL}):
            look(driver, machine, owner, levels)
            assert not owner._tasks, "a learner applies the records too"
        look(driver, machine, owner, {"n0": LEVEL + 1, "n1": LEVEL})
        await until("the level", lambda: machine.features.level == LEVEL)
        await driver.propose(Note("now"), 5000)
        await until("the end of the task", lambda: not owner._tasks)
        look(driver, machine, owner, {"n0": LEVEL, "n1": LEVEL})
        assert not owner._tasks, "it is in force"
    await owner.close()


async def test_an_older_version_ends_with_what_to_do_and_a_newer_one_goes_on() -> None:
    disk = MemoryDisk()
    driver, _ = make_driver(disk, NEWER)
    async with running(driver):
        await until("leading", lambda: driver.is_serving)
        await driver.propose(RaiseLevel((LEVEL,)), 5000)
        await driver.propose(Note("kept"), 5000)
    older, machine = make_driver(disk, SUBJECTS)
    with pytest.raises(
        UnknownFormat, match=f"feature level {LEVEL} is not known to this version of controllerd: start a newer"
    ):
        await older.run()
    assert machine.features.level == 1
    again, machine = make_driver(disk, NEWER)
    async with running(again):
        await until("leading", lambda: again.is_serving)
        assert machine.features.level == LEVEL


async def test_a_controller_looks_now_and_then(tmp_path: Path) -> None:
    async with single(tmp_path) as one:
        machine, peers = one.controller._machine, one.controller._peers
        machine.highest_level = peers._own_level = LEVEL
        await until("the level", lambda: machine.features.level == LEVEL)
