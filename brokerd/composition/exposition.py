"""The broker's metrics as families for a scrape. `docs/METRICS.md` lists them; a test holds the two against each other.

Read at each scrape from the running totals and from the state as it is then; nothing is kept here.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from brokerd.composition.core import BrokerCore
from brokerd.composition.grpc_families import grpc_families
from brokerd.composition.retention_figures import retention_families
from brokerd.composition.tier_figures import tier_families
from brokerd.composition.timer_families import timer_families
from brokerd.native.settings import PYTHON
from brokerd.pop.survey import PopSurvey
from brokerd.proxy.figures import GrpcFigures
from brokerd.replication.facts import LeadingFacts, ReplicaFacts
from brokerd.replication.roles.effects import Role
from brokerd.replication.roles.followership import CopyStage
from remoting.disk import DiskUsage
from remoting.exposition import Family, Histogram, render
from remoting.facts.broker_state import ScrubState
from remoting.facts.lag import TopicLag
from remoting.facts.loop import LoopState
from remoting.guarding.guard import Guard, access_families

_MAX_GROUPS: Final = 500  # a scrape writes four lines of each, in one turn of the loop
_POP: Final = {
    "pops": "receive requests",
    "empty_pops": "receives that found nothing in their time",
    "refused_pops": "receives that were refused",
    "acked": "messages acked",
    "changed": "changes of the invisible time",
    "invalid_handles": "acks and changes with a handle that was not valid",
    "revived": "messages that came back after their invisible time",
    "dead_lettered": "messages moved to a dead-letter topic",
    "renewed": "leases renewed",
    "lost": "messages that could not come back: their topic, group or data was removed",
    "revive_failures": "attempts to bring a message back that failed",
}
_TRANSACTIONS: Final = {
    "begun": "half messages stored for producers",
    "committed": "transactions committed",
    "rolled_back": "transactions rolled back",
    "refused_ends": "decisions of producers that were refused",
    "checks": "checks sent to producers",
    "unasked": "checks for which no producer of the group was there",
    "given_up": "transactions that nobody decided, moved to TRANS_CHECK_MAX_TIME_TOPIC",
}
_SCHEDULE: Final = {
    "delivered": "delayed messages delivered",
    "lost": "delayed messages whose topic or group was removed while they waited, or whose data was",
    "failures": "attempts to deliver that failed",
}
_RETRY: Final = {
    "returned": "messages that consumers gave back and that come again",
    "dead_lettered": "messages that consumers gave back and that became dead letters",
}


@dataclass(frozen=True, slots=True)
class Sources:
    """What the metrics are read from. `replica_state` is `Replica.state`."""

    core: BrokerCore
    replica_state: Callable[[], ReplicaFacts]
    flush_seconds: Histogram
    connections: Callable[[], int]
    held_pulls: Callable[[], int]
    disk_usage: Callable[[], DiskUsage]
    lags: Callable[[], Iterable[TopicLag]]
    grpc: Callable[[], GrpcFigures]
    survey: PopSurvey
    wall_ms: Callable[[], int]
    scrub: Callable[[], ScrubState] = ScrubState
    access: Guard | None = None
    kernel: str = PYTHON
    unfinished: Callable[[], list[Family]] = list


class Exposition:
    """Renders one broker's metrics."""

    def __init__(self, cluster: str, broker_name: str, sources: Sources) -> None:
        self._names = {"cluster": cluster, "broker": broker_name}
        self._sources = sources

    def render(self) -> bytes:
        """The text of a scrape."""
        state = self._sources.replica_state()
        broker_id = state.broker_id
        common = self._names | {"broker_id": "" if broker_id is None else str(broker_id)}
        families = [
            *_replication(state),
            *self._log(state),
            *_scrub(self._sources.scrub()),
            *self._traffic(state),
            *self._pop(),
            *(self._pop_groups() if state.role is Role.MASTER else ()),
            *grpc_families(self._sources.grpc(), self._sources.wall_ms()),
            *(self._consumers() if state.role is Role.MASTER else ()),
            *self._transactions(),
            *self._schedule(),
            *timer_families(self._sources.core.timers),
            *tier_families(self._sources.core.tiers, self._sources.core.store),
            *_loop(state.loop),
            Family("logboom_kernel_info", "gauge", "where loops over messages run").add(1, mode=self._sources.kernel),
            *access_families(self._sources.access),
            *self._sources.unfinished(),
        ]
        return render(families, common)

    def _log(self, state: ReplicaFacts) -> list[Family]:
        store, usage = self._sources.core.store, self._sources.disk_usage()
        log = store.commitlog
        lag = max(0, state.confirm_offset - store.dispatch_offset)
        index_lag = max(0, self._sources.core.background.behind_bytes)
        return [
            _gauge("logboom_log_min_offset_bytes", "where the log begins", log.min_offset),
            _gauge("logboom_log_end_offset_bytes", "where the log ends", log.end_offset),
            _gauge("logboom_log_flushed_offset_bytes", "up to where the log is durable here", log.flushed_offset),
            _gauge("logboom_confirm_offset_bytes", "up to where consumers may read", state.confirm_offset),
            _gauge("logboom_dispatch_lag_bytes", "confirmed bytes that are not in the queues yet", lag),
            _gauge("logboom_index_lag_bytes", "bytes in the queues that are not in the index of keys yet", index_lag),
            _gauge("logboom_store_log_bytes", "size of the log", log.end_offset - log.min_offset),
            _gauge("logboom_store_queues", "consume queues that hold something", len(store.queues.max_offsets())),
            _gauge("logboom_store_disk_bytes", "size of the file system that holds the data", usage.total_bytes),
            _gauge("logboom_store_disk_free_bytes", "what is free of it", usage.free_bytes),
            _gauge(
                "logboom_retention_in_doubt",
                "1 while files stay that would go by this machine's clock, which other times contradict",
                int(bool(store.retention_doubt)),
            ),
            *retention_families(store),
            _gauge("logboom_store_full", "1 while the disk is too full to take messages", int(store.is_full)),
            _gauge(
                "logboom_store_suspect",
                "1 while the log may lack acknowledged messages because a start found it damaged",
                int(store.suspicion is not None),
            ),
            Family("logboom_flush_duration_seconds", "histogram", "how long a sync of the log took").add(
                self._sources.flush_seconds
            ),
        ]

    def _traffic(self, state: ReplicaFacts) -> list[Family]:
        core = self._sources.core
        counters, pops = core.counters, core.pop.counters
        refused = Family(
            "logboom_sends_refused_total", "counter", "messages refused before anything was stored, by reason"
        )
        for reason, count in counters.refused.items():
            refused.add(count, reason=reason)
        late = Family(
            "logboom_sends_unacknowledged_total",
            "counter",
            "groups of messages that were stored here and answered with something else than success",
        )
        for status, count in state.unacknowledged.items():
            late.add(count, status=status)
        return [
            _counter("logboom_messages_in_total", "messages stored for producers", counters.in_messages),
            _counter("logboom_bytes_in_total", "bytes stored for producers", counters.in_bytes),
            _counter("logboom_messages_out_total", "messages given out", core.out_messages),
            _counter("logboom_bytes_out_total", "bytes given out", counters.out_bytes + pops.popped_bytes),
            refused,
            late,
            _gauge("logboom_sends_waiting", "groups of messages that wait to be acknowledged", state.waiting_sends),
            _gauge("logboom_connections", "open remoting connections", self._sources.connections()),
            _gauge("logboom_pulls_held", "pulls that wait for a message", self._sources.held_pulls()),
        ]

    def _pop(self) -> list[Family]:
        pop = self._sources.core.pop
        totals = pop.counters.as_dict()
        in_flight = sum(queue.in_flight for queue in pop.ledger.queues())
        return [
            _gauge(
                "logboom_pop_in_flight",
                "messages taken and not finished: with clients, or waiting to be taken again",
                in_flight,
            ),
            _gauge("logboom_pops_held", "receives that wait for a message", pop.waiting_count),
            _gauge("logboom_notices_held", "requests to be told of a message that wait", pop.looking.waiting_count),
            *(_counter(f"logboom_pop_{name}_total", help, totals[name]) for name, help in _POP.items()),
        ]

    def _pop_groups(self) -> list[Family]:
        """Only a master has groups whose time runs; of very many groups those alone that hold messages longest."""
        now_ms = self._sources.wall_ms()
        held = self._sources.survey.groups()
        longest = heapq.nsmallest(_MAX_GROUPS, held.items(), key=lambda each: (each[1].oldest_ms or now_ms, each[0]))
        in_flight = Family("logboom_pop_group_in_flight", "gauge", "messages that a group took and did not finish")
        oldest = Family("logboom_pop_group_oldest_seconds", "gauge", "for how long its clients have had the oldest one")
        blocked = Family("logboom_pop_group_blocked_queues", "gauge", "ordered queues that hold messages back")
        waiting = Family(
            "logboom_pop_group_waiting_message_groups",
            "gauge",
            "message groups with messages behind one that is not finished",
        )
        for group, each in longest:
            in_flight.add(each.in_flight, group=group)
            oldest.add(_age_s(each.oldest_ms, now_ms), group=group)
            blocked.add(each.blocked_queues, group=group)
            waiting.add(each.waiting_groups, group=group)
        oldest_ms = min((each.oldest_ms for each in held.values() if each.oldest_ms is not None), default=None)
        gated_ms = [each.gated_ms for each in held.values() if each.gated_ms is not None]
        due_ms = self._sources.core.pop.ledger.next_timer_ms()
        return [
            _gauge(
                "logboom_pop_oldest_seconds",
                "for how long a client has had the oldest one",
                _age_s(oldest_ms, now_ms),
            ),
            _gauge(
                "logboom_pop_gated_groups", "ordered groups that wait for what came before elsewhere", len(gated_ms)
            ),
            _gauge(
                "logboom_pop_gated_oldest_seconds",
                "for how long the one that came first has waited",
                _age_s(min(gated_ms, default=None), now_ms),
            ),
            _gauge("logboom_pop_revive_lag_seconds", "how late what is due is in coming back", _age_s(due_ms, now_ms)),
            in_flight,
            oldest,
            blocked,
            waiting,
        ]

    def _consumers(self) -> list[Family]:
        """Only a master tells of lag: what a replica knows would be counted twice."""
        lag = Family("logboom_consumer_lag_messages", "gauge", "what a group has still to receive of a topic here")
        lacks = Family("logboom_consumer_lag_at_least", "gauge", "1 while a part of that is not known")
        for each in self._sources.lags():
            if each.lag.messages is not None:
                lag.add(each.lag.messages, group=each.group, topic=each.topic)
            lacks.add(int(each.lag.at_least), group=each.group, topic=each.topic)
        return [lag, lacks]

    def _transactions(self) -> list[Family]:
        transactions = self._sources.core.transactions
        state, totals = transactions.state(), transactions.counters.as_dict()
        return [
            _gauge("logboom_transactions_open", "transactions that are not decided", state.open),
            _gauge("logboom_transactions_open_bytes", "size of their half messages", state.open_bytes),
            _gauge("logboom_transactions_oldest_seconds", "age of the oldest open one", state.oldest_age_ms / 1000),
            *(
                _counter(f"logboom_transactions_{name}_total", help, totals[name])
                for name, help in _TRANSACTIONS.items()
            ),
        ]

    def _schedule(self) -> list[Family]:
        core = self._sources.core
        waiting = Family("logboom_schedule_waiting", "gauge", "delayed messages that wait, by level")
        late = Family("logboom_schedule_late_seconds", "gauge", "how late the last message of a level was delivered")
        state, given_back = core.schedule.state(), core.retry_counters.as_dict()
        for each in state.levels:
            waiting.add(each.waiting, level=str(each.level))
            if each.late_ms >= 0:
                late.add(each.late_ms / 1000, level=str(each.level))
        return [
            waiting,
            late,
            *(
                _counter(f"logboom_schedule_{name}_total", help, getattr(state, name))
                for name, help in _SCHEDULE.items()
            ),
            *(_counter(f"logboom_retry_{name}_total", help, given_back[name]) for name, help in _RETRY.items()),
        ]


