"""Replicas that restart with less than they had acknowledged, and elections that lose messages: the judgement, and the price."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controllerd.replicas.elect import choose_master, explain_eligibility
from controllerd.replicas.heartbeat import HeartbeatTable
from controllerd.replicas.requests import ElectMaster, Observation, RegisterBroker, Trigger
from controllerd.replicas.state import MAX_UNCLEAN_ELECTIONS, decode_state, encode_state
from controllerd.replicas.triggers import due_elections
from remoting import codes
from tests.unit.controllerd.replicas.builders import (
    CLUSTER,
    LOWEST,
    NAME,
    Machine,
    alter,
    elect,
    group_of,
    group_of_three,
    run,
    seen,
)
from tests.unit.controllerd.replicas.test_heartbeat import beat, make_table


def lost(broker_id: int, max_offset: int = 40) -> RegisterBroker:
    own = f"127.0.0.1:{10900 + broker_id}"
    return RegisterBroker(CLUSTER, NAME, broker_id, own, f"{own}2", f"{own}3", 0, True, max_offset)


def seen_without_tail(broker_id: int, max_offset: int = 40) -> Observation:
    return Observation(broker_id, 1, max_offset, LOWEST, 5, False, True)


def test_a_member_that_lost_its_tail_leaves_the_set() -> None:
    machine = group_of_three()
    reply = run(machine, lost(3))
    assert reply.code == codes.SUCCESS
    assert reply.remark == "broker 3 lost the end of its log, which ends at 40 now; it left the sync-state set"
    group = group_of(machine)
    assert (group.sync_state_set, group.sync_state_set_epoch) == ((1, 2), 3)
    assert (group.master_broker_id, group.master_epoch) == (1, 1)
    assert run(machine, lost(3)).records == (), "once is enough"
    assert run(machine, alter([1, 2, 3], set_epoch=2)).code == codes.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH
    assert run(machine, alter([1, 2, 3], set_epoch=3)).code == codes.SUCCESS, "when it has caught up it comes back"


def test_a_master_that_lost_its_tail_is_none_any_more() -> None:
    machine = group_of_three()
    run(machine, lost(1))
    group = group_of(machine)
    assert (group.sync_state_set, group.master_broker_id, group.master_epoch) == ((2, 3), None, 2)
    run(machine, elect(seen(1), seen(2), seen(3)))
    assert group_of(machine).master_broker_id == 2
    assert group_of(machine).master_epoch == 3


def test_the_last_member_stays_whatever_it_lost() -> None:
    machine = group_of_three()
    for broker_id in (3, 2, 1):
        reply = run(machine, lost(broker_id))
    assert reply.records == ()
    assert reply.remark is not None
    assert "as its last member" in reply.remark
    assert group_of(machine).sync_state_set == (1,)


def test_who_lost_its_tail_is_not_elected_before_it_is_judged() -> None:
    group = replace(group_of(group_of_three()), master_incarnation=4)
    assert choose_master(group, [seen_without_tail(1), seen(2, 1, 10)], None, unclean=False).broker_id == 2
    assert choose_master(group, [seen_without_tail(1)], None, unclean=False).broker_id is None
    assert choose_master(group, [seen_without_tail(1)], 1, unclean=False).broker_id is None
    assert choose_master(group, [seen_without_tail(1), seen(2, 1, 10)], None, unclean=True).broker_id == 2
    assert choose_master(group, [seen_without_tail(1)], None, unclean=True).broker_id == 1
    [_, second, _] = explain_eligibility(group, [seen_without_tail(2)])
    assert not second.eligible
    assert second.reason.startswith("lost the end of its log when it restarted")
    alone = replace(group, sync_state_set=(1,))
    assert choose_master(alone, [seen_without_tail(1)], None, unclean=False).broker_id == 1


def heard(table: HeartbeatTable, broker_id: int, now_ms: int, connection: int, **fields: int) -> bool:
    group = group_of(group_of_three())
    table.heartbeat(beat(broker_id, connection, **fields), now_ms)
    found = table.get(group, broker_id)
    assert found is not None
    return found.lost_tail


def test_a_disk_that_lied_is_found_out_by_what_was_confirmed() -> None:
    table = make_table()
    before = {"epoch": 3, "max_offset": 120, "confirm_offset": 100}
    assert not heard(table, 2, 1000, 1, incarnation=7, **before)
    table.connection_closed(1, 0)
    assert heard(table, 2, 1100, 2, incarnation=8, epoch=3, max_offset=99, confirm_offset=50)
    assert heard(table, 2, 1200, 2, incarnation=8, epoch=3, max_offset=99, confirm_offset=60), (
        "not only at its first word"
    )
    table.connection_closed(2, 1250)
    assert heard(table, 2, 1300, 3, incarnation=9, epoch=3, max_offset=99, confirm_offset=60), (
        "nor only in its next life"
    )
    assert not heard(table, 2, 1400, 3, incarnation=9, epoch=3, max_offset=100, confirm_offset=60), "it caught up"
    table.connection_closed(3, 1450)
    assert not heard(table, 2, 1500, 4, incarnation=10, epoch=3, max_offset=99, confirm_offset=99)


def test_who_lost_only_what_was_not_confirmed_is_not_suspected() -> None:
    table = make_table()
    heard(table, 2, 1000, 1, incarnation=7, epoch=3, max_offset=120, confirm_offset=100)
    table.connection_closed(1, 1050)
    assert not heard(table, 2, 1100, 2, incarnation=8, epoch=3, max_offset=100, confirm_offset=90)


def test_being_cut_by_a_newer_master_is_no_loss() -> None:
    table = make_table()
    heard(table, 2, 1000, 1, incarnation=7, epoch=3, max_offset=120, confirm_offset=100)
    assert not heard(table, 2, 1100, 1, incarnation=7, epoch=4, max_offset=60, confirm_offset=60)
    table.connection_closed(1, 1150)
    assert not heard(table, 2, 1200, 2, incarnation=8, epoch=4, max_offset=60, confirm_offset=60)
    heard(table, 3, 1000, 5, incarnation=7, epoch=3, max_offset=120, confirm_offset=100)
    table.connection_closed(5, 1050)
    assert heard(table, 3, 1100, 6, incarnation=8, epoch=3, max_offset=60, confirm_offset=0)
    assert not heard(table, 3, 1200, 6, incarnation=8, epoch=4, max_offset=60, confirm_offset=60)


def test_brokers_that_name_no_lives_are_not_compared() -> None:
    table = make_table()
    heard(table, 2, 1000, 1, epoch=3, max_offset=120, confirm_offset=100)
    assert not heard(table, 2, 1100, 2, epoch=3, max_offset=10, confirm_offset=0)


def test_an_unclean_election_says_what_it_costs() -> None:
    machine = group_of_three()
    run(machine, alter([1, 2], set_epoch=2))
    command = elect(seen(3, 1, 70), trigger=Trigger.CONTROLLER, unclean=True)
    reply = run(machine, replace(command, last_known=(seen(1, 1, 100), seen(2, 1, 90)), at_ms=1700000000000))
    group = group_of(machine)
    assert (group.master_broker_id, group.master_epoch, group.sync_state_set) == (3, 2, (3,))
    [election] = group.unclean_elections
    assert (election.sync_state_set, election.lost_bytes, election.at_ms) == ((1, 2), 30, 1700000000000)
    assert reply.remark == (
        "broker 3 became master of epoch 2 from outside the sync-state set [1, 2]: its log ends at 70 of epoch 1; "
        "lost are 30 bytes that a member of the set was known to have"
    )
    assert decode_state(encode_state(machine.state)) == machine.state


@pytest.mark.parametrize(
    ("known", "lost_bytes", "sentence"),
    [
        ((), None, "how much is lost is not known"),
        ((seen(1, 2, 50),), None, "lost is what it lacks of the log that went up to 50 of epoch 2"),
        ((seen(1, 1, 50),), 0, "lost are 0 bytes"),
        ((seen(3, 9, 999),), None, "how much is lost is not known"),
    ],
)
def test_the_price_as_far_as_it_is_known(known: tuple[Observation, ...], lost_bytes: int | None, sentence: str) -> None:
    machine = group_of_three()
    run(machine, alter([1, 2], set_epoch=2))
    command = elect(seen(3, 1, 70), trigger=Trigger.BROKER, unclean=True)
    run(machine, replace(command, last_known=known))
    [election] = group_of(machine).unclean_elections
    assert election.lost_bytes == lost_bytes
    assert sentence in election.sentence


def test_clean_elections_have_no_price_and_old_prices_are_forgotten() -> None:
    machine = group_of_three()
    run(machine, elect(seen(2), unclean=True))
    assert group_of(machine).unclean_elections == ()
    for each in range(MAX_UNCLEAN_ELECTIONS + 3):
        run(machine, elect(seen(1 if each % 2 else 3), unclean=True))
    elections = group_of(machine).unclean_elections
    assert len(elections) == MAX_UNCLEAN_ELECTIONS
    assert [each.master_epoch for each in elections] == sorted(each.master_epoch for each in elections)
    assert elections[-1].master_epoch == group_of(machine).master_epoch


def test_the_scanner_tells_what_the_dead_said_last() -> None:
    machine, table = group_of_three(), make_table()
    run(machine, alter([1, 2], set_epoch=2))
    for broker_id, end in ((1, 100), (2, 90), (3, 70)):
        table.heartbeat(beat(broker_id, broker_id, epoch=1, max_offset=end), 10_000)
    for broker_id in (1, 2):
        table.connection_closed(broker_id, 0)
    assert due_elections(machine.state, table, 10_100, unclean=False)[0].last_known == ()
    [command] = due_elections(machine.state, table, 10_100, unclean=True, at_ms=7)
    assert [(each.broker_id, each.max_offset) for each in command.last_known] == [(1, 100), (2, 90)]
    assert command.at_ms == 7
    run(machine, command)
    assert group_of(machine).unclean_elections[0].lost_bytes == 30


def last_member_lost_its_tail() -> Machine:
    """Broker 1 is all that is left of the set, was master, and has restarted."""
    machine = group_of_three()
    run(machine, alter([1], set_epoch=2))
    return machine


def copy_that_led_alone(table: HeartbeatTable) -> Machine:
    """A process on a copy of broker 2's directory was there first, led alone and is gone; broker 2 waited, and has the id now."""
    machine, calm = group_of_three(), {"interval_ms": 250, "timeout_ms": 1500}
    run(machine, elect(replace(seen(2), incarnation=77)))
    for now_ms in range(1000, 5000, 250):
        copy = {"incarnation": 77, "epoch": 2, "max_offset": 95, "confirm_offset": 90}
        table.heartbeat(beat(2, 9, **copy, **calm), now_ms)
        if now_ms > 4000:
            table.heartbeat(beat(2, 10, incarnation=2, epoch=1, max_offset=50, **calm), now_ms)
    table.connection_closed(9, 5000)
    table.heartbeat(beat(2, 10, incarnation=2, epoch=1, max_offset=50, **calm), 5100)
    return machine


