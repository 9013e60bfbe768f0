from __future__ import annotations

import itertools
import json
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.facts.broker_state import (
    BrokerState,
    ConsumedQueueState,
    GroupState,
    LevelState,
    MemberState,
    MissingState,
    QuorumState,
    ScheduleState,
    Totals,
    TransactionState,
    WaitingMessageGroup,
)
from remoting.facts.cluster_view import ControllerView
from remoting.facts.codec import decode, encode
from remoting.facts.snapshot import (
    ClusterSnapshot,
    DelayLevel,
    Delays,
    Group,
    KeyIndex,
    MissingCopy,
    Transactions,
    Verdict,
)
from remoting.facts.words import ControllerRole, GroupKind, Health
from tasks.snapshot.build import build, differs, recall
from tasks.snapshot.inputs import Memory
from tasks.snapshot.moments import timestamp
from tests.unit.tasks.patience import patient
from tests.unit.tasks.snapshot.cluster import (
    CONTROLLERS,
    NOW_MS,
    billing,
    followed_by,
    look,
    process,
    replica,
    state,
    supervisor,
    topic,
    view,
)


def test_a_healthy_cluster_is_called_healthy_without_reasons() -> None:
    snapshot, _ = build(look(), Memory())
    assert snapshot.verdict == Verdict(status=Health.HEALTHY)
    assert (snapshot.version, snapshot.seq, snapshot.as_of) == (1, 1, "2026-09-21T14:13:20.000Z")
    assert [each.role for each in snapshot.controllers] == ["leader", "follower", "follower"]
    (group,) = snapshot.groups
    assert (group.master_id, group.sync_state_set) == (1, (1, 2, 3))
    assert [each.gap_bytes for each in group.replicas] == [0, 0, 0]


def test_a_process_on_a_copied_directory_is_in_the_verdict() -> None:
    told = view(replicas=(replica(1, "master"), replica(2, claimed_by="10.0.0.9:10911"), replica(3)))
    snapshot, _ = build(look(views=dict.fromkeys(CONTROLLERS, told)), Memory())
    (reason,) = snapshot.verdict.reasons
    assert (reason.code, snapshot.verdict.status) == ("identity-copied", Health.DEGRADED)
    assert reason.text == (
        "broker-a: two processes have the identity of replica 2: one at 127.0.0.1:10921, and one at 10.0.0.9:10911, "
        "which is refused. Stop the one that runs on a copy of the data directory."
    )


def test_controllers_that_joined_are_shown_by_the_leader_s_word_and_those_that_left_are_not() -> None:
    told = view()
    joined = ControllerView(
        id="n3",
        address="127.0.0.1:9879",
        role=ControllerRole.FOLLOWER,
        member="learner",
        alive=True,
        term=4,
        commit_index=70,
    )
    absent = ControllerView(id="n4", address="127.0.0.1:9880", role=ControllerRole.UNKNOWN, member="voter", alive=False)
    first, second, _ = told.controllers
    told = replace(told, controllers=(replace(first, member="voter"), second, joined, absent))
    snapshot, _ = build(look(view=told, views={address: told for address in CONTROLLERS[:2]}), Memory())
    assert [(each.id, each.member, each.role) for each in snapshot.controllers] == [
        ("n0", "voter", "leader"),
        ("n1", "unknown", "follower"),
        ("n3", "learner", "follower"),
        ("n4", "voter", "unreachable"),
    ]
    assert [each.commit_index for each in snapshot.controllers] == [80, 80, 70, None]


def test_every_part_of_the_schema_is_there_even_when_nobody_answers() -> None:
    snapshot, _ = build(look(views={}, states={}, supervisor=None), Memory())
    assert set(json.loads(encode(snapshot))) == {
        *("version", "seq", "as_of", "verdict", "controllers", "groups", "rates", "topics", "consumer_groups"),
        *("client_times", "timeline", "history", "processes", "spark"),
    }
    assert snapshot.verdict.status == "down"
    assert [each.role for each in snapshot.controllers] == ["unreachable"] * 3
    assert [each.term for each in snapshot.controllers] == [None] * 3
    assert snapshot.rates.in_messages_per_s is None