def _replication(state: ReplicaFacts) -> list[Family]:
    role = Family("logboom_replication_role", "gauge", "1 for the role that this broker has")
    for each in Role:
        role.add(int(state.role is each), role=each.value)
    weakness = Family("logboom_replication_weakness", "gauge", "1 for each setting that gives up a part of the promise")
    for sentence in state.weaknesses:
        weakness.add(1, setting=sentence.partition(":")[0])
    refused = Family(
        "logboom_replication_refused_total",
        "counter",
        "connections that broke the protocol or did not prove themselves",
    )
    for peer, count in state.refused_peers.items():
        refused.add(count, peer=peer)
    families = [
        role,
        weakness,
        refused,
        _gauge("logboom_replication_master_epoch", "master epoch of the present role", state.master_epoch),
        _gauge("logboom_replication_highest_epoch", "the highest master epoch seen", state.highest_epoch),
        _gauge("logboom_replication_learner", "1 for a broker that copies without ever counting", int(state.learner)),
        _gauge("logboom_replication_failed", "1 when the broker ended its role for good", int(bool(state.failure))),
        _gauge("logboom_disk_standing", "1 while a sync takes longer than a disk may", int(bool(state.disk_trouble))),
        _gauge(
            "logboom_disk_standing_seconds",
            "for how long nothing has become durable that waits for it",
            state.disk_standing_ms / 1000,
        ),
    ]
    if state.leading is not None:
        families += _leading(state, state.leading)
    if state.following is not None:
        following = state.following.state
        connected = int(following.stage == CopyStage.TRANSFER.value)
        families += [
            _gauge("logboom_replication_following", "1 while the master's log is being copied", connected),
            _gauge("logboom_replication_stuck", "1 while only a person can help", int(bool(state.following.stuck))),
            _counter("logboom_replication_cuts_total", "how often a diverged tail was cut", following.cuts),
            _counter("logboom_replication_copies_total", "how often the whole log was copied anew", following.copies),
        ]
    return families