def test_nobody_leads_without_what_another_process_with_its_id_acknowledged() -> None:
    table = make_table()
    machine = copy_that_led_alone(table)
    group = group_of(machine)
    assert run(machine, elect(*table.observe(group, 5100))).code == codes.CONTROLLER_ELECT_MASTER_FAILED
    [_, second, _] = explain_eligibility(group, table.observe(group, 5100))
    assert second.reason.startswith(
        "another process had its id, and the log up to 90 of epoch 2, while this one's ends at 50"
    )
    table.connection_closed(10, 5200)
    table.heartbeat(beat(2, 11, incarnation=3, epoch=1, max_offset=50), 5300)
    assert choose_master(group, table.observe(group, 5300), None, unclean=False).broker_id is None, "nor its next life"
    table.connection_closed(11, 5400)
    table.heartbeat(beat(2, 12, incarnation=78, epoch=2, max_offset=95), 5500)
    assert choose_master(group, table.observe(group, 5500), None, unclean=False).broker_id == 2, "the copy is back"


@pytest.mark.parametrize(("other", "leads"), [(seen(3, 1, 900), None), (seen(3, 2, 89), None), (seen(3, 2, 90), 3)])
def test_who_has_what_the_other_process_acknowledged_leads(other: Observation, leads: int | None) -> None:
    table = make_table()
    machine = copy_that_led_alone(table)
    group = group_of(machine)
    observed = (*table.observe(group, 5100), other)
    assert choose_master(group, observed, None, unclean=False).broker_id == leads
    assert choose_master(group, observed, None, unclean=True).broker_id is not None, "a person may give it up"


