"""Which broker groups are counted: those whose present master told lately, and all of whose possible masters know placements."""

from __future__ import annotations

from controllerd.placements.reports import FRESH_MS, Reports
from controllerd.replicas.state import Group


def group(name: str = "a", *, members: tuple[int, ...] = (1, 2), epoch: int = 7) -> Group:
    return Group("c", name, master_broker_id=1, master_epoch=epoch, sync_state_set=members)


def test_a_group_is_counted_when_all_that_may_lead_it_know_placements() -> None:
    reports, groups = Reports(), {"a": group()}
    reports.heard("a", 1)
    assert reports.told("a", 7, 1, {"orders": 8}, 0)
    assert reports.summary(groups, (), lambda *_: True, 0).groups == {}
    reports.heard("a", 2)
    told = reports.summary(groups, ("a",), lambda *_: True, 0)
    assert told.groups == {"a": {"orders": 8}}
    assert told.are_all_there


def test_who_is_silent_is_not_counted_and_keeps_first_placements_back_while_it_lives() -> None:
    reports, groups = Reports(), {"a": group(members=(1,)), "b": group("b", members=(1,))}
    reports.heard("a", 1)
    reports.heard("b", 1)
    reports.told("a", 7, 1, {}, FRESH_MS)
    reports.told("b", 7, 1, {}, 0)
    assert reports.summary(groups, (), lambda *_: True, FRESH_MS).are_all_there
    later = reports.summary(groups, (), lambda *_: True, FRESH_MS + 1)
    assert (list(later.groups), later.are_all_there) == (["a"], False)
    assert reports.summary(groups, (), lambda each, _: each.broker_name == "a", FRESH_MS + 1).are_all_there
    assert not reports.summary(groups, ("fixed",), lambda *_: False, 0).are_all_there


def test_a_master_of_another_epoch_is_not_counted() -> None:
    reports = Reports()
    reports.heard("a", 1)
    reports.told("a", 7, 1, {}, 0)
    groups = {"a": group(members=(1,), epoch=8)}
    assert reports.summary(groups, (), lambda *_: True, 0).groups == {}
    reports.told("a", 8, 1, {}, 0)
    assert reports.told("a", 7, 2, {"orders": 8}, 0), "it is not the master any more"
    assert reports.summary(groups, (), lambda *_: True, 0).groups == {"a": {}}


def test_topics_are_told_once() -> None:
    reports = Reports()
    assert not reports.told("a", 7, 1, None, 0)
    assert reports.told("a", 7, 1, {"orders": 8}, 0)
    assert reports.told("a", 7, 1, None, 0)
    assert not reports.told("a", 7, 2, None, 0)
    assert not reports.told("a", 8, 1, None, 0)
    assert reports.told("a", 7, 2, {"orders": 8}, 0)