def _leading(state: ReplicaFacts, leading: LeadingFacts) -> list[Family]:
    """Only a master has these; they are absent on others, not 0."""
    quorum, members = leading.quorum, state.sync_state_set
    in_set = Family("logboom_replication_in_sync", "gauge", "1 for each member of the sync-state set")
    for broker_id in members:
        in_set.add(1, member=str(broker_id))
    gap = Family("logboom_replication_ack_gap_bytes", "gauge", "what a connected replica has not acked of the log")
    silent = Family("logboom_replication_silent_seconds", "gauge", "since when a connected replica said nothing")
    limit = Family(
        "logboom_replication_silence_limit_seconds", "gauge", "how long a connected replica may say nothing, as learned"
    )
    for peer in leading.replicas:
        if peer.state.broker_id < 0 or peer.state.gap_bytes is None:
            continue
        labels = {"member": str(peer.state.broker_id), "learner": str(peer.state.learner).lower()}
        gap.add(peer.state.gap_bytes, **labels)
        silent.add(peer.silent_ms / 1000, **labels)
        limit.add(peer.silence_limit_ms / 1000, **labels)
    missing = Family("logboom_replication_missing_seconds", "gauge", "for how long a copy has been missing, and why")
    for each in leading.missing:
        labels = {"member": str(each.broker_id), "reason": each.reason, "stalls": str(each.stalls).lower()}
        missing.add(each.for_ms / 1000, **labels)
    return [
        in_set,
        gap,
        silent,
        limit,
        missing,
        _gauge("logboom_replication_sync_state_set_size", "members of the sync-state set", len(members)),
        _gauge("logboom_replication_required_set_size", "brokers whose ack is waited for", len(leading.required_set)),
        _gauge("logboom_replication_copies", "copies that an acknowledgement means now", quorum.copies),
        _gauge("logboom_replication_wanted_copies", "copies if nobody were missing", quorum.wanted_copies),
        _gauge("logboom_replication_downgraded", "1 while that is fewer than it should be", int(quorum.downgraded)),
        _gauge("logboom_replication_refusing", "1 while too few replicas are in sync", int(quorum.refused)),
        _gauge(
            "logboom_replication_acknowledged_offset_bytes",
            "up to where messages are safe",
            state.acknowledged_offset,
        ),
    ]