def test_numbers_are_unknown_when_the_broker_does_not_tell_and_the_controller_does_not_know() -> None:
    silent = replica(2, max_offset=None, confirm_offset=-1, epoch=None, last_heartbeat_ms=None, alive=False)
    snapshot, _ = build(
        look(
            view=view(
                replicas=(
                    replica(1, "master"),
                    silent,
                    replica(3),
                )
            ),
            states={1: state(1, "master", channel=followed_by({3: 0})), 3: state(3)},
        ),
        Memory(),
    )
    found = snapshot.groups[0].replicas[1]
    assert found.role == "unreachable"
    for name in ("max_offset", "flushed_offset", "confirm_offset", "gap_bytes", "epoch", "last_heartbeat_ms"):
        assert getattr(found, name) is None, name


def test_a_replica_is_shown_with_its_process_by_their_address() -> None:
    """Replicas number themselves in the order of registering, processes in the order of the plan."""
    running = supervisor(
        process("broker-a-1", address="127.0.0.1:10921"),
        replace(process("broker-a-2", "backing-off", address="127.0.0.1:10911"), pid=None),
        process("web"),
    )
    for states in ({1: state(1, "master")}, {}):
        snapshot, _ = build(look(states=states, supervisor=running), Memory())
        shown = [(each.id, each.process, each.pid) for each in snapshot.groups[0].replicas]
        assert shown == [(1, "broker-a-2", None), (2, "broker-a-1", 17), (3, None, None)]


def test_a_broker_at_a_known_address_that_is_another_replica_is_not_believed() -> None:
    snapshot, _ = build(look(states={1: state(1, "master"), 2: state(9), 3: state(3)}), Memory())
    assert snapshot.groups[0].replicas[1].flushed_offset is None


def test_without_controllers_brokers_still_speak_and_the_verdict_says_what_it_means() -> None:
    _, memory = build(look(), Memory())
    snapshot, _ = build(look(NOW_MS + 1000, views={}), memory)
    assert snapshot.verdict.status == "degraded"
    assert [each.code for each in snapshot.verdict.reasons] == ["controllers-unreachable"]
    assert [each.role for each in snapshot.groups[0].replicas] == ["master", "replica", "replica"]
    assert snapshot.groups[0].replicas[0].eligible is False
    assert snapshot.topics[0].message_count == 11


def test_a_group_without_master_is_down_and_says_so_first() -> None:
    dead = [replica(1, alive=False, in_sync=False), replica(2), replica(3)]
    bent = view(
        master_broker_id=None,
        sync_state_set=(
            2,
            3,
        ),
        replicas=dead,
    )
    snapshot, _ = build(look(view=bent, states={2: state(2), 3: state(3)}), Memory())
    assert snapshot.verdict.status == "down"
    assert snapshot.verdict.reasons[0].code == "no-master"
    assert [each.code for each in snapshot.verdict.reasons[1:]] == ["replica-dead"]


def test_an_elected_master_that_does_not_serve_yet_is_said() -> None:
    states = {1: state(1, "fenced"), 2: state(2), 3: state(3)}
    snapshot, _ = build(look(states=states), Memory())
    assert [each.code for each in snapshot.verdict.reasons] == ["master-not-serving"]
    assert snapshot.verdict.status == "down"


def test_two_groups_one_without_master_is_degraded() -> None:
    bent = view()
    other = replace(bent.groups[0], broker_name="broker-b", master_broker_id=None)
    bent = replace(bent, groups=(*bent.groups, other))
    snapshot, _ = build(look(view=bent), Memory())
    assert snapshot.verdict.status == "degraded"


def quorum(copies: int, *missing: MissingState, **changes: Any) -> dict[str, Any]:
    told = {"kind": "controllers", "wanted_copies": 3, "min_copies": 1, "downgraded": copies < 3}
    return {"quorum": QuorumState(**{**told, "copies": copies, "missing": missing, **changes})}


def gone(broker_id: int, *, stalls: bool = False) -> MissingState:
    return MissingState(broker_id=broker_id, reason="it is not connected", stalls=stalls, since_ms=NOW_MS)


