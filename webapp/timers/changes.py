"""Recalling messages that wait for their moment: one, or all that are chosen by topic, key and time."""

from __future__ import annotations

from typing import Any, Final

from django.utils import timezone

from remoting.facts.timers import TimerStanding
from webapp import gateway, snapshot
from webapp.accounts.permissions import Actor
from webapp.display import duration_ms
from webapp.errors import NotFound
from webapp.operations.kinds import Kind, Parameters
from webapp.rules import Rules
from webapp.timers import find
from webapp.timers.find import Chosen
from webapp.timers.horizon import waiting_by_topic

DEFAULT_RATE: Final = 500
MAX_RATE: Final = 10_000
SAMPLE: Final = 3  # that a plan names of each broker group
_PLAN_PAGES: Final = 4


def _validate(actor: Actor, parameters: Parameters) -> Parameters:
    rules = Rules(parameters)
    chosen = find.choose(rules)
    rate = rules.integer("rate", least=1, most=MAX_RATE, default=DEFAULT_RATE)
    if not chosen.topic and not chosen.key:
        rules.refuse("topic", "name a topic or a key: nobody recalls everything at once")
    if chosen.place is not None and not (chosen.key and chosen.group):
        rules.refuse("place", "needs the broker group and the message's key as well")
    rules.finish()
    if not find.groups(chosen):
        raise NotFound("No broker group is known.", code="group-not-found")
    cleaned: dict[str, Any] = {
        **chosen.parameters,
        "chosen": chosen.key or chosen.topic,
        "rate": rate,
        "recalled_by": actor.name,
    }
    if (expected := _expected(chosen)) is not None:
        cleaned["expected"] = expected
    return cleaned


def _expected(chosen: Chosen, group: str = "") -> int | None:
    """How many that will be by the snapshot's counts; None when these do not say."""
    if chosen.key or chosen.from_ms is not None or chosen.to_ms is not None:
        return None
    told = [each for each in snapshot.current().facts.groups if (group or chosen.group) in ("", each.name)]
    if any(each.timers is None or each.timers.uncounted for each in told):
        return None
    return waiting_by_topic(told).get(chosen.topic, 0)


def _plan(parameters: Parameters) -> list[dict[str, str]]:
    """How many wait, and the first of them. A count that would take long is the least that it is."""
    names = ("group", "topic", "key", "from_ms", "to_ms", "place")
    chosen = Chosen(**{name: parameters[name] for name in names if name in parameters})
    steps = []
    for group in find.groups(chosen):
        number, sample, is_all, missed = count(group, chosen)
        about = None if is_all else _expected(chosen, group)
        at_least = "" if is_all else "at least " if about is None else "about "
        number = number if about is None else max(about, number)
        steps.append({"node": group, "change": f"recalls {at_least}{number} message{'' if number == 1 else 's'}"})
        steps += [{"node": group, "change": f"such as {each}"} for each in sample]
        if missed:
            steps.append({"node": group, "change": missed})
    return steps


def count(group: str, chosen: Chosen) -> tuple[int, list[str], bool, str]:
    """How many of a broker group are chosen, the first ones in words, whether that was all, and what of the tier could not be
    looked at."""
    number, sample, after, now_ms = 0, list[str](), "", int(timezone.now().timestamp() * 1000)
    unread, missed = 0, ""
    for _ in range(_PLAN_PAGES):
        page = gateway.find_timers(group, **chosen.asked(after=after, count=find.MAX_COUNT))
        items = [each for each in page.items if chosen.means(each) and each.standing is TimerStanding.WAITING]
        number += len(items)
        sample += [
            f"{each.unique_key or each.place} for {each.topic}, "
            + (f"due in {duration_ms(each.due_ms - now_ms)}" if each.due_ms > now_ms else "due already")
            for each in items[: SAMPLE - len(sample)]
        ]
        if page.unread_in_tier:
            unread += page.unread_in_tier
            missed = f"cannot look at up to {unread} in the object store: {page.problem}"
        if page.next is None:
            return number, sample, not page.unread and not unread, missed
        after = page.next
    return number, sample, False, missed


RECALL = Kind("timer.recall", "Recall messages that wait", "timers.write", _validate, _plan, target=("chosen",))