def _scrub(state: ScrubState) -> list[Family]:
    name = "logboom_scrub"
    unrepaired_bytes = sum(each.end_offset - each.start_offset for each in state.unrepaired)
    return [
        _gauge(
            f"{name}_checked_offset_bytes", "up to where the present round has looked at the log", state.checked_offset
        ),
        _counter(f"{name}_read_bytes_total", "bytes of the log that were looked at again", state.read_bytes),
        _counter(f"{name}_rounds_total", "rounds over the whole log that have ended", state.rounds),
        _counter(f"{name}_damaged_ranges_total", "ranges of the log that were found damaged", state.found),
        _counter(f"{name}_repaired_ranges_total", "those written again with a replica's bytes", state.repaired),
        _counter(
            f"{name}_repaired_units_total", "units of consume queues that did not fit the log", state.units_repaired
        ),
        _counter(f"{name}_index_repairs_total", "how often files of the index were made again", state.index_repaired),
        _gauge(f"{name}_unrepaired_ranges", "ranges of the log that are damaged", len(state.unrepaired)),
        _gauge(f"{name}_unrepaired_bytes", "their bytes", unrepaired_bytes),
    ]


def _loop(loop: LoopState) -> list[Family]:
    name = "logboom_event_loop"
    return [
        _gauge(f"{name}_delay_seconds", "how late the event loop's last tick was", loop.delay_ms / 1000),
        _gauge(
            f"{name}_worst_delay_seconds", "the latest tick of the last one to two minutes", loop.worst_delay_ms / 1000
        ),
        _gauge(
            f"{name}_longest_pause_seconds",
            "the longest time the process stood still",
            loop.longest_pause_ms / 1000,
        ),
        _counter(f"{name}_pauses_total", "how often the process stood still", loop.pauses),
    ]


def _age_s(since_ms: int | None, now_ms: int) -> float:
    return max(0, now_ms - since_ms) / 1000 if since_ms is not None else 0.0


def _gauge(name: str, help: str, value: float) -> Family:
    return Family(name, "gauge", help).add(value)


def _counter(name: str, help: str, value: float) -> Family:
    return Family(name, "counter", help).add(value)
