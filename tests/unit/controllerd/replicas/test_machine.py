"""Invariants over random histories of commands, and that every way to reach a state gives the same one."""

from __future__ import annotations

import random

import pytest

from controllerd.records.entry import decode_entry
from controllerd.replicas.records import MasterElected
from controllerd.replicas.requests import Request, Trigger
from controllerd.replicas.state import Group, decode_state, encode_state
from controllerd.state.subjects import SUBJECTS
from remoting.errors import ProtocolError
from tests.unit.controllerd.replicas.builders import (
    NAME,
    Machine,
    alter,
    apply_id,
    clean,
    elect,
    group_of_three,
    register,
    run,
    seen,
)


def random_command(rng: random.Random, group: Group | None) -> Request:
    """A request as brokers, administrators and the scanner make them, often with something out of date."""
    epoch = (group.master_epoch if group else 0) - rng.choice((0, 0, 0, 1))
    set_epoch = (group.sync_state_set_epoch if group else 0) - rng.choice((0, 0, 0, 1))
    ids = range(1, 7)
    observed = [
        seen(each, rng.randrange(-1, 6), rng.randrange(50), rng.randrange(3), rng.randrange(3))
        for each in ids
        if rng.random() < 0.5
    ]
    some = [each for each in ids if rng.random() < 0.4]
    kind = rng.random()
    if kind < 0.2:
        return apply_id(rng.choice(ids), f"a:{rng.randrange(3)};{rng.randrange(3)}")
    if kind < 0.3:
        return register(rng.choice(ids), address=f"b:{rng.randrange(4)}", known_epoch=rng.choice((0, 0, 0, 9)))
    if kind < 0.6:
        master = group.master_broker_id if group and group.master_broker_id else 1
        not_alive = tuple(each for each in ids if rng.random() < 0.1)
        return alter([master, *some], master=master, master_epoch=epoch, set_epoch=set_epoch, not_alive=not_alive)
    if kind < 0.95:
        return elect(
            *observed,
            trigger=rng.choice(list(Trigger)),
            wanted=rng.choice(ids),
            designate=rng.random() < 0.3,
            seen_epoch=rng.choice((None, epoch)),
        )
    return clean(rng.choice([None, some]), living=rng.random() < 0.5, alive=tuple(some))


@pytest.mark.parametrize("seed", range(40))
def test_invariants_over_random_histories(seed: int) -> None:
    rng = random.Random(seed)
    machine = Machine()
    masters: dict[int, int] = {}
    codes_of_ids: dict[int, str] = {}
    highest_epoch = highest_set_epoch = 0
    history: list[bytes] = []
    snapshot_at, snapshot = 0, machine.snapshot()
    for step in range(300):
        before = machine.state.groups.get(NAME)
        command = random_command(rng, before)
        history.append(machine.decide(command))
        reply = run(machine, command)
        group = machine.state.groups.get(NAME)
        for record in reply.records:
            if isinstance(record, MasterElected):
                assert masters.setdefault(record.master_epoch, record.broker_id) == record.broker_id
                assert record.master_epoch > highest_epoch
                if before is not None and before.had_master:
                    assert record.broker_id in before.sync_state_set, "elected from outside the committed set"
        if group is not None:
            assert group.master_epoch >= highest_epoch
            assert group.sync_state_set_epoch >= highest_set_epoch
            assert group.master_broker_id is None or group.master_broker_id in group.sync_state_set
            assert set(group.sync_state_set) <= set(group.replicas)
            highest_epoch, highest_set_epoch = group.master_epoch, group.sync_state_set_epoch
            for broker_id, replica in group.replicas.items():
                known = codes_of_ids.setdefault(broker_id, replica.register_check_code)
                assert known == replica.register_check_code, "a broker id was given to another broker"
        if before is not None and group is not None and before.sync_state_set != group.sync_state_set:
            assert group.sync_state_set_epoch == before.sync_state_set_epoch + 1
        if step == 150:
            snapshot_at, snapshot = len(history), machine.snapshot()
    replayed, restored = Machine(), Machine()
    for data in history:
        replayed.apply(data)
    restored.restore(snapshot)
    for data in history[snapshot_at:]:
        restored.apply(data)
    assert replayed.state == restored.state == machine.state
    assert replayed.snapshot() == restored.snapshot() == machine.snapshot()
    assert masters, "a history without an election proves nothing"


def test_to_decide_changes_nothing() -> None:
    machine = group_of_three()
    before, request = machine.snapshot(), elect(seen(2), trigger=Trigger.CONTROLLER)
    data = machine.decide(request)
    assert decode_entry(data, SUBJECTS)[1].records
    assert (machine.snapshot(), machine.decide(request)) == (before, data)


def test_watchers_are_told_of_every_record_with_the_state_after_it() -> None:
    told = []
    machine = Machine({"replicas": lambda record, state: told.append((type(record).__name__, state.groups[NAME]))})
    run(machine, apply_id(1))
    run(machine, elect(seen(1), wanted=1))
    assert [name for name, _ in told] == ["ReplicaAdded", "MasterElected"]
    assert told[-1][1].master_broker_id == 1


@pytest.mark.parametrize("content", [b"", b"x", encode_state(group_of_three().state)[:-3]])
def test_a_damaged_snapshot_is_refused(content: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_state(content)
