"""When a node is told of its ticks: together while they bring nothing, never too late for anything, and no time that it slept."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from controllerd.raft.core import RaftCore
from controllerd.raft.leading import CoreSettings
from controllerd.raft.messages import Message, MessageKind, Role
from controllerd.raft.ticking import Ticking
from tests.unit.controllerd.raft.test_core import acknowledge, drain, elect, make_core

TICK_MS = 50
SETTINGS = CoreSettings(heartbeat_ticks=3, calm_heartbeat_ticks=5, calm_after_ticks=20)


class Shell:
    """A node, told of its ticks as its shell would, on a clock that the test moves."""

    def __init__(self, core: RaftCore, now_s: float = 1000.0) -> None:
        self.core = core
        self.now_s = now_s
        self.looks = 0
        self.heartbeats: list[float] = []
        self.ticking = Ticking(core, TICK_MS, now_s)
        self.at_s = self.ticking.plan(now_s)

    def run(self, until_s: float, *, often: bool = False, answers: bool = True) -> None:
        """Time passes; every tick is looked at if `often`."""
        while (at_s := self.now_s + TICK_MS / 1000 if often else self.at_s) <= until_s:
            self.now_s = max(self.now_s, at_s)
            self.looks += 1
            self.pass_time()
            self._send(answers)
            self.at_s = self.ticking.plan(self.now_s)
        self.now_s = max(self.now_s, until_s)

    def pass_time(self) -> None:
        for _ in range(self.ticking.passed(self.now_s)):
            self.core.tick()

    def step(self, message: Message) -> None:
        self.pass_time()
        self.core.step(message)
        self._send(answers=False)
        at_s = self.ticking.plan_anew(self.now_s)
        self.at_s = self.at_s if at_s is None else at_s

    def _send(self, answers: bool) -> None:
        sent = drain(self.core)
        spoken = [each for each in sent if each.kind is MessageKind.HEARTBEAT]
        self.heartbeats += [self.now_s] * bool(spoken)
        for each in spoken if answers else ():
            self.core.step(Message(MessageKind.HEARTBEAT_RESPONSE, each.to, each.sender, each.term))


def leading() -> Shell:
    """A node that leads, whom all follow."""
    core = make_core(settings=SETTINGS)
    elect(core)
    drain(core)
    for name in ("n2", "n3"):
        acknowledge(core, 1, name)
    drain(core)
    return Shell(core)


def following(seed: int) -> Shell:
    core = make_core(settings=SETTINGS, seed=seed)
    core.step(Message(MessageKind.HEARTBEAT, "n2", "n1", 1))
    drain(core)
    return Shell(core)


def ticks_as(shell: Shell, role: Role, *, often: bool, answers: bool = True) -> int:
    """How many ticks it stays in a role."""
    began_s, ticks = shell.now_s, 0
    while shell.core.role is role:
        ticks += 1
        shell.run(began_s + ticks * TICK_MS / 1000 + 0.001, often=often, answers=answers)
    return ticks


def gaps_ms(moments: list[float]) -> list[int]:
    return [round((later - earlier) * 1000) for earlier, later in pairwise(moments)]


def test_a_leader_speaks_as_often_as_brokers_when_nothing_was_late_for_a_while() -> None:
    shell = leading()
    shell.run(1003.0)
    gaps = gaps_ms(shell.heartbeats)
    assert set(gaps[:4]) == {150}
    assert gaps[-5:] == [250] * 5
    assert shell.looks <= len(shell.heartbeats) + 8, "it looks at its clock when it speaks, and no more"


@pytest.mark.parametrize("why", ["slept", "silence", "transfer", "probe"])
def test_a_leader_speaks_more_often_again_when_something_is_late_or_under_way(why: str) -> None:
    shell = leading()
    shell.run(1003.0)
    spoken = len(shell.heartbeats)
    if why == "slept":
        shell.now_s = shell.at_s + 0.08
    elif why == "silence":
        shell.run(shell.now_s + 0.3, answers=False)
    elif why == "transfer":
        shell.core._leading.transfer("n2")  # type: ignore[union-attr]
    else:
        shell.core.report_unreachable("n3")
    shell.run(shell.now_s + 0.9)
    assert shell.core.role is Role.LEADER
    assert gaps_ms(shell.heartbeats[spoken:])[-2:] == [150, 150]


def test_a_leader_alone_is_deposed_at_the_same_tick_however_it_counts() -> None:
    found = []
    for often in (True, False):
        shell = leading()
        shell.run(1003.0)
        found.append(ticks_as(shell, Role.LEADER, often=often, answers=False))
    assert found[0] <= found[1] <= found[0] + SETTINGS.heartbeat_ticks


@pytest.mark.parametrize("seed", range(30))
def test_who_follows_misses_its_leader_at_the_same_tick_however_it_counts(seed: int) -> None:
    often, seldom = (ticks_as(following(seed), Role.FOLLOWER, often=often) for often in (True, False))
    assert often == seldom


@pytest.mark.parametrize("seed", range(30))
def test_who_hears_its_leader_looks_at_its_clock_seldom(seed: int) -> None:
    shell, rng = following(seed), random.Random(seed)
    for beat in range(1, 101):
        shell.run(1000.0 + 0.25 * beat + rng.uniform(0.001, 0.01))
        shell.step(Message(MessageKind.HEARTBEAT, "n2", "n1", 1))
    assert shell.core.role is Role.FOLLOWER
    assert shell.looks <= 110


@pytest.mark.parametrize("seed", range(30))
def test_who_slept_hears_what_its_leader_said_meanwhile_before_it_campaigns(seed: int) -> None:
    shell = following(seed)
    shell.now_s = 1010.0  # it was stopped for ten seconds, and its timer is the first that it is told of
    shell.pass_time()
    shell.at_s = shell.ticking.plan(shell.now_s)
    assert shell.core.role is Role.FOLLOWER
    shell.run(shell.now_s + 0.15)
    assert shell.core.role is Role.FOLLOWER
    shell.step(Message(MessageKind.HEARTBEAT, "n2", "n1", 1))
    shell.run(shell.now_s + 0.4)
    assert shell.core.role is Role.FOLLOWER


def test_who_is_told_that_its_leader_is_gone_counts_each_tick_from_then_on() -> None:
    shell = following(3)
    shell.now_s += 0.12
    shell.core.forget_leader()
    at_s = shell.ticking.plan_anew(shell.now_s)
    assert at_s is not None
    assert at_s - shell.now_s <= TICK_MS / 1000
    shell.now_s = at_s
    assert shell.ticking.passed(shell.now_s) == 3, "what passed before counts"


def test_a_new_leader_with_less_patience_is_not_waited_for_longer() -> None:
    for seed in range(50):
        shell = following(seed)
        shell.step(Message(MessageKind.HEARTBEAT, "n3", "n1", 2))
        assert 10 <= ticks_as(shell, Role.FOLLOWER, often=False) < 20


def test_time_that_a_process_slept_through_is_at_most_what_was_planned() -> None:
    core = make_core(settings=CoreSettings())
    ticking = Ticking(core, 5, 1000.0)
    ticking.plan(1000.0)
    ticking.at_s = 1000.015
    assert ticking.passed(1000.004) == 0
    assert ticking.passed(1000.005) == 1
    assert ticking.passed(1000.007) == 0, "it counts what passed since the last tick, not since the last look"
    assert ticking.passed(1000.010) == 1
    assert ticking.passed(1010.0) == 1, "the one that was planned"
    assert ticking.passed(1020.0) == 0


def asked(shell: Shell) -> set[str]:
    """Whom the leader asks to confirm a read."""
    shell.core.read_index()
    return {each.to for each in drain(shell.core) if each.kind is MessageKind.HEARTBEAT}


def confirmed(shell: Shell, sender: str, context: int) -> int:
    """How many reads are confirmed by an answer."""
    core = shell.core
    core.step(Message(MessageKind.HEARTBEAT_RESPONSE, sender, core.id, core.term, context=context))
    return len(core.ready().reads) if core.has_ready() else 0


def test_a_read_is_confirmed_by_as_many_as_it_needs() -> None:
    shell = leading()
    assert asked(shell) == {"n2", "n3"}, "who answers in time is not known yet"
    assert confirmed(shell, "n2", 1) == 1
    shell.core.advance()
    shell.run(1001.0)
    assert asked(shell) == {"n2"}
    assert confirmed(shell, "n2", 2) == 1


def test_a_read_that_is_not_confirmed_in_time_is_asked_of_everybody_else() -> None:
    shell = leading()
    shell.run(1003.001)
    shell.core._leading._heartbeat_ticks = 0  # type: ignore[union-attr]  # none is due in a moment
    assert asked(shell) == {"n2"}
    at_s = shell.ticking.plan_anew(shell.now_s)
    assert at_s is not None
    shell.at_s = at_s
    shell.heartbeats.clear()
    shell.run(1003.125, answers=False)
    assert len(shell.heartbeats) == 1, "n2 is frozen, say"
    assert confirmed(shell, "n3", 1) == 1
    shell.core.advance()
    assert asked(shell) == {"n2", "n3"}


def test_learners_confirm_nothing() -> None:
    core = make_core(settings=SETTINGS, voters=("n1", "n2", "n3"))
    core.configuration = replace(core.configuration, learners=("a0",))
    elect(core)
    drain(core)
    for name in ("a0", "n2", "n3"):
        acknowledge(core, 1, name)
    drain(core)
    shell = Shell(core)
    shell.run(1001.0)
    assert asked(shell) == {"n2"}
