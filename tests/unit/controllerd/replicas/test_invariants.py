"""Invariants of the replicated state over arbitrary request histories, on a leader, on a follower, and on one that restarts.

Every decision goes through its bytes, as in the log. The follower applies the same entries; now and then it starts again from a
snapshot and the entries behind it, or from the first entry. All must agree after each. Another leader has to wait until its
decisions are committed, and decides the same in the meantime.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from controllerd.replicas.lives import runs_elsewhere
from controllerd.replicas.records import MasterElected, MasterLost, Record, SyncStateSetChanged
from controllerd.replicas.requests import (
    AlterSyncStateSet,
    ApplyBrokerId,
    CleanBroker,
    CountLives,
    ElectMaster,
    Observation,
    RegisterBroker,
    Request,
    Trigger,
)
from controllerd.replicas.state import Group
from controllerd.state.features import RaiseLevel
from remoting import codes
from tests.support.examples import examples
from tests.unit.controllerd.replicas.builders import Machine, Outcome

NAMES = ("broker-a", "broker-b")
names = st.sampled_from(("broker-a", "broker-a", "broker-a", "broker-b"))
ids = st.integers(1, 5)
offsets = st.sampled_from((0, 1, 50, 2**31, 2**40))
observations = st.builds(
    Observation,
    ids,
    st.integers(-1, 4),
    offsets,
    st.integers(0, 2),
    st.integers(0, 2),
    st.booleans(),
    st.booleans(),
    lives=st.none() | st.tuples(st.integers(0, 2), st.integers(0, 2)),
)
seen = st.lists(observations, min_size=1, max_size=5, unique_by=lambda each: each.broker_id).map(tuple)
in_time = (0, 0, 0)
staleness = st.one_of(st.just(in_time), st.just(in_time), st.tuples(*[st.sampled_from((0, 0, -1, 1))] * 3))


def state_hash(machine: Machine) -> str:
    return hashlib.sha256(machine.snapshot()).hexdigest()


class Histories(RuleBasedStateMachine):
    """What brokers, administrators and the scanner may ask, in any order, often with something out of date."""

    allow_unclean = False
    happened: Counter[str]

    def __init__(self) -> None:
        super().__init__()
        self.leader = Machine()
        self.follower = Machine()
        self.ahead = Machine()
        self.committed = 0  # of the history, on the machine that is ahead of that
        self.history: list[bytes] = []
        self.snapshot = (0, self.leader.snapshot())
        self.masters: dict[tuple[str, int], int] = {}
        self.codes_of_ids: dict[tuple[str, int], str] = {}
        self.highest: dict[str, tuple[int, int]] = dict.fromkeys(NAMES, (0, 0))
        data = self.leader.decide(RaiseLevel((self.leader.highest_level,)))
        self.ahead.appended(data)
        self.history.append(data)
        for machine in (self.leader, self.follower):
            machine.apply(data)

    def run(self, command: Request) -> Outcome:
        before = self.leader.state.groups.get(command.broker_name)
        data = self.leader.decide(command)
        assert self.ahead.decide(command) == data, "decided otherwise while earlier decisions wait to be committed"
        self.ahead.appended(data)
        self.history.append(data)
        assert self.leader.decide(command) == data, "to decide changes nothing"
        reply, echo = (each.take(data, command.broker_name) for each in (self.leader, self.follower))
        assert reply == echo, "two nodes gave two answers"
        after = self.leader.state.groups.get(command.broker_name)
        if not reply.records:
            assert before == after, "changed without a record"
        for record in reply.records:
            kind = "UncleanElection" if isinstance(record, MasterElected) and record.unclean else type(record).__name__
            self.happened[kind] += 1
            self.check_record(record, before, command)
        if before is not None and after is not None:
            self.check_change(before, after, reply)
        return reply

    def check_record(self, record: Record, before: Group | None, command: Request) -> None:
        if isinstance(record, MasterElected):
            key = record.broker_name, record.master_epoch
            assert self.masters.setdefault(key, record.broker_id) == record.broker_id, "an epoch with two masters"
            assert isinstance(command, ElectMaster)
            assert before is not None
            if record.unclean is None and before.had_master:
                assert record.broker_id in before.sync_state_set, "a clean election from outside the committed set"
            if record.unclean is not None:
                assert command.unclean, "unclean though that is off"
            assert record.broker_id in {each.broker_id for each in command.observed}, "elected a dead replica"

    def check_change(self, before: Group, after: Group, reply: Outcome) -> None:
        assert after.master_epoch >= before.master_epoch
        grew = after.sync_state_set_epoch - before.sync_state_set_epoch
        changed_set = sum(isinstance(each, (SyncStateSetChanged, MasterElected)) for each in reply.records)
        if changed_set:
            assert grew == changed_set, "each change of the set raises its epoch by exactly one"
        elif before.sync_state_set != after.sync_state_set:
            assert grew == 1
        else:
            assert grew == 0
        if before.master_broker_id != after.master_broker_id:
            assert after.master_epoch > before.master_epoch, "another master, or none, in the same epoch"

    @initialize(count=st.sampled_from((0, 3, 3, 3)), elected=st.sampled_from((False, True, True)))
    def begin(self, count: int, elected: bool) -> None:
        """Often with a few replicas and a master, as most of what can happen needs one."""
        for number in range(count):
            self.apply_broker_id("broker-a", None, f"a:{number};{number}")
        if count and elected:
            self.elect("broker-a", Trigger.BROKER, (Observation(1, 0, 0, 0),), 1, False, False, None)

    # Requests

    @rule(name=names, broker_id=st.none() | ids, code=st.sampled_from(("a:1;1", "a:2;2", "a:3;3")))
    def apply_broker_id(self, name: str, broker_id: int | None, code: str) -> None:
        chosen = self.leader.state.next_broker_id(name) if broker_id is None else broker_id
        command = ApplyBrokerId("c", name, chosen, code)
        reply = self.run(command)
        if reply.code == codes.SUCCESS:
            assert self.run(command).code == codes.SUCCESS, "claiming an id twice is once"
            assert not self.run(command).records

    @rule(
        name=names,
        process=observations,
        port=st.integers(1, 3),
        known=st.sampled_from((0, 0, 0, 3, 9)),
        lost=st.booleans(),
    )
    def register(self, name: str, process: Observation, port: int, known: int, lost: bool) -> None:
        before = self.leader.state.groups.get(name)
        command = RegisterBroker("c", name, process.broker_id, f"h:{port}", "", "", known, lost, 7, observed=(process,))
        self.run(command)
        after = self.leader.state.groups.get(name)
        if before is not None and after is not None and not lost and not runs_elsewhere(before, process):
            moved = replace(before, replicas=after.replicas, epoch_floor=after.epoch_floor, lives=after.lives)
            assert moved == after, "a registration keeps id, membership and epochs"

    @rule(
        name=names,
        members=st.sets(ids),
        registered=st.booleans(),
        stale=staleness,
        dead=st.sampled_from((set(), set(), {1}, {2, 3})),
        observed=seen,
    )
    def alter(
        self,
        name: str,
        members: set[int],
        registered: bool,
        stale: tuple[int, int, int],
        dead: set[int],
        observed: tuple[Observation, ...],
    ) -> None:
        group = self.leader.state.groups.get(name) or Group("c", name)
        if registered:
            members = members & set(group.replicas)
        master = (group.master_broker_id or 1) + stale[0]
        epochs = group.master_epoch + stale[1], group.sync_state_set_epoch + stale[2]
        proposed = tuple(sorted(members | {master}))
        reply = self.run(AlterSyncStateSet(name, master, epochs[0], proposed, epochs[1], tuple(sorted(dead)), observed))
        if any(stale) or set(proposed) & dead:
            assert reply.code != codes.SUCCESS
            assert not reply.records, "who is out of date changes nothing"

    @rule(
        name=names,
        trigger=st.sampled_from(Trigger),
        observed=seen,
        wanted=ids,
        designate=st.booleans(),
        unclean=st.booleans(),
        stale=st.sampled_from((None, None, 0, -1)),
    )
    def elect(
        self,
        name: str,
        trigger: Trigger,
        observed: tuple[Observation, ...],
        wanted: int,
        designate: bool,
        unclean: bool,
        stale: int | None,
    ) -> None:
        group = self.leader.state.groups.get(name)
        epoch = None if stale is None or group is None else group.master_epoch + stale
        allowed = unclean and self.allow_unclean
        command = ElectMaster("c", name, trigger, observed, wanted, designate, allowed, epoch, observed, 5)
        reply = self.run(command)
        if trigger is not Trigger.CONTROLLER:
            assert not any(isinstance(each, MasterLost) for each in reply.records)
        if epoch is not None and stale == -1:
            assert not reply.records

    @rule(
        name=names,
        chosen=st.sampled_from((None, {1}, {2}, {3, 4}, {1, 2, 3})),
        living=st.sampled_from((False, False, True)),
        alive=st.sampled_from((set(), {1, 2, 3})),
    )
    def clean(self, name: str, chosen: set[int] | None, living: bool, alive: set[int]) -> None:
        broker_ids = None if chosen is None else tuple(sorted(chosen))
        self.run(CleanBroker("c", name, broker_ids, living, tuple(sorted(alive))))

    @rule(name=names, observed=seen)
    def count_lives(self, name: str, observed: tuple[Observation, ...]) -> None:
        before = self.leader.state.groups.get(name)
        self.run(CountLives(name, observed))
        after = self.leader.state.groups.get(name)
        if before is not None and after is not None:
            assert replace(before, lives=after.lives) == after
            for broker_id in before.lives:
                (seen,) = [each for each in observed if each.broker_id == broker_id] or [None]
                if seen is None or runs_elsewhere(before, seen):
                    assert after.lives[broker_id] == before.lives[broker_id], (
                        "counted life given up for another directory"
                    )

    # A leader whose decisions are committed later

    @rule()
    def commit_one(self) -> None:
        if self.committed < len(self.history):
            self.ahead.apply(self.history[self.committed])
            self.committed += 1

    @rule()
    def commit_all(self) -> None:
        while self.committed < len(self.history):
            self.commit_one()
        assert self.ahead.state == self.leader.state

    # The follower's lives

    @rule()
    def take_snapshot(self) -> None:
        self.snapshot = len(self.history), self.leader.snapshot()

    @rule()
    def restart_from_the_snapshot(self) -> None:
        self.follower = Machine()
        index, content = self.snapshot
        self.follower.restore(content)
        for data in self.history[index:]:
            self.follower.apply(data)

    @rule()
    def restart_from_the_first_entry(self) -> None:
        self.follower = Machine()
        for data in self.history:
            self.follower.apply(data)

    # What always holds

    @invariant()
    def nodes_agree(self) -> None:
        assert self.leader.state == self.follower.state

    def teardown(self) -> None:
        self.commit_all()
        assert state_hash(self.leader) == state_hash(self.follower)

    @invariant()
    def groups_are_sound(self) -> None:
        for name in NAMES:
            group = self.leader.state.groups.get(name)
            if group is None:
                retired = self.leader.state.retired.get(name)
                floors = (retired.master_epoch, retired.sync_state_set_epoch) if retired else (0, 0)
                assert all(floor >= used for floor, used in zip(floors, self.highest[name], strict=True)), "forgotten"
                continue
            assert name not in self.leader.state.retired
            epochs = group.master_epoch, group.sync_state_set_epoch
            assert all(now >= before for now, before in zip(epochs, self.highest[name], strict=True)), "used again"
            self.highest[name] = epochs
            members = set(group.sync_state_set)
            assert members <= set(group.replicas)
            assert group.lives.keys() <= members
            assert group.master_broker_id is None or group.master_broker_id in members
            assert not members or group.had_master
            for broker_id, replica in group.replicas.items():
                assert broker_id < group.next_broker_id
                code = self.codes_of_ids.setdefault((name, broker_id), replica.register_check_code)
                assert code == replica.register_check_code, "a broker id was given to another broker"


class UncleanHistories(Histories):
    allow_unclean = True


@pytest.mark.parametrize("histories", [Histories, UncleanHistories])
def test_whatever_is_asked(histories: type[Histories]) -> None:
    histories.happened = Counter()
    run_state_machine_as_test(
        histories,
        # always the same histories: others might not do everything that is asked for below
        settings=settings(max_examples=examples(75), stateful_step_count=50, deadline=None, derandomize=True),
    )
    kinds = {kind.__name__ for kind in get_args(Record)} | ({"UncleanElection"} if histories.allow_unclean else set())
    assert all(histories.happened[kind] for kind in kinds), f"too little happened: {histories.happened}"
