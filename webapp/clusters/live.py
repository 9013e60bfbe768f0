"""The landing page's live part: verdict first, then what it rests on."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.http import QueryDict

from webapp.accounts.permissions import Actor
from webapp.live import live
from webapp.reports import cron
from webapp.reports.models import ReportRun, ReportSchedule
from webapp.snapshot import Snapshot

TIMELINE_SHOWN = 12
LAGGING_SHOWN = 5


@live("landing", "clusters/_landing.html")
def landing(actor: Actor, snapshot: Snapshot, query: QueryDict) -> dict[str, Any]:
    """Everything on the landing page."""
    groups = snapshot.list("groups")
    controllers = snapshot.list("controllers")
    consumer_groups = snapshot.find_consumer_groups()
    lags = [group["lag"] for group in consumer_groups if group.get("lag") is not None]
    lagging = sorted((group for group in consumer_groups if group.get("lag")), key=lambda group: -group["lag"])
    return {
        "verdict": snapshot.verdict,
        "controllers": controllers,
        "leader": next((each for each in controllers if each["role"] == "leader"), None),
        "groups": [_with_health(group) for group in groups],
        "groups_led": sum(1 for group in groups if group.get("master_id") is not None),
        "rates": snapshot.dict("rates"),
        "topic_count": len(snapshot.find_topics()),
        "consumer_group_count": len(consumer_groups),
        "total_lag": sum(lags) if lags else None,
        "lagging": lagging[:LAGGING_SHOWN],
        "timeline": snapshot.list("timeline")[:TIMELINE_SHOWN],
        "processes": snapshot.list("processes"),
        "spark": snapshot.dict("spark"),
        "last_run": ReportRun.objects.order_by("-created_at").first() if actor.may("reports.read") else None,
        "next_run": _next_run() if actor.may("reports.read") else None,
        "may_elect": actor.may("elections.write"),
        "may_change_controllers": actor.may("controllers.write"),
    }


def _with_health(group: dict[str, Any]) -> dict[str, Any]:
    """The group with what a person looks for first: is there a master, is the sync-state set whole."""
    counted = [replica for replica in group["replicas"] if not replica.get("learner")]
    in_sync = group.get("sync_state_set") or []
    return {
        **group,
        "in_sync_count": len(in_sync),
        "replica_count": len(counted),
        "leaderless": group.get("master_id") is None,
        "shrunken": len(in_sync) < len(counted),
    }


def _next_run() -> dict[str, Any] | None:
    """The schedule that runs next, and when."""
    now = datetime.now(UTC)
    upcoming = [
        {"schedule": schedule, "at": runs[0]}
        for schedule in ReportSchedule.objects.filter(enabled=True)
        if (runs := cron.parse(schedule.cron).next_runs(now, ZoneInfo(schedule.time_zone), 1))
    ]
    return min(upcoming, key=lambda each: each["at"]) if upcoming else None
