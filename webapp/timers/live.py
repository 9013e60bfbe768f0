"""The live part of the page of timers: the horizon, the broker groups, the topics, and what is set aside."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

from django.http import QueryDict

from webapp.accounts.permissions import Actor
from webapp.live import live
from webapp.paging import paged, sorted_by
from webapp.snapshot import Snapshot
from webapp.timers.horizon import OTHER_TOPICS, HorizonColumn, horizon, lateness

COLUMNS: Final = ("name", "waiting", "overdue", "next_hour")

# Of the picture, in its own units.
_STEP, _BAR, _BASE, _TALLEST = 60, 44, 150, 120


@live("timers", "timers/_timers.html")
def timers(actor: Actor, snapshot: Snapshot, query: QueryDict) -> dict[str, Any]:
    """Of all broker groups or one, for all topics or one."""
    wanted_group, wanted_topic = query.get("group", "").strip(), query.get("topic", "").strip()
    groups = [each for each in snapshot.facts.groups if wanted_group in ("", each.name)]
    whole = horizon(groups)
    shown = horizon(groups, wanted_topic) if wanted_topic else whole
    part = query.get("q", "").strip().lower()
    topics = [each for each in shown.topics if part in each.name.lower()]
    return {
        "groups": groups,
        "horizon": shown,
        "bars": bars(shown.columns),
        "topic": wanted_topic,
        "others": OTHER_TOPICS,
        "page": paged(sorted_by(topics, query, COLUMNS, "name"), query),
        "sort": query.get("sort", "name"),
        "filtered": bool(part or wanted_topic),
        "lateness": lateness(groups),
        "aside_count": sum(group.timers.aside for group in groups if group.timers),
        "aside": [(group, each) for group in groups if group.timers for each in group.timers.set_aside],
        "silent": [each.name for each in groups if each.timers is None],
        "is_empty": not shown.waiting and not shown.uncounted,
        "may_browse": actor.may("messages.read"),
        "may_write": actor.may("timers.write"),
    }


def bars(columns: Any) -> list[SimpleNamespace]:
    """The columns as a picture has them: one that has any can be seen."""
    most = max((each.count for each in columns), default=0)
    return [_bar(number, each, most) for number, each in enumerate(columns)]


def _bar(number: int, column: HorizonColumn, most: int) -> SimpleNamespace:
    height = max(3, round(_TALLEST * column.count / most)) if column.count else 0
    x = number * _STEP + (_STEP - _BAR) // 2
    return SimpleNamespace(
        column=column, x=x, y=_BASE - height, width=_BAR, height=height, middle=x + _BAR // 2, over=_BASE - height - 6
    )
