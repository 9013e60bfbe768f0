"""Which life of a broker is counted as the member that it is, and what becomes of processes on other directories."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace

import pytest

from controllerd.replicas.elect import choose_master, explain_eligibility
from controllerd.replicas.records import LIVES_LEVEL, LivesCounted
from controllerd.replicas.requests import CountLives, Observation, Trigger
from controllerd.replicas.state import Group, decode_state, encode_state
from controllerd.replicas.triggers import due_counts, due_elections
from controllerd.state.features import RaiseLevel
from remoting import codes
from tests.unit.controllerd.replicas.builders import (
    LOWEST,
    NAME,
    Machine,
    Outcome,
    alter,
    apply_id,
    elect,
    group_of,
    register,
    run,
    seen,
)
from tests.unit.controllerd.replicas.test_heartbeat import beat, make_table


def process(broker_id: int, *lives: int, **fields: int) -> Observation:
    """A process on a directory that has seen these lives, its own last."""
    told = {"epoch": 1, "max_offset": 100} | fields
    return Observation(broker_id, told["epoch"], told["max_offset"], LOWEST, lives[-1], lives=lives)


def counting_group() -> Machine:
    """Three members, each in its first life, whose number is ten times its broker id; broker 1 leads in epoch 1."""
    machine = Machine()
    machine.apply(machine.decide(RaiseLevel((LIVES_LEVEL,))))
    for broker_id in (1, 2, 3):
        run(machine, apply_id(broker_id))
        run(machine, register(broker_id))
    run(machine, elect(process(1, 10, epoch=-1), wanted=1))
    run(machine, replace(alter([1, 2, 3]), observed=tuple(process(each, each * 10) for each in (1, 2, 3))))
    return machine


def registers(machine: Machine, broker_id: int, *lives: int) -> Outcome:
    return run(machine, replace(register(broker_id), others_have_all=True, observed=(process(broker_id, *lives),)))


def alone() -> Machine:
    """Broker 1 leads, and is the set."""
    machine = counting_group()
    run(machine, alter([1], set_epoch=2))
    return machine


def test_members_are_counted_when_they_are_elected_and_when_they_join() -> None:
    assert group_of(counting_group()).lives == {1: 10, 2: 20, 3: 30}
    assert group_of(alone()).lives == {1: 10}


def test_nobody_joins_of_whom_no_life_could_be_counted() -> None:
    """Two processes claim its id, as after a start of all controllers, or none was heard yet: the copy would be counted later."""
    machine = counting_group()
    run(machine, alter([1, 3], set_epoch=2))
    joins = replace(alter([1, 2, 3], set_epoch=3), counts_lives=True)
    contested = replace(process(2, 20), is_contested=True)
    for observed in ((contested, process(3, 30)), (process(3, 30),)):
        reply = run(machine, replace(joins, observed=observed))
        assert (reply.code, reply.records) == (codes.CONTROLLER_BROKER_NOT_ALIVE, ())
        assert (
            reply.remark
            == "of brokers [2] no process was heard that has its id alone, so no life of them could be counted"
        )
    stays = replace(joins, proposed=(1, 3), observed=())
    assert run(machine, stays).code == codes.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, "it is the set already"
    says_nothing = replace(process(2, 20), lives=None)
    assert run(machine, replace(joins, observed=(says_nothing,))).code == codes.SUCCESS, "of an earlier version"
    assert group_of(machine).lives == {1: 10, 3: 30}


def test_the_next_life_on_a_directory_takes_the_place_of_the_one_before() -> None:
    machine = counting_group()
    reply = registers(machine, 2, 20, 21, 22)
    assert (reply.code, reply.remark, reply.records) == (codes.SUCCESS, None, (LivesCounted(NAME, ((2, 22),)),))
    assert group_of(machine).lives == {1: 10, 2: 22, 3: 30}
    assert registers(machine, 2, 20, 21, 22).records == (), "once is enough"
    assert registers(machine, 2, 22, 23).records == (LivesCounted(NAME, ((2, 23),)),)


def test_a_member_on_another_directory_leaves_the_set_and_is_the_member_when_it_is_back() -> None:
    machine = counting_group()
    reply = registers(machine, 2, 19, 29)
    assert reply.remark == (
        "broker 2 runs on another directory than it had as a member of the sync-state set; it left the sync-state set"
    )
    group = group_of(machine)
    assert (group.sync_state_set, group.lives) == ((1, 3), {1: 10, 3: 30})
    assert registers(machine, 2, 19, 29).records == ()
    run(machine, replace(alter([1, 2, 3], set_epoch=3), observed=(process(2, 19, 29),)))
    assert group_of(machine).lives == {1: 10, 2: 29, 3: 30}
    assert registers(machine, 2, 20, 21).remark is not None, "now it is the other one that ran elsewhere"


def test_a_master_on_another_directory_is_none_any_more() -> None:
    machine = counting_group()
    registers(machine, 1, 9, 19)
    group = group_of(machine)
    assert (group.master_broker_id, group.sync_state_set, group.lives) == (None, (2, 3), {2: 20, 3: 30})


def test_the_last_member_on_another_directory_leads_only_where_losses_are_allowed() -> None:
    machine = alone()
    reply = registers(machine, 1, 9, 19)
    assert reply.remark is not None
    assert reply.remark.endswith("it stays in the sync-state set as its last member")
    assert group_of(machine).lives == {1: 10}, "its disk may come back"
    asks = elect(process(1, 9, 19), process(2, 20, max_offset=500), trigger=Trigger.CONTROLLER)
    reply = run(machine, asks)
    assert reply.remark is not None
    assert "broker 1: runs on another directory than it had as a member of the sync-state set" in reply.remark
    assert group_of(machine).master_broker_id is None
    comes_back = run(machine, elect(process(1, 10, 11)))
    assert (comes_back.code, group_of(machine).master_broker_id, group_of(machine).lives) == (codes.SUCCESS, 1, {1: 11})


def test_an_unclean_election_counts_whom_it_elects() -> None:
    machine = alone()
    run(machine, elect(process(1, 9, 19), unclean=True))
    group = group_of(machine)
    assert (group.master_broker_id, group.lives) == (1, {1: 19})
    assert len(group.unclean_elections) == 1


def test_who_stays_at_an_election_is_counted_still() -> None:
    machine = counting_group()
    asks = elect(process(2, 20), process(3, 30, 31), trigger=Trigger.CONTROLLER)
    run(machine, replace(asks, keeps_members=True))
    group = group_of(machine)
    assert (group.master_broker_id, group.sync_state_set, group.lives) == (2, (2, 3), {2: 20, 3: 31})
    run(machine, replace(elect(process(3, 31), process(2, 29), seen_epoch=2), keeps_members=True))
    group = group_of(machine)
    assert (group.master_broker_id, group.sync_state_set, group.lives) == (3, (3,), {3: 31}), "broker 2 runs elsewhere"


def suspect(broker_id: int, *lives: int, max_offset: int) -> Observation:
    return replace(process(broker_id, *lives, max_offset=max_offset), lost_tail=True)


def test_who_runs_elsewhere_is_not_among_the_suspects_either() -> None:
    group = replace(group_of(counting_group()), master_broker_id=None)
    most, less = suspect(2, 29, max_offset=900), suspect(3, 30, max_offset=50)
    assert choose_master(group, [most, less], None, unclean=False).broker_id is None, "one of three is no majority"
    first = suspect(1, 10, max_offset=40)
    assert choose_master(group, [most, less, first], None, unclean=False).broker_id == 3


def test_nobody_takes_the_place_of_a_last_member_of_which_only_another_directory_is_there() -> None:
    group = group_of(alone())
    elsewhere, more = suspect(1, 19, max_offset=40), process(2, 20, max_offset=900)
    assert choose_master(group, [elsewhere, more], None, unclean=False).broker_id is None
    assert choose_master(group, [replace(elsewhere, lives=(10, 19)), more], None, unclean=False).broker_id == 2
    assert [each.eligible for each in explain_eligibility(group, [elsewhere, more])] == [False] * 3


def test_the_only_one_left_of_a_set_is_elected_no_earlier_because_it_is_counted() -> None:
    """Behind its election there is a second record now."""
    machine, table = counting_group(), make_table()
    table.counts_lives = True
    run(machine, alter([1, 2], set_epoch=2))
    for broker_id, now_ms in ((1, 0), (2, 0), (1, 100)):
        life = broker_id * 11
        heard = replace(beat(broker_id, broker_id, epoch=1), incarnation=life, lives=(broker_id * 10, life))
        table.heartbeat(heard, now_ms)
    table.connection_closed(1, 200)
    assert due_elections(machine.state, table, 200, unclean=False) == [], "it was not heard since"
    table.heartbeat(replace(beat(2, 2, epoch=1), incarnation=22, lives=(20, 22)), 250)
    assert len(due_elections(machine.state, table, 250, unclean=False)) == 1


@pytest.mark.parametrize("counts", [False, True])
def test_members_of_which_no_life_is_counted_are_looked_for(counts: bool) -> None:
    machine, table = counting_group(), make_table()
    table.counts_lives = counts
    run(machine, alter([1, 2], set_epoch=2))
    run(machine, alter([1, 2, 3], set_epoch=3))  # of which nobody says who joined
    assert group_of(machine).lives == {1: 10, 2: 20}
    for broker_id in (1, 2, 3):
        lives = None if broker_id == 1 else (broker_id * 10, broker_id * 11)
        table.heartbeat(replace(beat(broker_id, broker_id), incarnation=broker_id * 11, lives=lives), 0)
    due = due_counts(machine.state, table, 10)
    assert [[each.broker_id for each in request.observed] for request in due] == ([[3]] if counts else [])
    for request in due:
        run(machine, request)
        assert group_of(machine).lives == {1: 10, 2: 20, 3: 33}
    assert due_counts(machine.state, table, 10) == []


def test_who_does_not_say_which_lives_there_were_is_neither_counted_nor_refused() -> None:
    machine = counting_group()
    run(machine, alter([1, 2], set_epoch=2))
    run(machine, replace(alter([1, 2, 3], set_epoch=3), observed=(seen(3, incarnation=31),)))
    assert group_of(machine).lives == {1: 10, 2: 20}
    assert run(machine, replace(register(2), observed=(seen(2, incarnation=29),))).records == ()
    assert choose_master(group_of(machine), [seen(2, incarnation=29)], None, unclean=False).broker_id == 2
    contested = replace(process(3, 31), is_contested=True)
    assert run(machine, CountLives(NAME, (contested,))).records == ()
    assert run(machine, CountLives("of nobody", (process(3, 31),))).records == ()


def stored(group: Group) -> dict[str, object]:
    machine = counting_group()
    content = encode_state(replace(machine.state, groups={NAME: group}))
    assert decode_state(content).groups[NAME] == group
    (told,) = json.loads(zlib.decompress(content))["groups"]
    return dict(told)


def test_lives_are_in_a_snapshot_only_when_there_are_any() -> None:
    """Whoever reads every record of the level that is in force reads the snapshot."""
    group = group_of(counting_group())
    assert stored(group)["lives"] == [[1, 10], [2, 20], [3, 30]]
    assert "lives" not in stored(replace(group, lives={}))
