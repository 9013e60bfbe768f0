"""When a master whose disk stands still gives way, who is elected and who stays in the set, and when nobody is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controllerd.replicas.elect import choose_master
from controllerd.replicas.heartbeat import HeartbeatTable
from controllerd.replicas.recent_elections import grounds_of
from controllerd.replicas.records import MasterElected
from controllerd.replicas.requests import ElectMaster
from controllerd.replicas.standing_disks import successor_with_working_disk
from controllerd.replicas.triggers import due_elections
from remoting.facts.words import Cause, DiskPace
from tests.unit.controllerd.replicas.builders import Machine, alter, group_of, group_of_three, run, seen
from tests.unit.controllerd.replicas.test_heartbeat import beat, make_table

NOW_MS = 10_000
WORKS, SLOW, STANDS = DiskPace.WORKS, DiskPace.SLOW, DiskPace.STANDS
Paces = tuple[DiskPace | None, DiskPace | None, DiskPace | None]


def say(table: HeartbeatTable, now_ms: int, paces: Paces, offsets: tuple[int, int, int] = (50, 50, 50)) -> None:
    """A heartbeat of each of the three; None does not say how its disk is."""
    for broker_id, (pace, max_offset) in enumerate(zip(paces, offsets, strict=True), 1):
        said = beat(broker_id, broker_id, epoch=1, max_offset=max_offset, incarnation=7, interval_ms=250)
        table.heartbeat(replace(said, disk=pace), now_ms)


def due(machine: Machine, table: HeartbeatTable, now_ms: int = NOW_MS) -> list[ElectMaster]:
    return due_elections(machine.state, table, now_ms, unclean=False)


def test_the_freshest_member_whose_disk_works_leads_and_who_stands_leaves_the_set() -> None:
    machine, table = group_of_three(), make_table()
    say(table, NOW_MS, (STANDS, WORKS, WORKS), (90, 40, 50))
    (request,) = due(machine, table)
    grounds = grounds_of(group_of(machine), table, request, NOW_MS)
    assert grounds is not None
    assert grounds.cause is Cause.DISK_STANDS
    records = run(machine, request).records
    assert isinstance(records[0], MasterElected)
    group = group_of(machine)
    assert (group.master_broker_id, group.sync_state_set) == (3, (2, 3)), "sends must not wait for who ends no sync"
    assert due(machine, table) == []


def test_it_is_looked_at_as_soon_as_it_is_said() -> None:
    _, table = group_of_three(), make_table()
    said = replace(beat(1, 1, epoch=1, incarnation=7), disk=WORKS)
    assert table.heartbeat(said, NOW_MS)
    assert not table.heartbeat(said, NOW_MS + 250)
    assert table.heartbeat(replace(said, disk=STANDS), NOW_MS + 500)
    assert not table.heartbeat(replace(said, disk=STANDS), NOW_MS + 750)


@pytest.mark.parametrize(
    "paces",
    [
        (STANDS, STANDS, STANDS),
        (STANDS, SLOW, SLOW),  # they may be slow together, or stand in a moment
        (STANDS, None, None),  # of a version that does not say
        (SLOW, WORKS, WORKS),
        (WORKS, WORKS, WORKS),
        (None, WORKS, WORKS),
    ],
)
def test_it_stays_where_it_does_not_stand_or_nobody_is_known_to_work(paces: Paces) -> None:
    machine, table = group_of_three(), make_table()
    say(table, NOW_MS, paces)
    assert due(machine, table) == []


def test_a_word_that_is_old_counts_for_nothing() -> None:
    """Its disk may stand, too, and its loop in a write to it."""
    machine, table = group_of_three(), make_table()
    say(table, NOW_MS, (WORKS, WORKS, WORKS))
    master = replace(beat(1, 1, epoch=1, max_offset=50, incarnation=7, interval_ms=250), disk=STANDS)
    table.heartbeat(master, NOW_MS + 501)
    assert table.is_alive(group_of(machine), 2, NOW_MS + 501)
    assert due(machine, table, NOW_MS + 501) == []
    table.heartbeat(master, NOW_MS + 500)
    assert len(due(machine, table, NOW_MS + 500)) == 1


def test_only_members_that_lead_without_loss_take_over() -> None:
    machine, table = group_of_three(), make_table()
    run(machine, alter([1, 2], set_epoch=2))
    say(table, NOW_MS, (STANDS, SLOW, WORKS))
    assert successor_with_working_disk(group_of(machine), table, NOW_MS) is None, "3 is not in the set"
    say(table, NOW_MS, (STANDS, WORKS, WORKS))
    assert successor_with_working_disk(group_of(machine), table, NOW_MS) == 2


def test_who_has_no_room_takes_over_when_nobody_else_does() -> None:
    machine, table = group_of_three(), make_table()
    say(table, NOW_MS, (STANDS, WORKS, WORKS), (50, 50, 40))
    full = replace(beat(2, 2, epoch=1, max_offset=50, incarnation=7, interval_ms=250), disk=WORKS, has_room=False)
    table.heartbeat(full, NOW_MS)
    assert successor_with_working_disk(group_of(machine), table, NOW_MS) == 3
    run(machine, alter([1, 2], set_epoch=2))
    assert successor_with_working_disk(group_of(machine), table, NOW_MS) == 2


def test_of_those_who_are_left_who_stands_leads_last_and_leaves_the_set_of_others() -> None:
    machine = group_of_three()
    stands, works = replace(seen(2, max_offset=90), disk_stands=True), seen(3, max_offset=50)
    group = group_of(machine)
    assert choose_master(group, (stands, works), None, unclean=False).broker_id == 3
    assert choose_master(group, (stands,), None, unclean=False).broker_id == 2, "better than nobody"
    assert choose_master(group, (stands, works), 2, unclean=False).broker_id == 2, "a person asked for it"


def test_where_all_stand_the_set_stays_whole() -> None:
    machine, table = group_of_three(), make_table()
    say(table, NOW_MS, (None, STANDS, STANDS))
    table.connection_closed(1, NOW_MS + 10)
    (request,) = due(machine, table, NOW_MS + 10)
    run(machine, request)
    assert set(group_of(machine).sync_state_set) == {2, 3}
