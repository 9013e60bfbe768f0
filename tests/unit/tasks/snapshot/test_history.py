"""The history as it follows from pairs of looks; untidy as real clusters are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from remoting.facts.broker_state import BrokerState, MissingState, QuorumState
from remoting.facts.cluster_view import ClusterView, ElectionView
from remoting.facts.codec import decode, encode
from remoting.facts.history import HistoryEntry
from remoting.facts.snapshot import ClusterSnapshot, LastExit, Supervisor
from remoting.facts.words import Cause, ControllerRole, GroupKind, Health, HistoryKind
from tasks.snapshot.build import build, recall
from tasks.snapshot.history import ELECTIONS_KEPT, FAULTS_KEPT
from tasks.snapshot.inputs import Kept, Look, Memory
from tasks.snapshot.moments import timestamp
from tasks.snapshot.recent import RECENT_MS
from tests.unit.tasks.patience import patient
from tests.unit.tasks.snapshot.cluster import (
    CONTROLLERS,
    NOW_MS,
    look,
    process,
    replica,
    state,
    supervisor,
    topic,
    view,
)

LONG = "broker-" + "x" * 83  # as long as names are in some places
RUNNING = tuple(
    process(f"broker-a-{number}", address=f"127.0.0.1:{10901 + 10 * broker_id}")
    for number, broker_id in ((2, 1), (1, 2), (3, 3))
)
KILLED = LastExit(code=-9, text="was killed by SIGKILL", at=timestamp(NOW_MS + 900))


def elected(epoch: int, broker_id: int | None, previous_id: int | None, cause: Cause, at_ms: int, **told: Any) -> Any:
    return ElectionView(
        master_epoch=epoch, broker_id=broker_id, previous_id=previous_id, cause=cause, at_ms=at_ms, **told
    )


def led_by(
    broker_id: int | None, epoch: int, *told: ElectionView, dead: Sequence[int] = (), **group: Any
) -> ClusterView:
    """The group after an election; the dead are out of the set."""
    replicas = [
        replica(
            each,
            "master" if each == broker_id else "replica",
            alive=each not in dead,
            absence=Cause.CLOSED if each in dead else None,
            in_sync=each not in dead,
        )
        for each in (1, 2, 3)
    ]
    members = tuple(each for each in (1, 2, 3) if each not in dead)
    changes = {"master_broker_id": broker_id, "master_epoch": epoch, "sync_state_set": members, "elections": told}
    return view(**{**changes, "replicas": tuple(replicas), **group})


def served_by(broker_id: int, dead: Sequence[int] = (), **told: Any) -> dict[int, BrokerState]:
    return {
        each: state(each, "master" if each == broker_id else "replica", **told)
        for each in (1, 2, 3)
        if each not in dead
    }


def after(*looks: Look, memory: Memory | None = None) -> tuple[ClusterSnapshot, Memory]:
    """The last snapshot of these looks, one after the other."""
    memory = memory or Memory()
    for each in looks:
        snapshot, memory = build(each, memory)
    return snapshot, memory


def kinds(snapshot: ClusterSnapshot) -> list[str]:
    return sorted(each.kind for each in snapshot.history)


def only(snapshot: ClusterSnapshot, kind: HistoryKind) -> HistoryEntry:
    (found,) = [each for each in snapshot.history if each.kind is kind]
    return found


def killed() -> Look:
    """The master, replica 1, died and replica 2 leads; its process waits for its next start."""
    told = elected(4, 2, 1, Cause.CLOSED, NOW_MS + 950)
    first, *others = RUNNING
    gone = replace(first, state="backing-off", pid=None, last_exit=KILLED)
    return look(
        NOW_MS + 1000,
        view=led_by(2, 4, told, dead=[1]),
        states=served_by(2, dead=[1]),
        supervisor=supervisor(gone, *others),
    )


def back(now_ms: int) -> Look:
    first, *others = RUNNING
    again = replace(first, restarts=1, last_exit=KILLED, since=timestamp(now_ms - 200))
    return look(now_ms, view=led_by(2, 4), states=served_by(2), supervisor=supervisor(again, *others))


HEALTHY = look(NOW_MS, supervisor=supervisor(*RUNNING))


def test_a_killed_master_is_an_election_with_cause_and_duration_and_two_faults_of_one_replica() -> None:
    snapshot, memory = after(HEALTHY, killed())
    assert kinds(snapshot) == ["election", "out-of-sync", "replica-down"]
    election = only(snapshot, HistoryKind.ELECTION)
    assert election.text == "broker-a: replica 2 (broker-a-1) was elected master in epoch 4"
    assert (election.previous, election.elected) == ("replica 1 (broker-a-2)", "replica 2 (broker-a-1)")
    assert election.cause == "replica 1 (broker-a-2): its process was killed by SIGKILL"
    assert (election.started_ms, election.ended_ms) == (NOW_MS + 950, NOW_MS + 1000)
    down = only(snapshot, HistoryKind.REPLICA_DOWN)
    assert down.text == "broker-a: replica 1 (broker-a-2) did not answer"
    assert (down.started_ms, down.ended_ms) == (NOW_MS + 900, None)
    snapshot, _ = after(back(NOW_MS + 5000), memory=memory)
    assert only(snapshot, HistoryKind.REPLICA_DOWN).duration_ms == 4100
    assert only(snapshot, HistoryKind.OUT_OF_SYNC).duration_ms == 4000
    assert kinds(snapshot) == ["election", "out-of-sync", "replica-down"]


def test_the_verdict_is_healthy_and_names_what_was_as_one_thing_for_a_stated_time() -> None:
    snapshot, memory = after(HEALTHY, killed(), back(NOW_MS + 5000))
    assert (snapshot.verdict.status, snapshot.verdict.reasons) == (Health.HEALTHY, ())
    (told,) = snapshot.verdict.recent
    assert told.text == (
        "broker-a lost its master for 0.1 s: replica 1 (broker-a-2): its process was killed by SIGKILL; "
        "replica 2 (broker-a-1) is the master since"
    )
    assert told.at == timestamp(NOW_MS + 950)
    later, memory = after(back(NOW_MS + 1000 + RECENT_MS), memory=memory)
    assert later.verdict.recent == (told,)
    gone, memory = after(back(NOW_MS + 3000 + RECENT_MS), memory=memory)
    assert gone.verdict.recent == (), "what is a part of it is not told alone when it is not told any more"
    gone, _ = after(back(NOW_MS + 6000 + RECENT_MS), memory=memory)
    assert gone.verdict.recent == ()
    assert len(gone.history) == 3


def test_a_frozen_master_was_silent_before_it_was_replaced_and_that_time_counts() -> None:
    told = elected(4, 2, 1, Cause.SILENT, NOW_MS + 950, unheard_ms=1200)
    snapshot, _ = after(HEALTHY, look(NOW_MS + 1000, view=led_by(2, 4, told, dead=[1]), states=served_by(2)))
    election = only(snapshot, HistoryKind.ELECTION)
    assert election.duration_ms == 1250
    assert election.cause == "replica 1: its heartbeats stopped"


def test_an_election_lasts_until_the_new_master_serves() -> None:
    told = elected(4, 2, 1, Cause.CLOSED, NOW_MS + 950)
    promoting = {**served_by(2, dead=[1]), 2: state(2, "promoting")}
    snapshot, memory = after(HEALTHY, look(NOW_MS + 1000, view=led_by(2, 4, told, dead=[1]), states=promoting))
    assert only(snapshot, HistoryKind.ELECTION).ended_ms is None
    assert snapshot.verdict.recent == (), "it is not over: the reasons tell it"
    snapshot, _ = after(look(NOW_MS + 2000, view=led_by(2, 4, told, dead=[1]), states=served_by(2)), memory=memory)
    assert only(snapshot, HistoryKind.ELECTION).duration_ms == 1050


def test_an_election_that_a_person_asked_for_says_so() -> None:
    told = elected(4, 2, 1, Cause.ASKED, NOW_MS + 950)
    snapshot, _ = after(HEALTHY, look(NOW_MS + 1000, view=led_by(2, 4, told), states=served_by(2)))
    assert kinds(snapshot) == ["election"]
    assert only(snapshot, HistoryKind.ELECTION).cause == "a person asked for it"


def test_a_group_without_master_is_a_fault_until_somebody_can_be_elected() -> None:
    lost = elected(4, None, 1, Cause.CLOSED, NOW_MS + 500)
    without = {"view": led_by(None, 4, lost, dead=[1, 2, 3]), "states": {}}
    snapshot, memory = after(HEALTHY, *(look(NOW_MS + ms, **without) for ms in (1000, 2000, 3000)))
    fault = only(snapshot, HistoryKind.NO_MASTER)
    assert (fault.started_ms, fault.ended_ms) == (NOW_MS + 500, None)
    assert fault.cause == "replica 1: its connection to the controllers closed"
    told = elected(5, 3, None, Cause.CANDIDATE_CAME, NOW_MS + 9500, unheard_ms=9000)
    snapshot, _ = after(look(NOW_MS + 10_000, view=led_by(3, 5, lost, told), states=served_by(3)), memory=memory)
    assert only(snapshot, HistoryKind.NO_MASTER).duration_ms == 9500
    election = only(snapshot, HistoryKind.ELECTION)
    assert (election.previous, election.duration_ms) == ("replica 1", 9500)
    assert election.cause == "replica 1: its connection to the controllers closed; nobody could be elected at once"
    assert len([each for each in snapshot.verdict.recent if "lost its master" in each.text]) == 1
    assert not [each for each in snapshot.verdict.recent if "had no master" in each.text], "the election tells it"


def test_two_faults_at_once_are_two_and_end_each_for_itself() -> None:
    told = {
        "kind": "controllers",
        "copies": 1,
        "wanted_copies": 3,
        "min_copies": 2,
        "refused": True,
        "downgraded": True,
    }
    missing = tuple(MissingState(broker_id=each, reason="it is not connected", since_ms=NOW_MS) for each in (2, 3))
    refusing = QuorumState(**told, missing=missing)
    alone = look(NOW_MS + 1000, view=led_by(1, 3, dead=[2, 3]), states={1: state(1, "master", quorum=refusing)})
    snapshot, memory = after(HEALTHY, alone)
    assert kinds(snapshot) == ["out-of-sync", "out-of-sync", "refused", "replica-down", "replica-down"]
    assert only(snapshot, HistoryKind.REFUSED).cause == "replica 2: it is not connected; replica 3: it is not connected"
    enough = QuorumState(kind="controllers", copies=2, wanted_copies=3, min_copies=2, downgraded=True)
    half = {1: state(1, "master", quorum=enough), 2: state(2)}
    snapshot, _ = after(look(NOW_MS + 2000, view=led_by(1, 3, dead=[3]), states=half), memory=memory)
    assert sorted((each.kind, each.subject) for each in snapshot.history if each.ended_ms is None) == [
        ("out-of-sync", "replica 3"),
        ("replica-down", "replica 3"),
    ]


def test_names_of_ninety_characters_are_told_whole() -> None:
    told = elected(4, 2, 1, Cause.CLOSED, NOW_MS + 950)
    names = {"broker_name": LONG, "cluster_name": "c" * 90}
    snapshot, memory = after(
        look(view=view(**names), states={}),
        look(NOW_MS + 1000, view=led_by(2, 4, told, dead=[1], **names), states={}),
        look(NOW_MS + 2000, view=led_by(2, 4, told, **names), states={}),
    )
    assert kinds(snapshot) == ["election", "out-of-sync", "replica-down"]
    assert all(LONG in each.text for each in snapshot.history)
    assert decode(ClusterSnapshot, encode(snapshot)) == snapshot
    assert after(look(NOW_MS + 3000, view=led_by(2, 4, **names)), memory=memory)[0].history == snapshot.history


def test_a_group_that_vanishes_ends_its_faults_and_one_that_returns_begins_new_ones() -> None:
    snapshot, memory = after(HEALTHY, killed())
    emptied = replace(view(), groups=())
    snapshot, memory = after(look(NOW_MS + 3000, view=emptied, states={}), memory=memory)
    assert [each for each in snapshot.history if each.ended_ms is None] == []
    assert only(snapshot, HistoryKind.REPLICA_DOWN).cause.endswith("it was taken out of the cluster")
    snapshot, memory = after(look(NOW_MS + 9000, view=led_by(3, 7, dead=[1]), states=served_by(3)), memory=memory)
    assert kinds(snapshot) == ["election", "out-of-sync", "replica-down", "replica-down"]
    assert snapshot.history[0].ended_ms is None


def test_a_group_that_is_not_told_of_because_nobody_leads_is_not_over() -> None:
    _, memory = after(HEALTHY, killed())
    empty = replace(view(leader=-1), groups=())
    snapshot, memory = after(look(NOW_MS + 3000, view=empty, states={}), memory=memory)
    snapshot, _ = after(look(NOW_MS + 4000, views={}, states={}), memory=memory)
    assert only(snapshot, HistoryKind.REPLICA_DOWN).ended_ms is None


def test_elections_while_the_collector_was_away_are_told_by_the_controllers() -> None:
    told = (
        elected(4, 2, 1, Cause.CLOSED, NOW_MS + 60_000),
        elected(5, 3, 2, Cause.ASKED, NOW_MS + 120_000),
    )
    snapshot, _ = after(HEALTHY)
    later = look(NOW_MS + 600_000, view=led_by(3, 5, *told), states=served_by(3))
    snapshot, _ = after(later, memory=recall(decode(ClusterSnapshot, encode(snapshot))))
    assert [(each.epoch, each.previous, each.started_ms) for each in snapshot.history] == [
        (5, "replica 2", NOW_MS + 120_000),
        (4, "replica 1", NOW_MS + 60_000),
    ]
    assert [each.duration_ms for each in snapshot.history] == [0, 0], "nobody saw when they served"
    assert "broker-a lost its master: a person asked for it" in snapshot.verdict.recent[0].text


def test_elections_that_nobody_knows_of_any_more_are_counted() -> None:
    away = look(NOW_MS + 600_000, view=led_by(2, 7, dead=[1]), states=served_by(2))
    snapshot, _ = after(HEALTHY, away)
    election = only(snapshot, HistoryKind.ELECTION)
    assert election.cause == "replica 1: its connection to the controllers closed; 3 more epochs passed unseen"
    assert election.start_unwatched


def test_a_fault_that_is_open_when_the_collector_starts_again_is_continued_and_ends_when_that_is_seen() -> None:
    snapshot, _ = after(HEALTHY, killed())
    stored = only(snapshot, HistoryKind.REPLICA_DOWN)
    memory = recall(decode(ClusterSnapshot, encode(snapshot)))
    snapshot, memory = after(replace(killed(), now_ms=NOW_MS + 30_000), memory=memory)
    assert only(snapshot, HistoryKind.REPLICA_DOWN) == stored
    snapshot, _ = after(back(NOW_MS + 90_000), memory=recall(decode(ClusterSnapshot, encode(snapshot))))
    ended = only(snapshot, HistoryKind.REPLICA_DOWN)
    assert (ended.key, ended.ended_ms, ended.end_unwatched) == (stored.key, NOW_MS + 90_000, True)


def test_without_the_snapshot_the_database_says_what_was_open() -> None:
    snapshot, _ = after(HEALTHY, killed())
    stored = tuple(each for each in snapshot.history if each.ended_ms is None)
    again, memory = after(replace(killed(), now_ms=NOW_MS + 2000), replace(killed(), now_ms=NOW_MS + 3000))
    assert only(again, HistoryKind.REPLICA_DOWN).key != stored[0].key
    again, _ = after(replace(killed(), now_ms=NOW_MS + 4000, kept=Kept(open=stored)), memory=memory)
    assert {each.key for each in again.history} == {each.key for each in snapshot.history}


def test_a_clock_that_goes_back_makes_no_negative_times_and_no_second_entry() -> None:
    snapshot, memory = after(HEALTHY, killed())
    before = {each.key for each in snapshot.history}
    snapshot, memory = after(replace(killed(), now_ms=NOW_MS - 3_600_000), memory=memory)
    assert {each.key for each in snapshot.history} == before
    snapshot, _ = after(back(NOW_MS - 3_599_000), memory=memory)
    assert {each.key for each in snapshot.history} == before
    assert all(each.ended_ms is not None and each.ended_ms >= each.started_ms for each in snapshot.history)


def test_a_process_that_was_back_before_anybody_missed_it_is_told_once() -> None:
    web = process("web")
    again = replace(web, restarts=1, last_exit=KILLED, since=timestamp(NOW_MS + 1300))
    snapshot, memory = after(look(supervisor=supervisor(web)), look(NOW_MS + 2000, supervisor=supervisor(again)))
    fault = only(snapshot, HistoryKind.PROCESS_DOWN)
    assert (fault.text, fault.cause) == ("the process web was down", "its process was killed by SIGKILL")
    assert fault.duration_ms == 400
    repeated, _ = after(look(NOW_MS + 3000, supervisor=supervisor(again)), memory=memory)
    assert repeated.history == snapshot.history


def test_a_controller_whose_process_was_back_at_once_is_told_as_controller() -> None:
    first = process("controller-n1", address=CONTROLLERS[1])
    again = replace(first, restarts=1, last_exit=KILLED, since=timestamp(NOW_MS + 1300))
    snapshot, _ = after(
        look(supervisor=supervisor(first)), look(NOW_MS + 2000, supervisor=supervisor(again)), look(NOW_MS + 3000)
    )
    fault = only(snapshot, HistoryKind.CONTROLLER_DOWN)
    assert (fault.text, fault.duration_ms) == ("controller n1 did not answer", 400)
    assert len(snapshot.history) == 1


def test_a_replica_whose_process_was_back_at_once_is_told_as_replica() -> None:
    first, *others = RUNNING
    again = replace(first, restarts=1, last_exit=KILLED, since=timestamp(NOW_MS + 1300))
    snapshot, _ = after(HEALTHY, look(NOW_MS + 2000, supervisor=supervisor(again, *others)))
    assert only(snapshot, HistoryKind.REPLICA_DOWN).text == "broker-a: replica 1 (broker-a-2) did not answer"


def test_while_the_appliance_starts_or_stops_nothing_is_a_fault() -> None:
    stopping = Supervisor(pid=16, state="stopping", processes=(replace(RUNNING[0], state="stopped", pid=None),))
    _, memory = after(HEALTHY)
    gone = (look(NOW_MS + ms, views={}, states={}, supervisor=stopping) for ms in (1000, 4000, 8000))
    snapshot, _ = after(*gone, memory=memory)
    assert snapshot.history == ()


def test_controllers_are_faults_when_their_silence_lasts_and_their_elections_have_a_cause() -> None:
    quiet = dict.fromkeys(CONTROLLERS[1:], view(leader=-1))
    led = dict.fromkeys(CONTROLLERS[1:], view(leader=1, term=5))
    snapshot, memory = after(HEALTHY, look(NOW_MS + 1000, views=quiet))
    assert snapshot.history == (), "a moment's silence is none"
    snapshot, memory = after(look(NOW_MS + 3000, views=quiet), look(NOW_MS + 4500, views=led), memory=memory)
    assert kinds(snapshot) == ["controller-down", "leader", "leaderless"]
    leaderless = only(snapshot, HistoryKind.LEADERLESS)
    assert (leaderless.started_ms, leaderless.duration_ms) == (NOW_MS + 1000, 3500)
    anew = only(snapshot, HistoryKind.LEADER)
    assert anew.text == "controller n1 leads in term 5"
    assert (anew.previous, anew.cause) == ("controller n0", "controller n0: it does not answer")
    snapshot, _ = after(look(NOW_MS + 6000, view=view(leader=1, term=5)), memory=memory)
    assert all(each.ended_ms is not None for each in snapshot.history)


def test_the_same_leader_that_is_heard_again_was_not_elected() -> None:
    snapshot, _ = after(HEALTHY, look(NOW_MS + 1000, views={}), look(NOW_MS + 2000))
    assert snapshot.history == ()


def test_who_vanishes_from_a_group_with_fixed_roles_is_missing_until_it_is_back_or_forgotten() -> None:
    def fixed(*ids: int) -> dict[str, Any]:
        replicas = tuple(replica(each, "master" if each == 0 else "replica", in_sync=None) for each in ids)
        told = view(
            kind=GroupKind.FIXED, master_broker_id=0 if 0 in ids else None, sync_state_set=(), replicas=replicas
        )
        return {"view": told, "states": {each: state(each, "master" if each == 0 else "replica") for each in ids}}

    snapshot, memory = after(look(**fixed(0, 1)), look(NOW_MS + 1000, **fixed(0)), look(NOW_MS + 2000, **fixed(0)))
    down = only(snapshot, HistoryKind.REPLICA_DOWN)
    assert (down.subject, down.cause, down.ended_ms) == ("replica 1", "it is not registered any more", None)
    returned, _ = after(look(NOW_MS + 3000, **fixed(0, 1)), memory=memory)
    assert only(returned, HistoryKind.REPLICA_DOWN).duration_ms == 2000
    forgotten, _ = after(look(NOW_MS + 2 * 86_400_000, **fixed(0)), memory=memory)
    assert only(forgotten, HistoryKind.REPLICA_DOWN).cause.endswith("it was taken out of the cluster")


def test_replicas_that_join_a_new_group_are_no_fault() -> None:
    young = led_by(1, 1, elected(1, 1, None, Cause.FIRST_MASTER, NOW_MS), dead=[])
    joining = replace(young.groups[0], sync_state_set=(1,), replicas=(replica(1, "master"), replica(2, in_sync=False)))
    emptied = replace(young, groups=())
    snapshot, _ = after(
        look(view=emptied, states={}),
        look(NOW_MS + 1000, view=replace(young, groups=(joining,)), states=served_by(1)),
        look(NOW_MS + 2000, view=young, states=served_by(1)),
    )
    assert kinds(snapshot) == ["election"]
    assert snapshot.verdict.recent == ()


def test_a_hundred_topics_push_nothing_else_out() -> None:
    _, memory = after(HEALTHY, killed())
    many = tuple(topic(f"{number:02}-{LONG}", 1) for number in range(100))
    snapshot, _ = after(
        look(NOW_MS + 3000, view=led_by(2, 4), states=served_by(2, topics=many), supervisor=supervisor(*RUNNING)),
        memory=memory,
    )
    assert {"election", "replica-down"} <= set(kinds(snapshot))
    assert {"topic", "election", "sync_set"} <= {each.kind for each in snapshot.timeline}
    assert sum(each.kind == "topic" for each in snapshot.timeline) == 50


def test_faults_and_elections_have_bounds_of_their_own() -> None:
    memory = after(HEALTHY)[1]
    for number in range(60):
        epoch, at_ms = 4 + number, NOW_MS + number * 5000
        first, second = (1, 2) if number % 2 else (2, 1)
        told = elected(epoch, first, second, Cause.CLOSED, at_ms)
        snapshot, memory = after(
            look(at_ms + 1000, view=led_by(first, epoch, told, dead=[second]), states=served_by(first, dead=[second])),
            look(at_ms + 3000, view=led_by(first, epoch, told), states=served_by(first)),
            memory=memory,
        )
    assert sum(each.kind.is_election for each in snapshot.history) == ELECTIONS_KEPT
    assert sum(not each.kind.is_election for each in snapshot.history) == FAULTS_KEPT
    assert len(snapshot.verdict.recent) <= 4


def test_what_cuts_a_broker_off_is_told_when_it_lasts() -> None:
    cut = {2: state(2, stale_view="a controller tells of master epoch 3, but this broker has seen 9")}
    states = {**served_by(1), **cut}
    snapshot, memory = after(HEALTHY, look(NOW_MS + 1000, states=states))
    assert snapshot.groups[0].replicas[1].stale_view == cut[2].stale_view
    assert snapshot.verdict.reasons == ()
    snapshot, memory = after(look(NOW_MS + 6000, states=states), memory=memory)
    (reason,) = snapshot.verdict.reasons
    assert reason.code == "broker-cut-off"
    assert reason.text.startswith("broker-a: replica 2 cannot learn its role: a controller tells of master epoch 3")
    cut[2] = state(2, controllers_error="no controller says who leads: connection refused")
    snapshot, memory = after(look(NOW_MS + 7000, states={**served_by(1), **cut}), memory=memory)
    assert snapshot.verdict.reasons[0].text.endswith("no controller says who leads: connection refused")
    assert after(look(NOW_MS + 8000), memory=memory)[0].verdict.reasons == ()


def test_a_history_that_cannot_be_written_is_a_reason_and_nothing_else_suffers() -> None:
    snapshot, _ = after(HEALTHY, replace(killed(), kept=Kept(problem="database is locked")))
    assert "history-not-written" in {each.code for each in snapshot.verdict.reasons}
    assert kinds(snapshot) == ["election", "out-of-sync", "replica-down"]


def test_sentences_name_the_process_that_is_to_be_started_again() -> None:
    snapshot, _ = after(HEALTHY, killed())
    texts = [each.text for each in snapshot.verdict.reasons]
    assert "broker-a: replica 1 (broker-a-2) does not answer its controllers." in texts
    events = [each.text for each in snapshot.timeline]
    assert "broker-a: replica 1 (broker-a-2) left the sync-state set, now 2, 3" in events
    assert "broker-a: replica 2 (broker-a-1) is the master in epoch 4" in events


def restarted_controllers(now_ms: int, *, answering: Sequence[int] = (1, 2, 3)) -> Look:
    """The controllers started anew, and no broker has found them yet."""
    replicas = tuple(
        replica(each, "master" if each == 1 else "replica", alive=False, absence=Cause.NEVER_HEARD, max_offset=None)
        for each in (1, 2, 3)
    )
    states = {each: state(each, "master" if each == 1 else "replica") for each in answering}
    return look(now_ms, view=view(term=5, replicas=replicas), states=states, supervisor=supervisor(*RUNNING))


def test_controllers_that_started_a_moment_ago_have_not_heard_brokers_and_that_is_no_fault() -> None:
    snapshot, memory = after(HEALTHY, restarted_controllers(NOW_MS + 1000), restarted_controllers(NOW_MS + 3000))
    assert "replica-down" not in kinds(snapshot)
    snapshot, _ = after(look(NOW_MS + 4000, supervisor=supervisor(*RUNNING)), memory=memory)
    assert "replica-down" not in kinds(snapshot)
    snapshot, _ = after(restarted_controllers(NOW_MS + 6500), memory=memory)
    assert {each.started_ms for each in snapshot.history if each.kind is HistoryKind.REPLICA_DOWN} == {NOW_MS + 1000}


def test_a_broker_that_freezes_after_its_restart_is_another_fault_with_another_cause() -> None:
    _, memory = after(HEALTHY, killed(), back(NOW_MS + 5000))
    told = elected(5, 3, 2, Cause.SILENT, NOW_MS + 11_000, unheard_ms=1200)
    exited = LastExit(code=-9, text="was killed by SIGKILL", at=timestamp(NOW_MS + 5100))
    first, second, third = RUNNING
    processes = supervisor(
        replace(first, restarts=1, last_exit=KILLED), replace(second, restarts=1, last_exit=exited), third
    )
    silent = led_by(3, 5, told, dead=[1, 2])
    silent = replace(
        silent,
        groups=(
            replace(
                silent.groups[0],
                replicas=tuple(
                    replace(each, absence=Cause.SILENT if each.alive is False else None)
                    for each in silent.groups[0].replicas
                ),
            ),
        ),
    )
    snapshot, _ = after(
        look(NOW_MS + 12_000, view=silent, states=served_by(3, dead=[1, 2]), supervisor=processes), memory=memory
    )
    down = [each for each in snapshot.history if each.kind is HistoryKind.REPLICA_DOWN and each.ended_ms is None]
    assert {(each.subject, each.cause, each.started_ms) for each in down} == {
        ("replica 1 (broker-a-2)", "its heartbeats stopped", NOW_MS + 12_000),
        ("replica 2 (broker-a-1)", "its heartbeats stopped", NOW_MS + 12_000),
    }
    election = next(each for each in snapshot.history if each.epoch == 5)
    assert election.cause == "replica 2 (broker-a-1): its heartbeats stopped"


def test_a_second_fault_does_not_begin_before_the_first_was_over() -> None:
    """Its process ended once; it was heard, and then its new connection closed, too."""
    gone = replace(killed(), now_ms=NOW_MS + 9000)
    running = supervisor(replace(RUNNING[0], restarts=1, last_exit=KILLED), *RUNNING[1:])
    snapshot, _ = after(HEALTHY, killed(), back(NOW_MS + 5000), replace(gone, supervisor=running))
    down = [each for each in snapshot.history if each.kind is HistoryKind.REPLICA_DOWN]
    assert [(each.started_ms, each.ended_ms) for each in down] == [
        (NOW_MS + 9000, None),
        (NOW_MS + 900, NOW_MS + 5000),
    ]


def test_what_is_known_of_a_process_outlives_the_controllers_word_for_it() -> None:
    def nobody(now_ms: int, process_state: str) -> Look:
        first, *others = RUNNING
        gone = replace(first, state=process_state, last_exit=KILLED)
        return look(
            now_ms,
            view=led_by(None, 4, elected(4, None, 1, Cause.CLOSED, NOW_MS + 950), dead=[1, 2, 3]),
            states={},
            supervisor=supervisor(gone, *others),
        )

    snapshot, _ = after(
        HEALTHY,
        nobody(NOW_MS + 1000, "backing-off"),
        nobody(NOW_MS + 3000, "running"),
        nobody(NOW_MS + 40_000, "running"),
    )
    assert only(snapshot, HistoryKind.NO_MASTER).cause == "replica 1 (broker-a-2): its process was killed by SIGKILL"


def test_processes_that_end_because_the_appliance_stops_did_not_fail() -> None:
    ended = replace(RUNNING[0], state="stopped", pid=None, last_exit=replace(KILLED, code=0, text="exited with 0"))
    stopping = Supervisor(pid=16, state="stopping", processes=(ended, *RUNNING[1:]))
    snapshot, _ = after(HEALTHY, look(NOW_MS + 1000, supervisor=stopping))
    assert snapshot.history == ()


def test_an_old_loss_of_the_master_is_not_the_cause_of_a_new_election() -> None:
    told = (
        elected(4, None, 1, Cause.SILENT, NOW_MS - 7_000_000),
        elected(9, 2, None, Cause.CANDIDATE_CAME, NOW_MS + 950),
    )
    snapshot, _ = after(HEALTHY, look(NOW_MS + 1000, view=led_by(2, 9, *told), states=served_by(2)))
    election = only(snapshot, HistoryKind.ELECTION)
    assert (election.previous, election.cause) == ("", "it had none, and a replica that may lead came")


def test_an_election_that_nobody_tells_of_began_when_the_master_was_missed() -> None:
    first, *others = RUNNING
    gone = supervisor(replace(first, state="backing-off", pid=None, last_exit=KILLED), *others)
    unled = look(NOW_MS + 1500, view=led_by(1, 3, dead=[1]), states=served_by(2, dead=[1, 2]), supervisor=gone)
    elected_by_nobody = look(NOW_MS + 4000, view=led_by(2, 4, dead=[1]), states=served_by(2, dead=[1]), supervisor=gone)
    snapshot, _ = after(HEALTHY, unled, elected_by_nobody)
    assert only(snapshot, HistoryKind.ELECTION).duration_ms == 3100
    unknown = tuple(replace(each, supervisor=supervisor(*RUNNING)) for each in (unled, elected_by_nobody))
    snapshot, _ = after(HEALTHY, *unknown)
    assert only(snapshot, HistoryKind.ELECTION).duration_ms == 2500


def test_a_leader_that_came_late_led_since_the_time_without_one_began() -> None:
    quiet = dict.fromkeys(CONTROLLERS[1:], view(leader=-1))
    led = dict.fromkeys(CONTROLLERS[1:], view(leader=1, term=5))
    snapshot, _ = after(
        HEALTHY,
        look(NOW_MS + 1000, views=quiet),
        look(NOW_MS + 3500, views=quiet),
        look(NOW_MS + 4500, views=led),
    )
    assert only(snapshot, HistoryKind.LEADER).duration_ms == 3500


def test_an_election_that_served_while_the_collector_was_away_lasted_at_most_so_long() -> None:
    told = elected(4, 2, 1, Cause.CLOSED, NOW_MS + 950)
    snapshot, _ = after(HEALTHY, look(NOW_MS + 7950, view=led_by(2, 4, told), states=served_by(2)))
    (told_of,) = snapshot.verdict.recent
    assert told_of.text.startswith("broker-a lost its master for at most 7.0 s")
    assert only(snapshot, HistoryKind.ELECTION).end_unwatched


def test_replicas_that_join_the_set_of_a_new_master_are_a_part_of_its_election() -> None:
    told = elected(4, 2, 1, Cause.CLOSED, NOW_MS + 950)
    alone = replace(led_by(2, 4, told, dead=[1]).groups[0], sync_state_set=(2,))
    alone = replace(alone, replicas=(*alone.replicas[:2], replica(3, in_sync=False)))
    begun = replace(killed(), views=dict.fromkeys(CONTROLLERS, replace(view(), groups=(alone,))))
    snapshot, _ = after(HEALTHY, begun, replace(killed(), now_ms=NOW_MS + 1500))
    assert [each.subject for each in snapshot.history if each.kind is HistoryKind.OUT_OF_SYNC and each.ended_ms] == [
        "replica 3 (broker-a-3)"
    ]
    assert [each.text.partition(" for ")[0] for each in snapshot.verdict.recent] == ["broker-a lost its master"]


def test_controllers_that_answer_again_do_not_explain_why_nobody_led() -> None:
    quiet = dict.fromkeys(CONTROLLERS, view(leader=-1))
    looks = (look(NOW_MS + ms, views={}) for ms in (1000, 2000, 3500))
    snapshot, _ = after(HEALTHY, *looks, look(NOW_MS + 4500, views=quiet), look(NOW_MS + 5500))
    assert only(snapshot, HistoryKind.LEADERLESS).cause == "none answered"


@patient
@given(
    looks=st.lists(
        st.tuples(
            st.integers(-5000, 20_000),
            st.one_of(st.none(), st.integers(1, 3)),
            st.integers(0, 2),
            st.sets(st.integers(1, 3)),
            st.sampled_from(["all", "none", "leaderless"]),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_whatever_is_seen_no_fault_is_open_twice_and_none_ends_before_it_began(looks: list[Any]) -> None:
    memory, now_ms, epoch = Memory(), NOW_MS, 3
    seen: dict[str, HistoryEntry] = {}
    for step_ms, master, more, dead, heard in looks:
        now_ms, epoch = now_ms + step_ms, epoch + more
        told = led_by(master, epoch, dead=sorted(dead))
        if heard == "leaderless":
            told = replace(
                told, controllers=tuple(replace(each, role=ControllerRole.FOLLOWER) for each in told.controllers)
            )
        views = {} if heard == "none" else dict.fromkeys(CONTROLLERS, told)
        states = {
            each: state(each, "master" if each == master else "replica") for each in (1, 2, 3) if each not in dead
        }
        snapshot, memory = build(look(now_ms, views=views, states=states), memory)
        is_open = [each.whose for each in snapshot.history if each.ended_ms is None and not each.kind.is_election]
        assert len(is_open) == len(set(is_open))
        for each in snapshot.history:
            assert each.ended_ms is None or each.ended_ms >= each.started_ms
            known = seen.get(each.key)
            assert known is None or known.ended_ms is None or known == each, "what is over changed"
            seen[each.key] = each
        if snapshot.verdict.recent:
            assert all(each.text for each in snapshot.verdict.recent)
