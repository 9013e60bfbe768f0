"""Consumer groups: how far each is in its queues, what holds it up, and who is connected (pure)"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tasks.snapshot.inputs import Look, whole
from tasks.snapshot.traffic import Speakers

_FIRST_RELEASE, _LAST_RELEASE = 212, 611
"""Clients number their version: two for each release from 4.0.0 to 5.9.9, of which the first is its snapshot."""


def consumer_groups(look: Look, speaking: Speakers) -> list[dict[str, Any]]:
    """Every consumer group with its lag per topic and queue, and the consumers connected to any broker."""
    ranges = _ranges(speaking)
    found: dict[str, dict[str, Any]] = {}
    for broker_group, state in speaking.states.items():
        for each in state.get("groups") or ():
            if each.get("system") and not (each.get("topics") or each.get("members")):
                continue  # the protocol's own, used by nobody
            group = found.setdefault(
                each["name"],
                {
                    "name": each["name"],
                    "fifo": bool(each.get("fifo")),
                    "retry_max_times": whole(each.get("retryMaxTimes")),
                    "topics": {},
                    "forbidden": set(),
                    "members": {},
                },
            )
            group["forbidden"].update(topic for topic in each.get("forbidden") or () if isinstance(topic, str))
            for topic in each.get("topics") or ():
                queues = group["topics"].setdefault(topic["topic"], [])
                queues += [
                    _consumed(broker_group, queue, ranges.get((topic["topic"], broker_group, queue["queueId"])))
                    for queue in topic.get("queues") or ()
                ]
    _add_members(found, look)
    return [_finished(found[name]) for name in sorted(found)]


def _ranges(speaking: Speakers) -> dict[tuple[str, str, int], tuple[int | None, int | None]]:
    return {
        (topic["name"], group, queue["queueId"]): (whole(queue.get("minOffset")), whole(queue.get("maxOffset")))
        for group, state in speaking.states.items()
        for topic in state.get("topics") or ()
        for queue in topic.get("queues") or ()
    }


def _consumed(
    broker_group: str, queue: Mapping[str, Any], extent: tuple[int | None, int | None] | None
) -> dict[str, Any]:
    low, high = extent or (None, None)
    consumer_offset = whole(queue.get("consumerOffset"))
    lag: int | None = None
    if high is not None and consumer_offset is not None:
        lag = max(0, high - max(consumer_offset, low or 0))
    elif high is not None and low == high:
        lag = 0  # nothing committed, but nothing to consume either
    return {
        "group": broker_group,
        "queue_id": queue["queueId"],
        "consumer_offset": consumer_offset,
        "max_offset": high,
        "lag": lag,
        "in_flight": whole(queue.get("inFlight")),
        "pending_reset": whole(queue.get("pendingReset")),
    }


def _add_members(found: Mapping[str, dict[str, Any]], look: Look) -> None:
    for state in look.states.values():
        for each in state.get("groups") or ():
            group = found.get(each["name"])
            if group is None:
                continue
            for member in each.get("members") or ():
                group["members"][member["clientId"]] = {
                    "client_id": member["clientId"],
                    "address": member.get("address"),
                    "language": member.get("language"),
                    "version": version_text(member.get("version")),
                }


def version_text(told: Any) -> str | None:
    """A client's version as people write it: its protocol numbers the releases, or has the text already."""
    if not isinstance(told, str) or not told:
        return None
    number = int(told) if told.isdecimal() and len(told) < 10 else 0
    if not _FIRST_RELEASE <= number <= _LAST_RELEASE:
        return told
    release, is_final = divmod(number - _FIRST_RELEASE, 2)
    major, rest = divmod(release, 100)
    return f"{4 + major}.{rest // 10}.{rest % 10}{'' if is_final else '-SNAPSHOT'}"


def _finished(group: dict[str, Any]) -> dict[str, Any]:
    topics_of_group = [
        {
            "topic": topic,
            "lag": _sum(queue["lag"] for queue in queues),
            "in_flight": _sum(queue["in_flight"] for queue in queues),
            "queues": sorted(queues, key=lambda queue: (queue["group"], queue["queue_id"])),
        }
        for topic, queues in sorted(group["topics"].items())
    ]
    return {
        **group,
        "topics": topics_of_group,
        "forbidden": sorted(group["forbidden"]),
        "members": [group["members"][client_id] for client_id in sorted(group["members"])],
        "lag": _sum(topic["lag"] for topic in topics_of_group),
        "in_flight": _sum(topic["in_flight"] for topic in topics_of_group),
    }


def _sum(values: Iterable[int | None]) -> int | None:
    """The sum of what is known; None when nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
