"""Live parts of the topic pages: the list, and one topic's queues and consumers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from django.http import QueryDict

from remoting.facts.lag import Lag
from webapp.accounts.permissions import Actor
from webapp.live import live
from webapp.paging import paged, sorted_by
from webapp.snapshot import Snapshot
from webapp.topics.purpose import DELAYED, HALF, purpose

SHOWN = ("name", "type", "system", "queue_count", "message_count", "in_per_s")
COLUMNS = (*SHOWN, "lag")
_UNKNOWN = Lag(None, at_least=False)


@live("topics", "topics/_list.html")
def topic_list(actor: Actor, snapshot: Snapshot, query: QueryDict) -> dict[str, Any]:
    """The topics that the filter lets through, one page of them, with the largest lag of any consumer group."""
    wanted = query.get("q", "").strip()
    lags = _lag_by_topic(snapshot)
    found = [
        SimpleNamespace(
            lag=lags.get(topic.name, _UNKNOWN).messages,
            lag_at_least=lags.get(topic.name, _UNKNOWN).at_least,
            **{name: getattr(topic, name) for name in SHOWN},
        )
        for topic in snapshot.find_topics(wanted, with_system=query.get("system") == "on")
    ]
    return {
        "page": paged(sorted_by(found, query, COLUMNS, "name"), query),
        "sort": query.get("sort", "name"),
        "filtered": bool(wanted),
        "may_write": actor.may("topics.write"),
    }


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
        "queues": sorted(found.queues, key=lambda queue: (queue.group, queue.queue_id)) if found else [],
        "consumers": snapshot.consumers_of(name),
        "may_browse": actor.may("messages.read"),
    }


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
