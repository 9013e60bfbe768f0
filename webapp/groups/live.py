"""Live parts of the consumer-group pages."""

from __future__ import annotations

from typing import Any

from django.http import QueryDict

from webapp.accounts.permissions import Actor
from webapp.groups.returns import returns
from webapp.live import live
from webapp.paging import paged, sorted_by
from webapp.rules import is_system_group
from webapp.snapshot import Snapshot

COLUMNS = ("name", "topic_count", "member_count", "lag", "in_flight")


@live("groups", "groups/_list.html")
def group_list(actor: Actor, snapshot: Snapshot, query: QueryDict) -> dict[str, Any]:
    """The consumer groups that the filter lets through, one page of them; the largest lag first."""
    wanted = query.get("q", "").strip()
    found = [
        {
            **group,
            "system": is_system_group(group["name"]),
            "topic_count": len(group.get("topics") or []),
            "member_count": len(group.get("members") or []),
        }
        for group in snapshot.find_consumer_groups(wanted, with_system=query.get("system") == "on")
    ]
    return {
        "page": paged(sorted_by(found, query, COLUMNS, "-lag"), query),
        "sort": query.get("sort", "-lag"),
        "filtered": bool(wanted),
        "may_write": actor.may("groups.write"),
    }


@live("group", "groups/_group.html")
def group(actor: Actor, snapshot: Snapshot, query: QueryDict) -> dict[str, Any]:
    """One consumer group: lag per topic and queue, what it may not read, what it did not handle, members."""
    name = query.get("name", "")
    found = snapshot.consumer_groups.get(name)
    topics = snapshot.topics
    return {
        "name": name,
        "group": found and {**found, "topics": [_with_marks(each, found) for each in found.get("topics") or []]},
        "forbidden": [{"topic": each, "known": each in topics} for each in (found or {}).get("forbidden") or []],
        "returns": returns(found, topics) if found else [],
        "may_browse": actor.may("messages.read"),
    }


def _with_marks(topic: dict[str, Any], group: dict[str, Any]) -> dict[str, Any]:
    """A topic that the group consumes, with what is out of the ordinary about it."""
    return {
        **topic,
        "is_forbidden": topic["topic"] in (group.get("forbidden") or ()),
        "waits_to_be_told": any(queue.get("pending_reset") is not None for queue in topic["queues"]),
    }