def test_a_downgrade_is_told_with_who_why_and_since_when() -> None:
    missing = quorum(2, gone(3))
    answer = view(
        sync_state_set=(
            1,
            2,
        ),
        replicas=(
            replica(1, "master"),
            replica(2),
            replica(3, in_sync=False),
        ),
    )
    states = {1: state(1, "master", **missing), 2: state(2), 3: state(3)}
    snapshot, _ = build(look(view=answer, states=states), Memory())
    found = snapshot.groups[0].quorum
    assert (found.copies, found.wanted_copies, found.downgraded, found.refused) == (2, 3, True, False)
    assert found.missing == (MissingCopy(broker_id=3, reason="it is not connected", since_ms=NOW_MS),)
    (reason,) = snapshot.verdict.reasons
    assert reason.code == "downgraded"
    assert reason.text == (
        "broker-a: an acknowledgement means 2 copies instead of 3. Replica 3: it is not connected, since 14:13:20 UTC."
    )
    healthy, _ = build(look(states={1: state(1, "master", **quorum(3)), 2: state(2), 3: state(3)}), Memory())
    assert healthy.verdict == Verdict(status=Health.HEALTHY)


def test_the_timeline_tells_when_a_downgrade_began_and_ended() -> None:
    memory = Memory()
    for told in (
        quorum(3),
        quorum(2, gone(3)),
        {"quorum": None},
        quorum(1, gone(2), gone(3), refused=True, min_copies=2),
    ):
        _, memory = build(look(states={1: state(1, "master", **told), 2: state(2), 3: state(3)}), memory)
    snapshot, _ = build(look(states={1: state(1, "master", **quorum(3)), 2: state(2), 3: state(3)}), memory)
    assert [event.text for event in snapshot.timeline][:4] == [
        "broker-a: an acknowledgement means 3 copies again",
        "broker-a takes messages again",
        "broker-a: an acknowledgement means 2 instead of 3 copies",
    ]


def test_refused_messages_and_waiting_sends_are_critical() -> None:
    for told, code, words in (
        (
            quorum(1, gone(2), gone(3), refused=True, min_copies=2),
            "too-few-replicas",
            "1 copy in sync, and 2 are required",
        ),
        (quorum(3, gone(3, stalls=True)), "sends-stall", "sends wait for replica 3"),
    ):
        states = {1: state(1, "master", **told), 2: state(2), 3: state(3)}
        reason = build(look(states=states), Memory())[0].verdict.reasons[0]
        assert (reason.code, reason.severity) == (code, "critical")
        assert words in reason.text


def test_a_group_with_fixed_roles_is_shown_with_its_masters_own_set() -> None:
    replicas = [replica(0, "master", in_sync=None), replica(1, in_sync=None), replica(2, in_sync=None)]
    answer = view(
        kind=GroupKind.FIXED, master_broker_id=0, sync_state_set=(), sync_state_set_epoch=None, replicas=replicas
    )
    told = quorum(2, gone(2), kind="fixed")
    states = {
        0: state(
            0,
            "master",
            sync_state_set=(
                0,
                1,
            ),
            **told,
        ),
        1: state(1),
        2: state(2),
    }
    snapshot, memory = build(look(view=answer, states=states), Memory())
    (group,) = snapshot.groups
    assert (group.kind, group.master_id, group.sync_state_set) == ("fixed", 0, (0, 1))
    assert [each.in_sync for each in group.replicas] == [True, True, False]
    assert [each.code for each in snapshot.verdict.reasons] == ["downgraded"]
    answer = view(kind=GroupKind.FIXED, master_broker_id=None, sync_state_set=(), replicas=replicas[1:])
    snapshot, memory = build(look(view=answer, states={1: state(1), 2: state(2)}), memory)
    assert "until it is back" in snapshot.verdict.reasons[0].text
    assert build(look(views={}, states={1: state(1), 2: state(2)}), memory)[0].groups[0].kind == "fixed"


