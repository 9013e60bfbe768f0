"""The landing page's live part: verdict first, then what it rests on."""

from __future__ import annotations

from typing import Any

from django.http import QueryDict

from remoting.facts.words import ControllerRole, TopicKind
from webapp.accounts.permissions import Actor
from webapp.live import live
from webapp.reports.models import ReportRun, ReportSchedule
from webapp.snapshot import Snapshot

TIMELINE_SHOWN = 12
LAGGING_SHOWN = 5


@live("landing", "clusters/_landing.html")
def landing(actor: Actor, snapshot: Snapshot, query: QueryDict) -> dict[str, Any]:
    """Everything on the landing page."""
    facts = snapshot.facts
    consumer_groups = snapshot.find_consumer_groups()
    lags = [group.lag for group in consumer_groups if group.lag is not None]
    topic_count = len(snapshot.find_topics(kind=TopicKind.ORDINARY))
    lagging = sorted((group for group in consumer_groups if group.lag), key=lambda group: -(group.lag or 0))
    return {
        "verdict": snapshot.verdict,
        "controllers": facts.controllers,
        "leader": next((each for each in facts.controllers if each.role is ControllerRole.LEADER), None),
        "groups": facts.groups,
        "groups_led": sum(not group.leaderless for group in facts.groups),
        "rates": facts.rates,
        "topic_count": topic_count,
        "topics_of_groups": len(snapshot.find_topics()) - topic_count,
        "consumer_group_count": len(consumer_groups),
        "total_lag": sum(lags) if lags else None,
        "total_lag_at_least": any(group.lag_at_least for group in consumer_groups),
        "lagging": lagging[:LAGGING_SHOWN],
        "timeline": facts.timeline[:TIMELINE_SHOWN],
        "processes": facts.processes,
        "spark": facts.spark,
        "last_run": ReportRun.objects.order_by("-created_at").first() if actor.may("reports.read") else None,
        "next_run": _next_run() if actor.may("reports.read") else None,
        "may_elect": actor.may("elections.write"),
        "may_change_controllers": actor.may("controllers.write"),
    }


def _next_run() -> dict[str, Any] | None:
    """The schedule that runs next, and when."""
    upcoming = [
        {"schedule": schedule, "at": at} for schedule in ReportSchedule.objects.all() for at in schedule.next_runs(1)
    ]
    return min(upcoming, key=lambda each: each["at"], default=None)
