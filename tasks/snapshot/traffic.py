"""Topics and rates, from the brokers' own counts (pure)

For each broker group one broker speaks: its master, else the replica with the longest log. When nobody of a group answers, its
queues keep their places with unknown offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from remoting.facts.broker_state import BrokerState, QueueState, TopicState
from remoting.facts.snapshot import ClusterSnapshot, Group, Queue, Rates, Topic
from remoting.facts.words import BrokerRole
from tasks.snapshot.inputs import BrokerKey, Counted, Look, Memory, Sample, known
from tasks.snapshot.topology import state_of

RATE_WINDOW_MS = 2_500
RATE_LEAST_MS = 400
STALE_AFTER_MS = 3_000
SAMPLES_KEPT_MS = 10_000
HISTORY_EVERY_MS = 1_000
HISTORY_POINTS = 120
HISTORY_MS = HISTORY_POINTS * HISTORY_EVERY_MS
_ELECTED_MASTER = 2  # it says that it is the master and the controllers say so too
_COUNTERS = ("in_messages", "out_messages", "in_bytes", "out_bytes")  # fields of `Totals`


@dataclass(frozen=True, slots=True)
class Speakers:
    """Who speaks for each broker group, of which groups nobody does, and of which it is not the master."""

    states: Mapping[str, BrokerState]
    silent: frozenset[str]
    without_master: frozenset[str]

    @property
    def all_masters(self) -> bool:
        return bool(self.states) and not self.without_master


def speakers(look: Look, groups: Sequence[Group]) -> Speakers:
    """Choose the broker that speaks for each group."""
    chosen: dict[str, BrokerState] = {}
    without_master: set[str] = set()
    for group in groups:
        best: tuple[tuple[int, int], BrokerState] | None = None
        for replica in group.replicas:
            state = state_of(look, group.cluster, group.name, replica)
            if state is None:
                continue
            serves = state.role is BrokerRole.MASTER
            rank = (serves + (serves and replica.id == group.master_id), known(state.end_offset) or 0)
            if best is None or rank > best[0]:
                best = (rank, state)
        if best is None or best[0][0] < _ELECTED_MASTER:
            without_master.add(group.name)
        if best is not None:
            chosen[group.name] = best[1]
    silent = frozenset(group.name for group in groups) - set(chosen)
    return Speakers(chosen, silent, frozenset(without_master))


# ---- topics


def topics_anew(
    look: Look, speaking: Speakers, memory: Memory, rates: Mapping[str, float]
) -> tuple[object, Sequence[Topic]]:
    """What the topics are made of, and they: those of the look before, if they would be the same."""
    told = {group: state.topics for group, state in speaking.states.items()}
    made_of = (told, look.view.placements if look.view is not None else (), rates)
    if memory.made_topics is not None and memory.made_topics[0] == made_of and not speaking.silent:
        return memory.made_topics
    return made_of, topics(look, speaking, memory.snapshot, rates)


def topics(look: Look, speaking: Speakers, previous: ClusterSnapshot | None, rates: Mapping[str, float]) -> list[Topic]:
    """Every topic with its queues over all groups."""
    view = look.view
    placements = {each.topic: each for each in view.placements} if view is not None else {}
    found: dict[str, Topic] = {}
    queues: dict[str, list[Queue]] = {}
    for group, state in speaking.states.items():
        for each in state.topics:
            topic = found.setdefault(each.name, _topic(each))
            if each.tiered and not topic.tiered:  # a broker group may have a tier, and another none
                found[each.name] = replace(topic, tiered=True)
            queues.setdefault(each.name, []).extend(_queue(group, queue) for queue in each.queues)
    for old in previous.topics if previous is not None else ():
        lost = [queue for queue in old.queues if queue.group in speaking.silent]
        if lost:
            found.setdefault(old.name, old)
            queues.setdefault(old.name, []).extend(replace(each, min_offset=None, max_offset=None) for each in lost)
    whole = (
        replace(_whole(topic, queues[topic.name], rates.get(topic.name)), placement=placements.get(topic.name))
        for topic in found.values()
    )
    return sorted(whole, key=lambda topic: (topic.system, topic.name))


def _topic(told: TopicState) -> Topic:
    return Topic(
        name=told.name,
        type=told.type,
        perm=known(told.perm),
        system=told.system,
        local_reserved_hours=told.local_reserved_hours,
        tiered=told.tiered,
        tier_reserved_hours=told.tier_reserved_hours,
        tier_archived=told.tier_archived,
        tier_exported=told.tier_exported,
    )


def _whole(topic: Topic, queues: Iterable[Queue], in_per_s: float | None) -> Topic:
    ordered = tuple(sorted(queues, key=lambda queue: (queue.group, queue.queue_id)))
    counts = [queue.count for queue in ordered]
    known_counts = [count for count in counts if count is not None]
    message_count = sum(known_counts) if len(known_counts) == len(counts) else None
    return replace(topic, queues=ordered, message_count=message_count, in_per_s=in_per_s)


def _queue(group: str, queue: QueueState) -> Queue:
    return Queue(
        group=group,
        queue_id=queue.queue_id,
        min_offset=known(queue.min_offset),
        max_offset=known(queue.max_offset),
        last_store_ms=known(queue.last_store_ms) or None,
        tier=queue.tier,
    )


# ---- rates


def sample(look: Look, speaking: Speakers) -> Sample:
    """This look's counters."""
    brokers: dict[BrokerKey, Counted] = {}
    heard: dict[BrokerKey, int] = {}
    for address, state in look.states.items():
        told = {name: getattr(state.counters, name) for name in _COUNTERS}
        counters = {name: count for name, count in told.items() if known(count) is not None}
        heard[_key(state)] = look.heard_ms.get(address, look.now_ms)
        brokers[_key(state)] = Counted(heard[_key(state)], counters)
    groups = {
        group: Counted(heard.get(_key(state), look.now_ms), _high_offsets(state))
        for group, state in speaking.states.items()
    }
    return Sample(look.now_ms, brokers, groups)


