"""Known mistakes of controllers like this one, each as a test: what went wrong elsewhere must not happen here.

Those that need a connection are asked over the wire in `processors/test_requests.py`: a master that is recorded but not alive
(T9), the body of an election's answer (T13), unknown names (T15).
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controllerd.replicas.records import MasterElected, MasterLost
from controllerd.replicas.requests import Request, Trigger
from controllerd.replicas.triggers import due_elections
from remoting import codes
from tests.unit.controllerd.replicas.builders import (
    Machine,
    alter,
    apply_id,
    clean,
    elect,
    group_of,
    group_of_three,
    register,
    run,
    seen,
)
from tests.unit.controllerd.replicas.test_heartbeat import beat, make_live_group, make_table, others_speak


@given(st.integers(0, 2**62), st.integers(1, 2**62), st.integers(-1, 2**31 - 2))
def test_t1_offsets_are_compared_however_far_they_are_apart(low: int, distance: int, epoch: int) -> None:
    machine = group_of_three()
    run(machine, elect(seen(2, epoch, low), seen(3, epoch, low + distance)))
    if epoch < 2**31 - 2:
        assert group_of(machine).master_broker_id == 3


def test_t2_an_equal_set_says_nothing_about_who_is_master() -> None:
    machine = group_of_three()
    for master, epoch in ((1, 1), (2, 1), (1, 9)):
        stale = alter([1, 2, 3], master=master, master_epoch=epoch, set_epoch=9)
        assert run(machine, stale).code == codes.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED


def test_t3_the_first_master_is_nobody_dead_or_unknown() -> None:
    machine = Machine()
    run(machine, apply_id(1))
    run(machine, apply_id(2))
    for wanted in (1, 7):
        assert run(machine, elect(wanted=wanted)).code == codes.CONTROLLER_ELECT_MASTER_FAILED
        assert run(machine, elect(seen(7), wanted=wanted)).code == codes.CONTROLLER_ELECT_MASTER_FAILED
    run(machine, elect(seen(1, 0, 5), seen(2, 0, 6), wanted=1))
    assert group_of(machine).master_broker_id == 2, "the longer log, whoever asked"


@given(st.integers(1, 20))
def test_t4_a_hopeless_election_costs_one_epoch_however_often_it_is_tried(tries: int) -> None:
    machine = group_of_three()
    records = [record for _ in range(tries) for record in run(machine, elect(trigger=Trigger.CONTROLLER)).records]
    assert [type(each) for each in records] == [MasterLost]
    assert group_of(machine).master_epoch == 2


def test_t5_a_group_without_a_past_is_not_spoilt_by_a_scan() -> None:
    machine = Machine()
    run(machine, apply_id(1))
    for trigger in Trigger:
        assert run(machine, elect(trigger=trigger)).records == ()
    assert group_of(machine).master_epoch == 0
    assert due_elections(machine.state, make_table(), 10**9, unclean=False) == []
    assert run(machine, elect(seen(1), wanted=1)).code == codes.SUCCESS


def test_t6_the_old_connection_of_a_reconnected_broker_may_close() -> None:
    machine, table = make_live_group()
    table.heartbeat(beat(1, 9, epoch=1, max_offset=50), 10_100)
    assert table.connection_closed(1, 0) == []
    assert table.is_alive(group_of(machine), 1, 10_200)
    assert due_elections(machine.state, table, 10_200, unclean=False) == []


def test_t7_the_dead_are_replaced_and_the_living_are_not() -> None:
    machine, table = make_live_group()
    assert due_elections(machine.state, table, 10_100, unclean=False) == []
    table.connection_closed(2, 0)
    assert due_elections(machine.state, table, 10_100, unclean=False) == [], "a dead replica is no reason"
    table.connection_closed(1, 0)
    [command] = due_elections(machine.state, table, 10_100, unclean=False)
    [record] = run(machine, command).records
    assert isinstance(record, MasterElected)
    assert record.broker_id == 3


def test_t8_a_controller_that_has_heard_nobody_yet_deposes_nobody() -> None:
    machine, table = group_of_three(), make_table()
    table.lead(10_000)
    table.heartbeat(beat(2, 2, epoch=1, max_offset=50), 10_100)
    for now_ms in range(10_100, 12_000, 100):
        others_speak(table, now_ms, now_ms, 2)
        assert due_elections(machine.state, table, now_ms, unclean=False) == []


def test_t10_an_id_is_the_next_one_or_none() -> None:
    machine = Machine()
    assert run(machine, apply_id(5)).code == codes.CONTROLLER_BROKER_ID_INVALID
    run(machine, apply_id(1))
    assert run(machine, apply_id(3)).code == codes.CONTROLLER_BROKER_ID_INVALID
    assert [run(machine, apply_id(each)).code for each in (2, 3, 4)] == [codes.SUCCESS] * 3
    run(machine, clean([4], living=True))
    assert machine.state.next_broker_id("broker-a") == 5, "of those that were given out, not of those that are left"


@pytest.mark.parametrize("living", [False, True])
def test_t11_cleaning_some_never_drops_the_group(living: bool) -> None:
    machine = group_of_three()
    run(machine, clean([3], living=living))
    group = group_of(machine)
    assert (sorted(group.replicas), group.sync_state_set, group.master_epoch) == ([1, 2], (1, 2), 1)
    run(machine, clean([1, 2], living=True))
    assert machine.state.groups == {}
    run(machine, apply_id(4))
    run(machine, elect(seen(4, -1, 0), wanted=4))
    assert group_of(machine).master_epoch > 1


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (apply_id(4), codes.SUCCESS),
        (register(2, address="h:9"), codes.SUCCESS),
        (alter([1, 2], set_epoch=2), codes.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED),
        (elect(seen(2)), codes.CONTROLLER_MASTER_STILL_EXIST),
        (elect(trigger=Trigger.CONTROLLER), codes.CONTROLLER_MASTER_NOT_AVAILABLE),
        (elect(seen(2), seen_epoch=1), codes.CONTROLLER_MASTER_STILL_EXIST),
        (clean([3], living=True), codes.SUCCESS),
    ],
)
def test_t12_whatever_is_committed_after_its_sender_gave_up_may_be_sent_again(command: Request, code: int) -> None:
    machine = group_of_three()
    assert run(machine, command).records
    after = machine.snapshot()
    again = run(machine, command)
    assert (again.code, again.records) == (code, ())
    assert machine.snapshot() == after


steps = st.lists(st.tuples(st.integers(1, 400), st.sampled_from(("beat", "lead", "scan", "reconnect"))), max_size=60)


@given(steps)
def test_a_master_that_is_heard_in_time_is_never_deposed(steps: list[tuple[int, str]]) -> None:
    """Whatever the others do, whoever leads among the controllers, and however its connections change (I13)."""
    machine, table = make_live_group()
    now_ms, connection = 10_000, 10
    for step_ms, what in steps:
        now_ms += step_ms
        if what == "reconnect":
            connection += 1
            old = connection - 1
            table.heartbeat(beat(1, connection, epoch=1, max_offset=50), now_ms)
            table.connection_closed(old, 0)
        elif what == "beat":
            table.heartbeat(beat(2, 2, epoch=1, max_offset=50), now_ms)
        elif what == "lead":
            table.lead(now_ms)
        else:
            table.scan(now_ms)
        table.heartbeat(beat(1, connection, epoch=1, max_offset=50), now_ms)
        assert due_elections(machine.state, table, now_ms, unclean=False) == []
        assert due_elections(machine.state, table, now_ms + 399, unclean=True) == []