def test_a_learner_outside_the_set_is_no_trouble_and_weak_settings_are() -> None:
    answer = view(
        sync_state_set=(
            1,
            2,
        ),
        replicas=(
            replica(1, "master"),
            replica(2),
            replica(3, in_sync=False),
        ),
    )
    states = {
        1: state(1, "master", **quorum(2, wanted_copies=2, downgraded=False)),
        2: state(2),
        3: state(3, learner=True),
    }
    snapshot, _ = build(look(view=answer, states=states), Memory())
    assert [each.learner for each in snapshot.groups[0].replicas] == [None, None, True]
    assert snapshot.verdict.reasons == ()
    states[2] = state(2, weaknesses=["ack_after=append: memory"])
    snapshot, _ = build(look(view=answer, states=states), Memory())
    assert snapshot.groups[0].weaknesses == ("ack_after=append: memory",)
    (reason,) = snapshot.verdict.reasons
    assert (reason.code, reason.text) == ("weak-settings", "broker-a: ack_after=append: memory.")


def test_one_silent_controller_is_a_warning_that_counts_what_may_still_fail() -> None:
    views = dict.fromkeys(CONTROLLERS[:2], view())
    snapshot, _ = build(look(views=views), Memory())
    (reason,) = snapshot.verdict.reasons
    assert reason.text == "Controller n2 does not answer. No further one may fail."
    assert snapshot.verdict.status == "degraded"


def test_a_troubled_process_and_a_broker_error_are_reasons() -> None:
    states = {1: state(1, "master", last_error="the disk is full"), 2: state(2), 3: state(3)}
    troubled = supervisor(process("web", "backing-off", 2))
    snapshot, _ = build(look(states=states, supervisor=troubled), Memory())
    texts = [each.text for each in snapshot.verdict.reasons]
    assert texts == [
        "broker-a: replica 1 reports: the disk is full",
        "The process web keeps ending and is started again.",
    ]


def test_the_leaders_view_wins_over_a_followers_old_one() -> None:
    old = view(leader=1, term=3, master_broker_id=2)
    views = {CONTROLLERS[2]: old, CONTROLLERS[0]: view()}
    snapshot, _ = build(look(views=views), Memory())
    assert snapshot.groups[0].master_id == 1


def totals(*counts: int) -> Totals:
    return Totals(in_messages=counts[0], in_bytes=counts[1], out_messages=counts[2], out_bytes=counts[3])


def test_rates_come_from_counters_and_are_unknown_at_first_and_after_a_restart() -> None:
    snapshot, memory = build(look(), Memory())
    assert snapshot.rates.in_messages_per_s is None
    later = {1: state(1, "master", counters=totals(510, 51_000, 5, 500))}
    snapshot, memory = build(look(NOW_MS + 2000, states=later), memory)
    assert snapshot.rates.in_messages_per_s == 250.0
    assert snapshot.rates.in_bytes_per_s == 25_000.0
    assert snapshot.rates.out_messages_per_s == 0.0
    again = {1: state(1, "master", counters=totals(3, 300, 0, 0))}
    snapshot, _ = build(look(NOW_MS + 4000, states=again), memory)
    assert snapshot.rates.in_messages_per_s is None


def test_history_has_a_point_a_second_and_two_minutes_at_most() -> None:
    memory = Memory()
    for tick in range(0, 130_000, 500):
        snapshot, memory = build(look(NOW_MS + tick), memory)
    history = snapshot.rates.history
    assert len(history) == 120
    assert {later[0] - earlier[0] for earlier, later in itertools.pairwise(history)} == {1000}


def test_topic_rate_and_count_come_from_queue_offsets() -> None:
    _, memory = build(look(), Memory())
    snapshot, _ = build(look(NOW_MS + 1000, states={1: state(1, "master", topics=(topic("orders", 104, 57),))}), memory)
    (orders,) = snapshot.topics
    assert (orders.message_count, orders.in_per_s) == (161, 150.0)
    assert orders.queues[0].last_store_ms == NOW_MS - 5


def test_topics_keep_their_place_with_unknown_offsets_while_nobody_of_their_group_answers() -> None:
    _, memory = build(look(), Memory())
    snapshot, memory = build(look(NOW_MS + 1000, states={}), memory)
    (orders,) = snapshot.topics
    assert (orders.message_count, orders.in_per_s) == (None, None)
    assert [queue.max_offset for queue in orders.queues] == [None, None]
    assert snapshot.timeline == ()
    snapshot, _ = build(look(NOW_MS + 2000), memory)
    assert snapshot.topics[0].message_count == 11