def test_a_later_life_that_was_refused_for_a_moment_leads_as_the_last_member_whatever_it_lost() -> None:
    """Its last process is gone; it only seemed to be connected."""
    machine, table = group_of_three(), make_table()
    run(machine, elect(replace(seen(2), incarnation=7)))
    calm = {"interval_ms": 250, "timeout_ms": 1500}
    table.heartbeat(beat(2, 1, incarnation=7, epoch=2, max_offset=95, confirm_offset=90, **calm), 1000)
    for now_ms in range(1100, 4000, 250):
        table.heartbeat(beat(2, 2, incarnation=8, epoch=1, max_offset=50, **calm), now_ms)
    group = group_of(machine)
    [found] = table.observe(group, 3900)
    assert (found.incarnation, found.lost_tail) == (8, True)
    assert choose_master(group, [found], None, unclean=False).broker_id == 2


def kept(*observed: Observation, **more: Any) -> ElectMaster:
    return replace(elect(*observed, **more), keeps_members=True)


@pytest.mark.parametrize("end", [40, 41, 500])
def test_the_last_member_that_lost_its_tail_gives_way_to_who_has_as_much(end: int) -> None:
    machine = last_member_lost_its_tail()
    group = replace(group_of(machine), master_incarnation=4)
    observed = (seen_without_tail(1), seen(2, 1, end), seen(3, 1, 39))
    assert choose_master(group, observed, None, unclean=False).broker_id == 2
    assert choose_master(group, observed, 1, unclean=False).broker_id == 1, "a person may say who leads"
    [_, second, third] = explain_eligibility(group, observed)
    assert second.eligible
    assert second.reason.startswith("has at least as much as the set's last member")
    assert not third.eligible


