"""When a master whose disk takes no message gives way, and when it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controllerd.replicas.heartbeat import HeartbeatTable
from controllerd.replicas.recent_elections import grounds_of
from controllerd.replicas.records import MasterElected
from controllerd.replicas.requests import ElectMaster, Trigger
from controllerd.replicas.room import NO_ROOM_MS, ROOM_MS, successor_with_room
from controllerd.replicas.triggers import due_elections
from remoting import codes
from remoting.facts.words import Cause, DiskPace
from tests.unit.controllerd.replicas.builders import Machine, alter, elect, group_of, group_of_three, run, seen
from tests.unit.controllerd.replicas.test_heartbeat import beat, make_table

START_MS = 10_000
LATER_MS = START_MS + max(ROOM_MS, NO_ROOM_MS)


def say(table: HeartbeatTable, now_ms: int, offsets: tuple[int, int, int] = (50, 50, 50), **room: bool | None) -> None:
    """A heartbeat of each of the three: `b1=False` has no room, None does not say."""
    for broker_id, max_offset in enumerate(offsets, 1):
        said = replace(beat(broker_id, broker_id, epoch=1, max_offset=max_offset, incarnation=7), has_room=None)
        table.heartbeat(replace(said, has_room=room.get(f"b{broker_id}")), now_ms)


def keep_saying(table: HeartbeatTable, first_ms: int, last_ms: int, **room: bool | None) -> None:
    for now_ms in (*range(first_ms, last_ms, 250), last_ms):
        say(table, now_ms, **room)


def due(machine: Machine, table: HeartbeatTable, now_ms: int) -> list[ElectMaster]:
    return due_elections(machine.state, table, now_ms, unclean=False)


def test_a_master_without_room_gives_way_to_the_freshest_member_that_has_some() -> None:
    machine, table = group_of_three(), make_table()
    keep_saying(table, START_MS, LATER_MS, b1=False, b2=True, b3=True)
    say(table, LATER_MS, (50, 40, 50), b1=False, b2=True, b3=True)
    (request,) = due(machine, table, LATER_MS)
    grounds = grounds_of(group_of(machine), table, request, LATER_MS)
    assert grounds is not None
    assert grounds.cause is Cause.NO_ROOM
    records = run(machine, request).records
    assert isinstance(records[0], MasterElected)
    group = group_of(machine)
    assert (group.master_broker_id, group.sync_state_set) == (3, (1, 2, 3)), "who has no room stays a replica"
    assert due(machine, table, LATER_MS) == [], "the new master has room"


@pytest.mark.parametrize(
    "room",
    [
        {"b1": False, "b2": False, "b3": False},  # all are full
        {"b1": False, "b2": None, "b3": None},  # of a version that does not say
        {"b1": None, "b2": True, "b3": True},
        {"b1": True, "b2": True, "b3": True},
    ],
)
def test_it_stays_when_nobody_is_known_to_have_more_room(room: dict[str, bool | None]) -> None:
    machine, table = group_of_three(), make_table()
    keep_saying(table, START_MS, LATER_MS, **room)
    assert due(machine, table, LATER_MS) == []


def test_it_is_given_a_moment_to_make_room() -> None:
    machine, table = group_of_three(), make_table()
    keep_saying(table, START_MS, LATER_MS, b1=True, b2=True, b3=True)
    keep_saying(table, LATER_MS + 1, LATER_MS + NO_ROOM_MS, b1=False, b2=True, b3=True)
    assert due(machine, table, LATER_MS + NO_ROOM_MS) == []
    say(table, LATER_MS + NO_ROOM_MS, b1=True, b2=True, b3=True)
    say(table, LATER_MS + NO_ROOM_MS + 1, b1=False, b2=True, b3=True)
    assert due(machine, table, LATER_MS + NO_ROOM_MS + 1) == []


def test_masters_do_not_change_more_often_than_room_comes_back() -> None:
    """Who had no room a moment ago is not elected, so two disks at their limits do not pass the lead to and fro."""
    machine, table = group_of_three(), make_table()
    keep_saying(table, START_MS, LATER_MS, b1=False, b2=True, b3=False)
    (request,) = due(machine, table, LATER_MS)
    run(machine, request)
    keep_saying(table, LATER_MS, LATER_MS + NO_ROOM_MS, b1=True, b2=False, b3=False)
    assert due(machine, table, LATER_MS + NO_ROOM_MS) == []
    keep_saying(table, LATER_MS + NO_ROOM_MS, LATER_MS + ROOM_MS, b1=True, b2=False, b3=False)
    assert [each.broker_id for each in due(machine, table, LATER_MS + ROOM_MS)] == [1]


def test_who_has_room_on_a_disk_that_stands_still_does_not_take_over() -> None:
    """It would give the lead back at once, and have left the set."""
    machine, table = group_of_three(), make_table()
    for now_ms in (START_MS, LATER_MS):
        say(table, now_ms, b1=False, b2=True, b3=False)
        stands = replace(beat(2, 2, epoch=1, max_offset=50, incarnation=7), has_room=True, disk=DiskPace.STANDS)
        table.heartbeat(stands, now_ms)
    assert due(machine, table, LATER_MS) == []
    table.heartbeat(replace(stands, disk=DiskPace.SLOW), LATER_MS)
    assert [each.broker_id for each in due(machine, table, LATER_MS)] == [2], "slow is better than full"


def test_only_members_that_lead_without_loss_take_over() -> None:
    machine, table = group_of_three(), make_table()
    run(machine, alter([1, 2], set_epoch=2))
    for now_ms in (START_MS, LATER_MS):
        say(table, now_ms, b1=False, b2=False, b3=True)
    assert successor_with_room(group_of(machine), table, LATER_MS) is None, "3 is not in the set"
    machine, table = group_of_three(), make_table()
    for now_ms in (START_MS, LATER_MS):
        say(table, now_ms, b1=False, b2=False)
        learner = beat(3, 3, epoch=1, max_offset=50, incarnation=7)
        table.heartbeat(replace(learner, has_room=True, is_learner=True), now_ms)
    assert successor_with_room(group_of(machine), table, LATER_MS) is None, "3 is a learner"


def test_a_successor_that_cannot_lead_any_more_costs_no_master() -> None:
    """Between the look and the decision it may leave the set: then the master without room is better than none."""
    machine = group_of_three()
    run(machine, alter([1, 3], set_epoch=2))
    asked = elect(seen(1), seen(2), seen(3), trigger=Trigger.CONTROLLER, wanted=2, designate=True, seen_epoch=1)
    reply = run(machine, replace(asked, keeps_members=True))
    assert (reply.code, reply.records) == (codes.CONTROLLER_ELECT_MASTER_FAILED, ())
    assert group_of(machine).master_broker_id == 1