def test_while_the_master_is_away_a_replica_speaks_for_the_queues() -> None:
    snapshot, _ = build(
        look(states={2: state(2, end_offset=10), 3: state(3, topics=(topic("orders", 4, 6),))}), Memory()
    )
    assert snapshot.topics[0].message_count == 10


def test_lag_is_unknown_without_a_committed_offset_unless_there_is_nothing_to_consume() -> None:
    queues = [
        ConsumedQueueState(queue_id=0, consumer_offset=1, in_flight=2),
        ConsumedQueueState(queue_id=1, consumer_offset=-1),
        ConsumedQueueState(queue_id=2, consumer_offset=None, in_flight=0),
    ]
    master = state(
        1,
        "master",
        topics=(topic("orders", 4, 7, 0),),
        groups=(billing(*queues, fifo=True, members=()),),
    )
    snapshot, _ = build(look(states={1: master}), Memory())
    (group,) = snapshot.consumer_groups
    assert [queue.lag for queue in group.topics[0].queues] == [3, None, 0]
    assert (group.lag, group.in_flight, group.fifo) == (3, 2, True)


def test_the_protocols_own_groups_are_shown_only_when_somebody_uses_them() -> None:
    tools = GroupState(name="TOOLS_CONSUMER", system=True)
    used = GroupState(name="CID_RMQ_SYS_X", system=True, members=(MemberState(client_id="c9"),))
    snapshot, _ = build(
        look(
            states={
                1: state(
                    1,
                    "master",
                    groups=(
                        tools,
                        used,
                    ),
                )
            }
        ),
        Memory(),
    )
    assert [each.name for each in snapshot.consumer_groups] == ["CID_RMQ_SYS_X"]


def test_members_of_all_brokers_are_joined() -> None:
    other = (MemberState(client_id="c2"), MemberState(client_id="c1", address="x", language="GO"))
    second = state(2, groups=(billing(members=other),))
    snapshot, _ = build(look(states={1: state(1, "master"), 2: second}), Memory())
    assert [each.client_id for each in snapshot.consumer_groups[0].members] == ["c1", "c2"]


@pytest.mark.parametrize(
    ("told", "text"),
    [
        ("479", "5.3.3"),
        ("401", "4.9.4"),
        ("212", "4.0.0-SNAPSHOT"),
        ("611", "5.9.9"),
        ("612", "612"),
        ("59", "59"),
        ("5.0.7", "5.0.7"),
        ("9" * 30, "9" * 30),
        ("", None),
        (None, None),
    ],
)
def test_versions_are_told_as_people_write_them(told: str | None, text: str | None) -> None:
    master = state(1, "master", groups=(billing(members=(MemberState(client_id="c", version=told),)),))
    snapshot, _ = build(look(states={1: master}), Memory())
    assert snapshot.consumer_groups[0].members[0].version == text


def test_resets_that_wait_and_forbidden_topics_are_told() -> None:
    queues = [
        ConsumedQueueState(queue_id=0, consumer_offset=1, in_flight=0, pending_reset=0),
        ConsumedQueueState(queue_id=1, consumer_offset=1, in_flight=0),
    ]
    master = state(1, "master", groups=(billing(*queues, forbidden=("refunds", "orders")),))
    snapshot, _ = build(look(states={1: master}), Memory())
    (group,) = snapshot.consumer_groups
    assert group.forbidden == ("orders", "refunds")
    assert [queue.pending_reset for queue in group.topics[0].queues] == [0, None]


def test_what_is_held_and_which_queues_are_blocked_is_told() -> None:
    waiting = WaitingMessageGroup(message_group="customer", until_ms=8000, waiting=3)
    queues = [
        ConsumedQueueState(queue_id=0, consumer_offset=1, in_flight=2, held_since_ms=5000, blocked_until_ms=9000),
        ConsumedQueueState(
            queue_id=1, consumer_offset=1, in_flight=3, coming_back=2, held_since_ms=4000, waiting_groups=(waiting,)
        ),
        ConsumedQueueState(queue_id=2, consumer_offset=1, in_flight=0),
    ]
    snapshot, _ = build(look(states={1: state(1, "master", groups=(billing(*queues),))}), Memory())
    (group,) = snapshot.consumer_groups
    assert (group.held_since_ms, group.blocked_queues, group.coming_back) == (4000, 1, 2)
    assert [queue.blocked_until_ms for queue in group.topics[0].queues] == [9000, None, None]
    assert group.topics[0].waiting_groups == (waiting,)


