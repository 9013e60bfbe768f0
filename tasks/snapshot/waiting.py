"""What waits inside a broker group, by its master's word: open transactions, delayed messages, the index (pure)"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.snapshot.inputs import whole

LATE_MS = 5_000
"""A delivery that is later than this is worth a warning; below it, a busy machine is the reason."""
LATE_FOR_MS = 300_000
"""So long one late delivery is news: after it what is said about the past would look like the present."""
INDEX_BEHIND_BYTES = 1 << 30
"""A burst leaves the index behind by hundreds of megabytes, and it is read after it."""


def waiting(state: Mapping[str, Any] | None) -> dict[str, Any]:
    """The parts of a group's entry; each is None when the master does not answer, or does not tell."""
    told = state or {}
    return {
        "transactions": _transactions(told.get("transactions")),
        "delays": _delays(told.get("schedule")),
        "index": _index(whole(told.get("indexLagBytes"))),
    }


def _transactions(told: Any) -> dict[str, Any] | None:
    """`overdue`: a check has looked at the oldest, and it is open all the same."""
    if not isinstance(told, Mapping) or whole(told.get("open")) is None:
        return None
    open_count, checks = whole(told.get("open")), whole(told.get("oldestChecks"))
    return {
        "open": open_count,
        "open_bytes": whole(told.get("openBytes")),
        "max_open": whole(told.get("maxOpen")),
        "oldest_since_ms": whole(told.get("oldestSinceMs")) if open_count else None,
        "oldest_age_ms": whole(told.get("oldestAgeMs")) if open_count else None,
        "oldest_checks": checks if open_count else None,
        "max_checks": whole(told.get("maxChecks")),
        "overdue": bool(open_count and checks),
        "committed": whole(told.get("committed")),
        "rolled_back": whole(told.get("rolled_back")),
        "given_up": whole(told.get("given_up")),
    }


def _delays(told: Any) -> dict[str, Any] | None:
    """`late`: the last delivery was, not long ago, or something that is due still waits."""
    levels = told.get("levels") if isinstance(told, Mapping) else None
    if not isinstance(levels, list):
        return None
    found = [
        {
            "level": whole(each.get("level")),
            "delay_ms": whole(each.get("delayMs")),
            "waiting": whole(each.get("waiting")),
            "late_ms": whole(each.get("lateMs")),
        }
        for each in levels
        if isinstance(each, Mapping)
    ]
    last_late_ms, last_ago_ms = whole(told.get("lastLateMs")), whole(told.get("lastAgoMs"))
    overdue_ms = whole(told.get("overdueMs"))
    is_news = last_ago_ms is not None and last_ago_ms <= LATE_FOR_MS
    return {
        "waiting": sum(each["waiting"] or 0 for each in found),
        "last_late_ms": last_late_ms,
        "last_ago_ms": last_ago_ms,
        "overdue_ms": overdue_ms,
        "late": max((last_late_ms or 0) if is_news else 0, overdue_ms or 0) > LATE_MS,
        "delivered": whole(told.get("delivered")),
        "failures": whole(told.get("failures")),
        "lost": whole(told.get("lost")),
        "returned": whole(told.get("returned")),
        "dead_lettered": whole(told.get("dead_lettered")),
        "levels": found,
    }


def _index(lag_bytes: int | None) -> dict[str, Any] | None:
    if lag_bytes is None:
        return None
    return {"lag_bytes": lag_bytes, "behind": lag_bytes >= INDEX_BEHIND_BYTES}