def test_who_replaces_the_last_member_is_the_whole_set_and_no_unclean_master() -> None:
    machine = group_of_three()
    run(machine, elect(replace(seen(2), incarnation=7)))
    run(machine, lost(2))
    assert group_of(machine).sync_state_set == (2,)
    reply = run(machine, kept(replace(seen_without_tail(2), incarnation=9), seen(1, 1, 50), seen(3, 1, 45)))
    group = group_of(machine)
    assert (group.master_broker_id, group.sync_state_set, group.unclean_elections) == (1, (1,), ())
    assert reply.remark is not None
    assert "broker 2, lost the end of its log and has no more than that" in reply.remark


@pytest.mark.parametrize(
    "other",
    [
        seen(2, 1, 39),  # less than is left there
        seen(2, 0, 900),  # of an earlier epoch
        seen_without_tail(2, 900),  # it cannot tell itself
        replace(seen(2, 1, 900), is_learner=True),
    ],
)
def test_the_last_member_gives_way_to_nobody_who_may_have_less(other: Observation) -> None:
    group = replace(group_of(last_member_lost_its_tail()), master_incarnation=4)
    assert choose_master(group, [seen_without_tail(1), other], None, unclean=False).broker_id == 1


def test_what_the_last_member_knows_to_be_confirmed_its_successor_must_have() -> None:
    group = replace(group_of(last_member_lost_its_tail()), master_incarnation=4)
    last = replace(seen_without_tail(1), lost_confirmed=60)
    assert choose_master(group, [last, seen(2, 1, 59)], None, unclean=False).broker_id is None
    assert choose_master(group, [last, seen(2, 1, 60)], None, unclean=False).broker_id == 2