# ---- what waits inside


def test_what_waits_is_told_by_the_master() -> None:
    replica = state(
        2, transactions=TransactionState(open=9), schedule=ScheduleState(levels=()), index_lag_bytes=1 << 40
    )
    group = waiting_of(state(1, "master", transactions=TRANSACTIONS, schedule=SCHEDULE, index_lag_bytes=7), replica)
    assert group.transactions == Transactions(
        open=2,
        open_bytes=800,
        max_open=100,
        oldest_since_ms=NOW_MS - 90,
        oldest_age_ms=90,
        oldest_checks=0,
        max_checks=15,
        overdue=False,
        committed=5,
        rolled_back=4,
        given_up=3,
    )
    assert group.delays == Delays(
        waiting=5,
        last_late_ms=3,
        last_ago_ms=70,
        overdue_ms=0,
        late=False,
        delivered=8,
        failures=1,
        lost=0,
        returned=6,
        dead_lettered=2,
        levels=(
            DelayLevel(level=1, delay_ms=1000, waiting=5, late_ms=3),
            DelayLevel(level=2, delay_ms=5000, waiting=0, late_ms=None),
        ),
    )
    assert group.index == KeyIndex(lag_bytes=7)


def test_what_waits_too_long_is_marked() -> None:
    def marks(transactions: Any = None, schedule: Any = None, lag: int = 0) -> tuple[bool, bool, bool]:
        group = waiting_of(
            state(
                1,
                "master",
                transactions=replace(TRANSACTIONS, **(transactions or {})),
                schedule=replace(SCHEDULE, **(schedule or {})),
                index_lag_bytes=lag,
            )
        )
        return group.transactions.overdue, group.delays.late, group.index.behind

    assert marks() == (False, False, False)
    assert marks(transactions={"oldest_checks": 1}) == (True, False, False)
    assert marks(transactions={"oldest_checks": 1, "open": 0}) == (False, False, False)
    assert marks(schedule={"last_late_ms": 5000, "overdue_ms": 5000}) == (False, False, False)
    assert marks(schedule={"last_late_ms": 5001}) == (False, True, False)
    assert marks(schedule={"last_late_ms": 5001, "last_ago_ms": 300_000}) == (False, True, False)
    assert marks(schedule={"last_late_ms": 5001, "last_ago_ms": 300_001}) == (False, False, False)
    assert marks(schedule={"last_late_ms": -1, "overdue_ms": 5001}) == (False, True, False)
    assert marks(lag=1 << 30) == (False, False, True)


def test_what_waits_is_unknown_when_the_master_does_not_tell() -> None:
    group = waiting_of(state(1, "master"))
    assert (group.transactions, group.delays, group.index) == (None, None, None)
    silent, _ = build(look(states={2: state(2, transactions=TRANSACTIONS)}), Memory())
    assert silent.groups[0].transactions is None, "what a replica knows may be old"


TRANSACTIONS = TransactionState(
    open=2,
    open_bytes=800,
    max_open=100,
    oldest_since_ms=NOW_MS - 90,
    oldest_age_ms=90,
    max_checks=15,
    committed=5,
    rolled_back=4,
    given_up=3,
)
SCHEDULE = ScheduleState(
    levels=(
        LevelState(level=1, delay_ms=1000, waiting=5, late_ms=3),
        LevelState(level=2, delay_ms=5000, waiting=0, late_ms=-1),
    ),
    last_late_ms=3,
    last_ago_ms=70,
    delivered=8,
    failures=1,
    returned=6,
    dead_lettered=2,
)


def waiting_of(*states: BrokerState) -> Group:
    return build(look(states={each.broker_id: each for each in states}), Memory())[0].groups[0]


