"""Live parts of the topic pages: the list, and one topic's queues and consumers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from django.http import QueryDict

from remoting.facts.broker_state import RetentionState
from remoting.facts.lag import Lag
from remoting.facts.snapshot import Replica, Topic
from remoting.facts.words import TopicKind
from remoting.tier.names import EXPORTS, group_directory
from webapp.accounts.permissions import Actor
from webapp.live import live
from webapp.paging import paged, sorted_by
from webapp.snapshot import Snapshot
from webapp.timers.horizon import waiting_by_topic
from webapp.topics.purpose import DELAYED, HALF, in_order, purpose

SHOWN = ("name", "type", "kind", "queue_count", "message_count", "in_per_s")
COLUMNS = ("name", "type", "queue_count", "message_count", "in_per_s", "lag")
TABS = {TopicKind.RETRY: "Retries", TopicKind.DEAD_LETTER: "Dead letters"}
HOUR_MS = 3_600_000
_UNKNOWN = Lag(None, at_least=False)


@live("topics", "topics/_list.html")
def topic_list(actor: Actor, snapshot: Snapshot, query: QueryDict) -> dict[str, Any]:
    """The topics that the filter lets through, one page of them, with the largest lag of any consumer group.

    What came with consumer groups, a topic or two for each, has tabs of its own; a search looks through all, ordinary ones first.
    """
    wanted = query.get("q", "").strip()
    found = snapshot.find_topics(wanted, with_system=query.get("system") == "on")
    counts = Counter(topic.kind for topic in found)
    chosen = next((kind for kind in TABS if kind == query.get("kind")), None)
    if chosen is not None:
        listed = [topic for topic in found if topic.kind is chosen]
    else:
        listed = [topic for topic in found if wanted or topic.kind not in TABS]
    rows = sorted_by(_with_lags(listed, snapshot), query, COLUMNS, "name")
    return {
        "page": paged(in_order(rows), query),
        "sort": query.get("sort", "name"),
        "filtered": bool(wanted),
        "kind": chosen,
        "tabs": [(kind, title, counts[kind]) for kind, title in TABS.items() if counts[kind] or kind == chosen],
        "listed_count": len(found) if wanted else len(found) - sum(counts[kind] for kind in TABS),
        "may_write": actor.may("topics.write"),
    }


def _with_lags(topics: Iterable[Topic], snapshot: Snapshot) -> list[SimpleNamespace]:
    lags = _lag_by_topic(snapshot)
    return [
        SimpleNamespace(
            lag=lags.get(topic.name, _UNKNOWN).messages,
            lag_at_least=lags.get(topic.name, _UNKNOWN).at_least,
            **{name: getattr(topic, name) for name in SHOWN},
        )
        for topic in topics
    ]


@live("topic", "topics/_topic.html")
def topic(actor: Actor, snapshot: Snapshot, query: QueryDict) -> dict[str, Any]:
    """One topic."""
    name = query.get("name", "")
    found = snapshot.topics.get(name)
    return {
        "name": name,
        "topic": found,
        "purpose": purpose(found) if found else None,
        "delaying": [group for group in snapshot.facts.groups if group.delays] if name == DELAYED else [],
        "deciding": [group for group in snapshot.facts.groups if group.transactions] if name == HALF else [],
        "file_time_ms": min((each.reserved_ms for each in file_retention(snapshot)), default=None),
        "local_has_effect": _has_effect(found, snapshot),
        "keeping": [
            (group, replica) for group in snapshot.facts.groups for replica in group.keeping if _is_about(replica, name)
        ],
        "timers": waiting_by_topic(snapshot.facts.groups).get(name) if found else None,
        "timers_told": all(group.timers for group in snapshot.facts.groups),
        "tiered": found is not None and any(queue.tier is not None for queue in found.queues),
        "reserved_time_ms": min(
            (group.tier.reserved_time_ms for group in snapshot.facts.groups if group.tier), default=0
        ),
        "archived": found is not None and _is_archived(found, snapshot),
        "exports": _export_places(found, snapshot) if found is not None else [],
        "may_write": actor.may("topics.write"),
        "queues": sorted(found.queues, key=lambda queue: (queue.group, queue.queue_id)) if found else [],
        "consumers": snapshot.consumers_of(name),
        "client_times": snapshot.client_times_of(topic=name) if found else [],
        "may_browse": actor.may("messages.read"),
    }


def file_retention(snapshot: Snapshot) -> Iterable[RetentionState]:
    """For how long the brokers that tell it keep files."""
    return (each.retention for group in snapshot.facts.groups for each in group.replicas if each.retention is not None)


def _has_effect(topic: Topic | None, snapshot: Snapshot) -> bool:
    """Whether the topic wants its messages in files longer than some broker keeps all."""
    hours = topic.local_reserved_hours if topic is not None else None
    return hours is not None and any(hours * HOUR_MS > each.reserved_ms for each in file_retention(snapshot))


def _is_about(replica: Replica, topic: str) -> bool:
    """Whether files of the replica stay because of the topic, or went although it wanted them."""
    told = replica.retention
    return told is not None and topic in (told.kept_topic, told.overruled_topic)


def _is_archived(topic: Topic, snapshot: Snapshot) -> bool:
    """Whether some broker group compresses what it merges in its tier."""
    if topic.tier_archived is not None:
        return topic.tier_archived
    return any(group.tier.archive for group in snapshot.facts.groups if group.tier)


def _export_places(topic: Topic, snapshot: Snapshot) -> list[str]:
    """Below which addresses the topic's Parquet files are, one for each broker group that has a tier."""
    if not topic.tier_exported:
        return []
    return [
        f"{group.tier.url.rstrip('/')}/{group_directory('', group.cluster, group.name)}/{EXPORTS}/{topic.name}/"
        for group in snapshot.facts.groups
        if group.tier
    ]


def _lag_by_topic(snapshot: Snapshot) -> dict[str, Lag]:
    """The largest lag of any consumer group, per topic; topics without a known lag are absent."""
    lags: dict[str, Lag] = {}
    for group in snapshot.facts.consumer_groups:
        for each in group.topics:
            if each.lag is not None:
                largest = lags.get(each.topic, Lag(0, at_least=False))
                lags[each.topic] = Lag(
                    max(largest.messages or 0, each.lag), at_least=largest.at_least or each.lag_at_least
                )
    return lags
