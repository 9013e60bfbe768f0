"""The landing page's live part: verdict first, then what it rests on."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.http import QueryDict

from remoting.facts.snapshot import ClusterSnapshot
from remoting.facts.words import ControllerRole, TopicKind
from webapp.accounts.permissions import Actor
from webapp.clusters.switching import switched_groups
from webapp.live import live
from webapp.reports.models import ReportRun, ReportSchedule
from webapp.snapshot import Snapshot
from webapp.wishes import Wish

HISTORY_SHOWN = 10
TOPIC_CHANGES_SHOWN = 4  # beside the history, and never instead of it
LAGGING_SHOWN = 5


@live("landing", "clusters/_landing.html")
def landing(actor: Actor, snapshot: Snapshot, query: QueryDict) -> dict[str, Any]:
    """Everything on the landing page."""
    facts = snapshot.facts
    switched = switched_groups(facts.processes)
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
        "happened": _happened(facts),
        "processes": facts.processes,
        "spark": facts.spark,
        "last_run": ReportRun.objects.order_by("-created_at").first() if actor.may("reports.read") else None,
        "next_run": _next_run() if actor.may("reports.read") else None,
        "may_elect": actor.may("elections.write"),
        "may_retire": actor.may("broker-groups.write"),
        "switched": switched,
        "groups_on": {each.group for each in facts.processes if each.group},
        "names_off": {each.group for each in switched},
        "names_mounted": {each.group for each in switched if each.wish == Wish.MOUNTED},
        "may_change_controllers": actor.may("controllers.write"),
    }


@dataclass(frozen=True, slots=True)
class Happened:
    """A line of "What happened"; `at` is in milliseconds since 1970, `lasts` what is not over."""

    key: str
    at: int
    kind: str
    text: str
    cause: str = ""
    duration_ms: int | None = None
    lasts: bool = False


def _happened(facts: ClusterSnapshot) -> list[Happened]:
    """Elections and faults with their causes, and what became of topics; each in a number of its own, newest first."""
    entries = [
        Happened(
            key=each.key,
            at=each.started_ms,
            kind="election" if each.kind.is_election else "process",
            text=each.text,
            cause=each.cause,
            duration_ms=each.duration_ms,
            lasts=each.ended_ms is None,
        )
        for each in facts.history[:HISTORY_SHOWN]
    ]
    topics = [
        Happened(key=f"{each.at}-{each.text}", at=at_ms, kind=each.kind, text=each.text)
        for each in facts.timeline
        if each.kind == "topic" and (at_ms := _ms(each.at)) is not None
    ]
    return sorted((*entries, *topics[:TOPIC_CHANGES_SHOWN]), key=lambda each: -each.at)


def _ms(at: str) -> int | None:
    try:
        return int(datetime.fromisoformat(at).timestamp() * 1000)
    except ValueError:
        return None


def _next_run() -> dict[str, Any] | None:
    """The schedule that runs next, and when."""
    upcoming = [
        {"schedule": schedule, "at": at} for schedule in ReportSchedule.objects.all() for at in schedule.next_runs(1)
    ]
    return min(upcoming, key=lambda each: each["at"], default=None)