def test_timeline_tells_of_elections_sync_sets_restarts_and_topics_newest_first() -> None:
    _, memory = build(look(), Memory())
    moved = view(
        leader=1,
        term=5,
        master_broker_id=2,
        master_epoch=4,
        sync_state_set=(
            2,
            3,
        ),
        replicas=(
            replica(1, alive=False, in_sync=False),
            replica(2, "master"),
            replica(3),
        ),
    )
    states = {
        2: state(
            2,
            "master",
            topics=(
                topic("orders", 4, 7),
                topic("invoices", 0),
            ),
        ),
        3: state(3),
    }
    restarted = supervisor(process("broker-a-1", restarts=1))
    snapshot, memory = build(look(NOW_MS + 500, view=moved, states=states, supervisor=restarted), memory)
    assert [(each.kind, each.text) for each in snapshot.timeline] == [
        ("topic", "topic invoices was created"),
        ("process", "broker-a-1 ended and was started again (restart 1)"),
        ("sync_set", "broker-a: replica 1 left the sync-state set, now 2, 3"),
        ("election", "broker-a: replica 2 is the master in epoch 4"),
        ("election", "controller n1 leads in term 5"),
    ]
    repeated, _ = build(look(NOW_MS + 1000, view=moved, states=states, supervisor=restarted), memory)
    assert repeated.timeline == snapshot.timeline


def test_a_restarted_collector_goes_on_where_the_stored_snapshot_ends() -> None:
    snapshot, _ = build(look(), Memory())
    snapshot, _ = build(look(NOW_MS + 1000), recall(decode(ClusterSnapshot, encode(snapshot))))
    assert snapshot.seq == 2
    assert len(snapshot.rates.history) == 2
    assert recall(replace(snapshot, version=2)) == Memory()
    assert recall(None) == Memory()


def test_what_a_person_waits_for_is_announced_at_once() -> None:
    first, memory = build(look(), Memory())
    second, _ = build(look(NOW_MS + 500), memory)
    assert differs(first, None)
    assert not differs(second, first)
    third, _ = build(
        look(
            NOW_MS + 500,
            view=view(
                sync_state_set=(
                    1,
                    2,
                )
            ),
        ),
        memory,
    )
    assert differs(third, second)


@patient
@given(
    views=st.sets(st.sampled_from(CONTROLLERS)),
    states=st.sets(st.integers(1, 3)),
    master=st.one_of(st.none(), st.integers(1, 3)),
    roles=st.tuples(*[st.sampled_from(["master", "replica", "fenced", None])] * 3),
)
def test_any_mixture_of_answers_gives_a_whole_snapshot(
    views: set[str], states: set[int], master: int | None, roles: tuple[str | None, ...]
) -> None:
    answers = {broker_id: state(broker_id, str(roles[broker_id - 1])) for broker_id in states}
    _, memory = build(look(), Memory())
    answer = view(master_broker_id=master)
    snapshot, _ = build(look(NOW_MS + 700, views=dict.fromkeys(views, answer), states=answers), memory)
    assert len(snapshot.groups) == 1
    assert len(snapshot.groups[0].replicas) == 3
    assert [each.name for each in snapshot.topics] == ["orders"]
    assert snapshot.verdict.status in {"healthy", "degraded", "down"}
    if snapshot.verdict.status != "healthy":
        assert snapshot.verdict.reasons
    assert decode(ClusterSnapshot, encode(snapshot)) == snapshot


def test_a_master_that_knows_no_number_gives_a_whole_snapshot() -> None:
    """Negative is what is not known: of none of it the console may be left with a snapshot that it cannot read."""
    untold = {
        "transactions": TransactionState(**{each.name: -1 for each in fields(TransactionState)}),
        "schedule": ScheduleState(
            levels=(LevelState(level=-1, delay_ms=-1, waiting=-1, late_ms=-1),),
            **{each.name: -1 for each in fields(ScheduleState) if each.name != "levels"},
        ),
        "quorum": QuorumState(kind="controllers", missing=(MissingState(broker_id=2, reason="dead"),)),
    }
    snapshot, _ = build(look(states={1: state(1, "master", **untold)}), Memory())
    assert decode(ClusterSnapshot, encode(snapshot)) == snapshot


def test_timestamps_have_milliseconds() -> None:
    assert timestamp(1_000_000_000_007) == "2001-09-09T01:46:40.007Z"
