"""Finding entries of the history for people: by kind, by broker group, what is not over; and who asked for an election."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from django.db.models import QuerySet

from remoting.facts.words import HistoryKind
from remoting.names import MAX_TOPIC_LENGTH
from webapp.accounts.permissions import Actor
from webapp.history.models import HistoryRow
from webapp.operations.models import Operation
from webapp.rules import Rules

KINDS: Final = tuple(each.value for each in HistoryKind)
FAULTS: Final = "fault"  # of whatever kind; for elections there are two words of their own
_AROUND: Final = timedelta(minutes=5)


def search(asked: Mapping[str, Any]) -> QuerySet[HistoryRow]:
    """Rows by kind, cluster and group, newest first; `open` leaves those that are not over. Raises InvalidInput."""
    rules = Rules(asked)
    kind = rules.choice("kind", ("", FAULTS, *KINDS), default="")
    cluster, group = rules.text("cluster", most=MAX_TOPIC_LENGTH), rules.text("group", most=MAX_TOPIC_LENGTH)
    is_open = rules.flag("open")
    rules.finish()
    wanted: dict[str, Any] = {"cluster": cluster, "group": group}
    if kind == FAULTS:
        wanted["kind__in"] = [each.value for each in HistoryKind if not each.is_election]
    elif kind:
        wanted["kind"] = kind
    rows = HistoryRow.objects.order_by("-started_at", "-pk").filter(
        **{name: each for name, each in wanted.items() if each}
    )
    return rows.filter(ended_at=None) if is_open else rows


def groups() -> list[str]:
    """Broker groups that the history knows."""
    return sorted(HistoryRow.objects.exclude(group="").order_by().values_list("group", flat=True).distinct()[:1000])


def operations_of(rows: Sequence[HistoryRow], actor: Actor) -> dict[int, Operation]:
    """Row -> the operation that asked for its election here, as far as the actor may see operations."""
    elections = {(row.cluster, row.group, row.epoch): row for row in rows if row.kind == HistoryKind.ELECTION}
    if not elections or not actor.may("operations.read"):
        return {}
    moments = [row.started_at for row in elections.values()]
    around = (min(moments) - _AROUND, max(moments) + _AROUND)
    found = {}
    for each in Operation.objects.filter(kind="election.elect", created_at__range=around):
        asked, epoch = each.parameters, (each.result or {}).get("master_epoch")
        row = elections.get((asked.get("cluster", ""), asked.get("group", ""), epoch))
        if row is not None:
            found[row.pk] = each
    return found
