"""Live parts of the consumer-group pages."""

from __future__ import annotations

from typing import Any

from django.http import QueryDict

from webapp.accounts.permissions import Actor
from webapp.live import live
from webapp.pages import paged, sorted_by
from webapp.rules import is_system_group
from webapp.snapshot import Snapshot

COLUMNS = ("name", "topic_count", "member_count", "lag", "in_flight")


@live("groups", "groups/_list.html")
def group_list(actor: Actor, snapshot: Snapshot, query: QueryDict) -> dict[str, Any]:
    """The consumer groups that the filter lets through, one page of them; the largest lag first."""
    wanted, with_system = query.get("q", "").strip().lower(), query.get("system") == "on"
    found = [
        {
            **group,
            "system": is_system_group(group["name"]),
            "topic_count": len(group.get("topics") or []),
            "member_count": len(group.get("members") or []),
        }
        for group in snapshot.list("consumer_groups")
        if wanted in group["name"].lower() and (with_system or not is_system_group(group["name"]))
    ]
    return {
        "page": paged(sorted_by(found, query, COLUMNS, "-lag"), query),
        "sort": query.get("sort", "-lag"),
        "filtered": bool(wanted),
        "may_write": actor.may("groups.write"),
    }


@live("group", "groups/_group.html")
def group(actor: Actor, snapshot: Snapshot, query: QueryDict) -> dict[str, Any]:
    """One consumer group: lag per topic and queue, members."""
    name = query.get("name", "")
    return {"name": name, "group": snapshot.consumer_groups.get(name)}