def _key(state: BrokerState) -> BrokerKey:
    return state.cluster_name, state.broker_name, state.broker_id


def _high_offsets(state: BrokerState) -> dict[str, int]:
    """Topic -> sum of its queues' max offsets, where all of them are known."""
    sums = {}
    for topic in state.topics:
        highs = [queue.max_offset for queue in topic.queues]
        if all(high >= 0 for high in highs):
            sums[topic.name] = sum(highs)
    return sums


def keep(samples: Sequence[Sample], newest: Sample) -> tuple[Sample, ...]:
    """The samples that later rates may still be measured against. A clock that was set back starts anew."""
    return (
        *(each for each in samples if newest.at_ms - SAMPLES_KEPT_MS <= each.at_ms < newest.at_ms),
        newest,
    )


def _per_s(tables: Sequence[Mapping[Any, Counted]], key: object, counter: str, now_ms: int) -> float | None:
    """How fast a counter of `key` grew lately; the tables are those of the samples, oldest first.

    None when that is not known: too few values, an old one as the last, or a counter that began again.
    """
    told = [table[key] for table in tables if key in table]
    known = [(each.at_ms, each.counters[counter]) for each in told if counter in each.counters]
    if not known or now_ms - known[-1][0] > STALE_AFTER_MS:
        return None
    last_at, last = known[-1]
    old_enough = [each for each in known if last_at - each[0] >= RATE_LEAST_MS]
    if not old_enough:
        return None
    at_ms, value = min(old_enough, key=lambda each: abs(last_at - each[0] - RATE_WINDOW_MS))
    return None if value > last else (last - value) * 1000 / (last_at - at_ms)


def rates(memory: Memory, samples: Sequence[Sample]) -> Rates:
    """Messages and bytes per second over all brokers, and the course of the last two minutes."""
    newest = samples[-1]
    per_s = _counter_rates(samples)
    history = memory.snapshot.rates.history if memory.snapshot is not None else ()
    if history and history[-1][0] > newest.at_ms:
        history = ()  # the clock was set back
    if not history or newest.at_ms - history[-1][0] >= HISTORY_EVERY_MS:
        history = (*history, (newest.at_ms, per_s["in_messages"], per_s["out_messages"]))
    return Rates(
        in_messages_per_s=per_s["in_messages"],
        out_messages_per_s=per_s["out_messages"],
        in_bytes_per_s=per_s["in_bytes"],
        out_bytes_per_s=per_s["out_bytes"],
        history=tuple(each for each in history if each[0] > newest.at_ms - HISTORY_MS)[-HISTORY_POINTS:],
    )


def _counter_rates(samples: Sequence[Sample]) -> dict[str, float | None]:
    newest, tables = samples[-1], [each.brokers for each in samples]
    found: dict[str, float | None] = {}
    for name in _COUNTERS:
        speeds = [_per_s(tables, key, name, newest.at_ms) for key in newest.brokers]
        known = [speed for speed in speeds if speed is not None]
        found[name] = round(sum(known), 1) if known else None
    return found


def topic_rates(samples: Sequence[Sample], silent: frozenset[str]) -> dict[str, float]:
    """Topic -> messages stored per second, where that is known; nothing while a part of every topic may be missing."""
    newest, tables = samples[-1], [each.groups for each in samples]
    if silent:
        return {}
    speeds: dict[str, list[float | None]] = {}
    for group, counted in newest.groups.items():
        for topic in counted.counters:
            speeds.setdefault(topic, []).append(_per_s(tables, group, topic, newest.at_ms))
    return {
        topic: round(sum(each for each in of_groups if each is not None), 1)
        for topic, of_groups in speeds.items()
        if None not in of_groups
    }
