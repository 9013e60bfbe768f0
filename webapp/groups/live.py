"""Live parts of the consumer-group pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.http import QueryDict

from remoting.facts.lag import Lag, total
from webapp.accounts.permissions import Actor
from webapp.groups.returns import returns
from webapp.live import live
from webapp.paging import paged, sorted_by
from webapp.rules import RESERVED_GROUPS
from webapp.snapshot import Snapshot

COLUMNS = ("name", "topic_count", "member_count", "lag", "in_flight")


@live("groups", "groups/_list.html")
def group_list(actor: Actor, snapshot: Snapshot, query: QueryDict) -> dict[str, Any]:
    """The consumer groups that the filter lets through, one page of them; the largest lag first."""
    wanted = query.get("q", "").strip()
    found = snapshot.find_consumer_groups(wanted, with_system=query.get("system") == "on")
    return {
        "page": paged(sorted_by(found, query, COLUMNS, "-lag"), query),
        "sort": query.get("sort", "-lag"),
        "filtered": bool(wanted),
        "system_groups": RESERVED_GROUPS,
        "may_write": actor.may("groups.write"),
    }


@live("group", "groups/_group.html")
def group(actor: Actor, snapshot: Snapshot, query: QueryDict) -> dict[str, Any]:
    """One consumer group: lag per topic and queue, what it may not read, what it did not handle, members."""
    name = query.get("name", "")
    found = snapshot.consumer_groups.get(name)
    topics = snapshot.topics
    back = returns(found, topics) if found else []
    return {
        "name": name,
        "group": found,
        "forbidden": [{"topic": each, "known": each in topics} for each in (found.forbidden if found else ())],
        "returns": back,
        "coming_back": _coming_back(found.coming_back if found else 0, back),
        "client_times": snapshot.client_times_of(group=name) if found else [],
        "may_browse": actor.may("messages.read"),
        "may_open_gates": actor.may("topics.write"),
    }


def _coming_back(in_place: int, back: Sequence[Mapping[str, Any]]) -> Lag:
    """How many messages wait to be received again: where they are, or as copies in the group's retry topics."""
    retries = [each for each in back if each["kind"] == "retry"]
    if not retries:
        return Lag(in_place, at_least=False)
    known = total(each["lag"] for each in retries)
    at_least = known.at_least or any(each["lag_at_least"] for each in retries)
    return Lag(None if known.messages is None else known.messages + in_place, at_least)
