"""What the controllers tell of the elections that they decided a moment ago."""

from __future__ import annotations

from dataclasses import replace

from controllerd.replicas.recent_elections import Grounds, RecentElections, grounds_of
from controllerd.replicas.state import Group
from remoting.facts.cluster_view import ElectionView
from remoting.facts.words import Cause
from tests.unit.controllerd.replicas.builders import group_of
from tests.unit.controllerd.replicas.test_heartbeat import due, make_live_group

GROUP = Group("c", "broker-a", master_broker_id=2, master_epoch=4)


def test_an_epoch_that_is_new_is_told_once() -> None:
    recent = RecentElections()
    grounds = Grounds(1, 3, Cause.SILENT, 900)
    recent.decided(grounds, GROUP, 5000)
    told = ElectionView(master_epoch=4, broker_id=2, previous_id=1, cause=Cause.SILENT, at_ms=5000, unheard_ms=900)
    assert recent.of("broker-a") == (told,)
    recent.decided(grounds, GROUP, 5100)
    recent.decided(Grounds(2, 4, Cause.CLOSED, 0), GROUP, 5200)
    assert recent.of("broker-a") == (told,), "another request lost the race, or changed nothing"
    assert recent.of("broker-b") == ()


def test_the_time_without_anybody_counts_from_the_last_word_of_the_master() -> None:
    recent = RecentElections()
    recent.decided(Grounds(1, 3, Cause.SILENT, 900), replace(GROUP, master_broker_id=None), 5000)
    recent.decided(Grounds(None, 4, Cause.CANDIDATE_CAME, 0), replace(GROUP, master_epoch=5), 9000)
    assert [(each.broker_id, each.unheard_ms) for each in recent.of("broker-a")] == [(None, 900), (2, 4900)]


def test_the_last_ones_are_kept_and_groups_that_are_gone_are_forgotten() -> None:
    recent = RecentElections()
    for epoch in range(1, 100):
        recent.decided(Grounds(1, epoch - 1, Cause.CLOSED, 0), replace(GROUP, master_epoch=epoch), epoch)
    assert [each.master_epoch for each in recent.of("broker-a")] == list(range(92, 100))
    recent.keep_only({"broker-b"})
    assert recent.of("broker-a") == ()


def test_what_another_leader_decided_meanwhile_is_no_time_without_a_master() -> None:
    recent = RecentElections()
    recent.decided(Grounds(1, 3, Cause.SILENT, 900), replace(GROUP, master_broker_id=None), 5000)
    hours_later_ms = 5000 + 3 * 3600 * 1000
    recent.decided(Grounds(None, 8, Cause.CANDIDATE_CAME, 0), replace(GROUP, master_epoch=9), hours_later_ms)
    assert [(each.master_epoch, each.unheard_ms) for each in recent.of("broker-a")] == [(4, 900), (9, 0)]


def test_a_master_that_died_together_with_the_leader_was_gone_before_the_next_one_decided() -> None:
    machine, table = make_live_group()
    table.connection_closed(1, 10_100)
    table.lead(12_600)
    (request,) = due(machine, table, 12_600)
    grounds = grounds_of(group_of(machine), table, request, 12_600)
    assert grounds == Grounds(1, 1, Cause.CLOSED, 2500)
