"""Who is in the set behind an election, and who leads when every live member may have lost the end of its log."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controllerd.replicas.elect import choose_master, explain_eligibility, freshest_of_the_suspect
from controllerd.replicas.heartbeat import HeartbeatTable
from controllerd.replicas.records import MasterElected, SyncStateSetChanged
from controllerd.replicas.requests import ElectMaster, Observation, RegisterBroker, Trigger
from controllerd.replicas.state import Group
from controllerd.replicas.triggers import due_elections
from tests.unit.controllerd.replicas.builders import (
    CLUSTER,
    LOWEST,
    NAME,
    Machine,
    alter,
    apply_id,
    elect,
    group_of,
    group_of_three,
    run,
    seen,
)
from tests.unit.controllerd.replicas.test_heartbeat import beat, make_live_group, make_table


def ask(*observed: Observation, **more: object) -> ElectMaster:
    return replace(elect(*observed, trigger=Trigger.CONTROLLER, **more), keeps_members=True)


def suspect(broker_id: int, max_offset: int, confirmed: int = -1, epoch: int = 1) -> Observation:
    return Observation(broker_id, epoch, max_offset, LOWEST, 5, False, True, lost_confirmed=confirmed)


# The set behind an election


def test_who_lives_stays_in_the_set_and_who_is_dead_does_not() -> None:
    machine = group_of_three()
    reply = run(machine, ask(seen(2, 1, 5), seen(3, 1, 9)))
    group = group_of(machine)
    assert [type(each) for each in reply.records] == [MasterElected, SyncStateSetChanged]
    assert (group.master_broker_id, group.master_epoch) == (3, 2)
    assert (group.sync_state_set, group.sync_state_set_epoch) == ((2, 3), 4)


def test_a_winner_that_fails_is_followed_by_one_who_stayed() -> None:
    """Its log may be rotten where nobody looked for long: it ends, and the others of the former set must not wait for it."""
    machine = group_of_three()
    run(machine, ask(seen(2, 1, 5), seen(3, 1, 9)))
    run(machine, ask(seen(2, 1, 5)))
    group = group_of(machine)
    assert (group.master_broker_id, group.master_epoch, group.sync_state_set) == (2, 3, (2,))


def test_the_set_is_the_master_alone_when_nobody_else_may_be_counted_on() -> None:
    machine = group_of_three()
    run(machine, elect(trigger=Trigger.CONTROLLER))
    run(machine, ask(seen(2), replace(seen(3, is_learner=True)), suspect(1, 500)))
    assert group_of(machine).sync_state_set == (2,)
    machine = group_of_three()
    run(machine, alter([1], set_epoch=2))
    run(machine, ask(seen(2), seen(3), unclean=True))
    assert group_of(machine).sync_state_set == (2,), "nobody outside the set comes into it"
    machine = Machine()
    for broker_id in (1, 2):
        run(machine, apply_id(broker_id))
    run(machine, ask(seen(1), seen(2)))
    assert group_of(machine).sync_state_set == (1,), (
        "the first master alone is known to have everything, which is nothing"
    )


def test_under_a_master_of_the_original_nobody_stays() -> None:
    """It acknowledges without members that have not connected to it yet."""
    machine = group_of_three()
    run(machine, RegisterBroker(CLUSTER, NAME, 2, "127.0.0.1:1", "", ""))
    run(machine, ask(seen(2, 1, 9), seen(3, 1, 5)))
    assert (group_of(machine).master_broker_id, group_of(machine).sync_state_set) == (2, (2,))


def test_who_asks_by_the_rules_of_before_gets_what_they_said() -> None:
    machine = group_of_three()
    reply = run(machine, elect(seen(2), seen(3), trigger=Trigger.CONTROLLER))
    assert len(reply.records) == 1
    assert group_of(machine).sync_state_set == (2,)
    machine = group_of_three()
    everybody = [suspect(each, 50) for each in (1, 2, 3)]
    assert run(machine, elect(*everybody, trigger=Trigger.BROKER, wanted=1)).records == ()


def test_the_scanner_keeps_members() -> None:
    machine, table = group_of_three(), make_table()
    for broker_id in (1, 2, 3):
        table.heartbeat(beat(broker_id, broker_id, epoch=1, max_offset=100), 10_000)
    table.connection_closed(1, 10_000)
    [command] = due_elections(machine.state, table, 10_100, unclean=False)
    run(machine, command)
    assert group_of(machine).sync_state_set == (2, 3)


def two_of_three_closed() -> tuple[Machine, HeartbeatTable]:
    """The connections of the master and of broker 3 closed at 10,010, and broker 2 has said nothing since."""
    machine, table = make_live_group()
    table.connection_closed(1, 10_010)
    table.connection_closed(3, 10_010)
    return machine, table


def test_who_would_be_left_alone_has_to_be_heard_after_the_others_went() -> None:
    """A loss of power that takes all closes the connections of some: the last one is dead as well, and nobody knows."""
    machine, table = two_of_three_closed()
    assert due_elections(machine.state, table, 10_011, unclean=False) == []
    assert due_elections(machine.state, table, 10_200, unclean=False) == []
    table.heartbeat(beat(2, 2, epoch=1, max_offset=100), 10_240)
    [command] = due_elections(machine.state, table, 10_240, unclean=False)
    run(machine, command)
    assert (group_of(machine).master_broker_id, group_of(machine).sync_state_set) == (2, (2,))


def test_when_all_went_at_once_whoever_comes_back_leads() -> None:
    machine, table = two_of_three_closed()
    assert due_elections(machine.state, table, 10_020, unclean=False) == []
    for now_ms in range(20_000, 24_000, 250):
        table.heartbeat(beat(3, 5, epoch=1, max_offset=100, incarnation=8), now_ms)
    [command] = due_elections(machine.state, table, 24_000, unclean=False)
    run(machine, command)
    assert (group_of(machine).master_broker_id, group_of(machine).sync_state_set) == (3, (3,))


# Suspects


def dead_master(members: tuple[int, ...] = (1, 2, 3)) -> Group:
    return replace(
        group_of(group_of_three()), sync_state_set=members, master_broker_id=members[0], master_incarnation=4
    )


@pytest.mark.parametrize(
    ("members", "live", "chosen"),
    [
        # While a member that lost nothing is there, it leads, whatever the others have.
        ((1, 2, 3), [suspect(1, 90), suspect(2, 80), seen(3, 1, 10)], 3),
        # A minority of suspects waits for the rest of the set.
        ((1, 2, 3), [suspect(1, 90)], None),
        ((1, 2), [suspect(1, 90)], None),
        ((1, 2, 3), [suspect(1, 90), Observation(2, 1, 99, LOWEST, 5, True, True)], None),
        # A majority of them is enough: no minority of damaged copies can have all of its ends.
        ((1, 2, 3), [suspect(1, 90), suspect(3, 80)], 1),
        ((1, 2), [suspect(1, 80), suspect(2, 90)], 2),
        ((1, 2, 3), [suspect(1, 90, epoch=1), suspect(2, 80, epoch=2)], 2),
        # What one of them knows to have been confirmed the master must have.
        ((1, 2, 3), [suspect(1, 90, 95), suspect(2, 80), suspect(3, 70)], None),
        ((1, 2, 3), [suspect(1, 90), suspect(2, 80, 85), suspect(3, 70)], 1),
        # The last member is all there is, unless somebody has at least as much.
        ((2,), [suspect(2, 10), seen(3, 1, 9)], 2),
        ((2,), [suspect(2, 10), seen(3, 1, 10)], 3),
    ],
)
def test_who_leads_when_logs_may_have_lost_their_ends(
    members: tuple[int, ...], live: list[Observation], chosen: int | None
) -> None:
    group = dead_master(members)
    assert choose_master(group, live, None, unclean=False).broker_id == chosen
    told = explain_eligibility(group, live)
    assert [each.broker_id for each in told if each.eligible and each.broker_id == chosen] == [chosen] * (
        chosen is not None
    )
    for each in told:
        assert (choose_master(group, live, each.broker_id, unclean=False).broker_id == each.broker_id) is each.eligible


def test_why_a_group_of_suspects_waits_is_said() -> None:
    machine = group_of_three()
    run(machine, elect(trigger=Trigger.CONTROLLER))
    reply = run(machine, ask(suspect(1, 90, 95), suspect(2, 80)))
    assert (
        "broker 1: lost the end of its log when it restarted, which ends at 90 now and was confirmed up to 95"
        in str(reply.remark)
    )
    assert "broker 3: not alive" in str(reply.remark)


def test_a_suspect_that_leads_leads_alone_and_it_is_said() -> None:
    machine = group_of_three()
    run(machine, elect(trigger=Trigger.CONTROLLER))
    reply = run(machine, ask(suspect(1, 70), suspect(2, 80), suspect(3, 60)))
    group = group_of(machine)
    assert (group.master_broker_id, group.sync_state_set, group.unclean_elections) == (2, (2,), ())
    assert "every live member of the sync-state set [1, 2, 3] may have lost the end of its log" in str(reply.remark)


def lost(broker_id: int, *, others_have_all: bool) -> RegisterBroker:
    own = f"127.0.0.1:{10900 + broker_id}"
    return RegisterBroker(CLUSTER, NAME, broker_id, own, f"{own}2", f"{own}3", 0, True, 40, others_have_all)


def test_the_set_is_not_left_one_after_the_other_until_the_last_one_may_lead() -> None:
    """All lost power, and each finds damage behind its checkpoint: who comes last is not who has most."""
    machine = group_of_three()
    for broker_id in (1, 3, 2):
        reply = run(machine, lost(broker_id, others_have_all=False))
        assert reply.records == ()
        assert "stays in the sync-state set until a member that has lost nothing is there" in str(reply.remark)
    assert group_of(machine).sync_state_set == (1, 2, 3)
    run(machine, lost(1, others_have_all=True))
    assert group_of(machine).sync_state_set == (2, 3)


def test_learners_are_no_majority() -> None:
    group = dead_master()
    assert freshest_of_the_suspect(group, {each.broker_id: each for each in [suspect(1, 5), suspect(2, 6)]}) == 2
    assert freshest_of_the_suspect(group, {}) is None


def test_the_first_master_of_a_group_does_not_lack_what_was_confirmed() -> None:
    """A directory that was brought along, or controllers that lost everything: the log may be older than the group."""
    machine = Machine()
    run(machine, apply_id(1))
    reply = run(machine, elect(suspect(1, 500, confirmed=900)))
    assert group_of(machine).master_broker_id is None
    assert "was confirmed up to 900" in str(reply.remark)
    run(machine, elect(suspect(1, 500, confirmed=400)))
    assert group_of(machine).master_broker_id == 1
