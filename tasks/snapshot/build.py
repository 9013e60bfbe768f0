"""One look and the memory of earlier ones -> one snapshot and the memory for the next (pure)"""

from __future__ import annotations

from dataclasses import replace

from remoting.facts.snapshot import VERSION, ClusterSnapshot, Spark, SparkProcess
from tasks.snapshot.clients import client_times
from tasks.snapshot.consumers import consumer_groups
from tasks.snapshot.history import history
from tasks.snapshot.inputs import Look, Memory
from tasks.snapshot.moments import timestamp
from tasks.snapshot.recent import recent
from tasks.snapshot.timeline import timeline
from tasks.snapshot.topology import controllers, groups
from tasks.snapshot.traffic import keep, rates, sample, speakers, topic_rates, topics_anew
from tasks.snapshot.verdict import verdict


def build(look: Look, memory: Memory) -> tuple[ClusterSnapshot, Memory]:
    """The snapshot of this look, numbered one higher than the one before."""
    previous = memory.snapshot
    found_controllers, found_groups = controllers(look), groups(look, previous)
    speaking = speakers(look, found_groups)
    samples = keep(memory.samples, sample(look, speaking))
    processes = look.supervisor.processes if look.supervisor is not None else ()
    made_topics = topics_anew(look, speaking, memory, topic_rates(samples, speaking.silent))
    found_topics = made_topics[1]
    snapshot = ClusterSnapshot(
        version=VERSION,
        seq=(previous.seq if previous is not None else 0) + 1,
        as_of=timestamp(look.now_ms),
        verdict=verdict(look, found_controllers, found_groups, processes),
        controllers=tuple(found_controllers),
        groups=tuple(found_groups),
        rates=rates(memory, samples),
        topics=tuple(found_topics),
        consumer_groups=tuple(consumer_groups(look, speaking, found_topics, previous)),
        client_times=client_times(look),
        processes=processes,
        spark=_spark(look.spark),
    )
    topic_names = memory.topic_names
    topic_changes = None
    if speaking.all_masters:
        topic_names = frozenset(each.name for each in snapshot.topics if not each.system)
        topic_changes = None if memory.topic_names is None else (memory.topic_names, topic_names)
    entries, suspected, leader = history(look, memory, snapshot)
    snapshot = replace(
        snapshot,
        timeline=timeline(previous, snapshot, topic_changes),
        history=entries,
        verdict=replace(snapshot.verdict, recent=recent(entries, look.now_ms)),
    )
    return snapshot, Memory(snapshot, samples, topic_names, suspected, leader, made_topics)


def recall(stored: ClusterSnapshot | None) -> Memory:
    """The memory that a stored snapshot gives to a collector that starts anew; empty when it is of no use."""
    return Memory(snapshot=stored if stored is not None and stored.version == VERSION else None)


def differs(snapshot: ClusterSnapshot, previous: ClusterSnapshot | None) -> bool:
    """Whether something changed that a person waits for: who leads, who is master, who is in sync, who is alive."""
    return previous is None or _significant_parts(snapshot) != _significant_parts(previous)


def _significant_parts(snapshot: ClusterSnapshot) -> object:
    return (
        [(each.id, each.role, each.term) for each in snapshot.controllers],
        [
            (
                group.name,
                group.master_id,
                group.master_epoch,
                group.sync_state_set,
                [(each.id, each.alive, each.role) for each in group.replicas],
            )
            for group in snapshot.groups
        ],
        [(each.name, each.state, each.pid) for each in snapshot.processes],
    )


def _spark(told: SparkProcess | None) -> Spark:
    if told is None:
        return Spark(detail="the Spark process has not reported")
    return Spark(state=told.state, detail=told.detail)
