"""Live parts of the topic pages: the list, and one topic's queues and consumers."""

from __future__ import annotations

from typing import Any

from django.http import QueryDict

from webapp.accounts.permissions import Actor
from webapp.live import live
from webapp.paging import paged, sorted_by
from webapp.snapshot import Snapshot
from webapp.topics.purpose import DELAYED, HALF, purpose

COLUMNS = ("name", "type", "queue_count", "message_count", "in_per_s", "lag")


@live("topics", "topics/_list.html")
def topic_list(actor: Actor, snapshot: Snapshot, query: QueryDict) -> dict[str, Any]:
    """The topics that the filter lets through, one page of them."""
    wanted = query.get("q", "").strip()
    lags = _lag_by_topic(snapshot)
    found = [
        {**topic, "queue_count": len(topic.get("queues") or []), "lag": lags.get(topic["name"])}
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
    queues = sorted((found or {}).get("queues") or [], key=lambda queue: (queue["group"], queue["queue_id"]))
    return {
        "name": name,
        "topic": found,
        "purpose": purpose(found) if found else None,
        "delaying": [group for group in snapshot.list("groups") if group.get("delays")] if name == DELAYED else [],
        "deciding": [group for group in snapshot.list("groups") if group.get("transactions")] if name == HALF else [],
        "queues": [{**queue, "count": _range(queue)} for queue in queues],
        "consumers": snapshot.consumers_of(name),
        "may_browse": actor.may("messages.read"),
    }


def _range(queue: dict[str, Any]) -> int | None:
    low, high = queue.get("min_offset"), queue.get("max_offset")
    return None if low is None or high is None else high - low


def _lag_by_topic(snapshot: Snapshot) -> dict[str, int]:
    """The largest lag of any consumer group, per topic; topics without a known lag are absent."""
    lags: dict[str, int] = {}
    for group in snapshot.list("consumer_groups"):
        for each in group.get("topics") or []:
            if each.get("lag") is not None:
                lags[each["topic"]] = max(lags.get(each["topic"], 0), each["lag"])
    return lags
