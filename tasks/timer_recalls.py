"""Taking messages back that wait for their moment: one, or all that somebody chose, at a rate, until it is done or stopped.

Broker groups are asked one after the other. A page of timers is found and taken back, then the place behind it is stored: whoever
takes the operation up again goes on there, be it the next task of a long one or that of another worker when one was killed. What
a killed one had taken back of its last page is not found again, and is missing in the counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final

from remoting.client.blocking import NodeOutcome
from remoting.errors import ConnectionLost, RequestError, RequestTimeout
from remoting.facts.timers import RecallOutcome, RecallRequest, TimerItem, TimerPage, TimerStanding
from remoting.facts.words import Outcome
from tasks.changes import Change, ChangeFailed, GoOnLater, Stopped

PAGE: Final = 100
WORK_FOR_S: Final = 30.0  # then others have their turn
WAIT_FOR_S: Final = 20.0  # for a broker group that does not answer, or has no master for a moment
ASK_AGAIN_S: Final = 0.5

_WORDS: Final = {
    RecallOutcome.RECALLED: "recalled",
    RecallOutcome.RECALLED_BEFORE: "recalled before",
    RecallOutcome.DELIVERED: "delivered already",
    RecallOutcome.MISSING: "not there",
    RecallOutcome.REFUSED: "refused",
    RecallOutcome.UNKNOWN: "not known",
}


@dataclass(slots=True)
class _Place:
    """Where the recall stands: the broker groups that are still to be asked, behind what in the first, and what became of all."""

    groups: list[str]
    after: str = ""
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    unread: int = 0  # that may be in the tier, and could not be looked at
    problem: str = ""  # why

    @classmethod
    def of(cls, change: Change) -> _Place:
        if change.place is not None:
            return cls(**change.place)
        group = change.parameters.get("group")
        return cls([group] if group else sorted(change.client.masters()))

    def stored(self) -> dict[str, Any]:
        return asdict(self)

    def miss(self, page: TimerPage) -> None:
        self.unread += page.unread_in_tier
        self.problem = self.problem or page.problem

    def count(self, outcomes: Counter[RecallOutcome]) -> None:
        of_group = self.counts.setdefault(self.groups[0], {})
        for outcome, number in outcomes.items():
            of_group[outcome] = of_group.get(outcome, 0) + number

    @property
    def totals(self) -> dict[str, int]:
        found: Counter[str] = Counter()
        for of_group in self.counts.values():
            found.update(of_group)
        return dict(found)


def recall(change: Change) -> dict[str, Any]:
    """Take back what the parameters choose: `topic`, `from_ms`, `to_ms`, or `key` and perhaps the `place` of one; at most `rate`
    in a second. The result counts outcomes, and says them in a sentence."""
    place, began_s = _Place.of(change), change.now_s()
    if not place.groups and not place.counts:
        raise ChangeFailed(
            "no-broker-group", "No broker group has a master. Nothing was recalled; try again when one has."
        )
    taken = 0
    while place.groups:
        group = place.groups[0]
        page = _patiently(change, place, partial(_find, change, group, place.after))
        place.miss(page)
        chosen = _chosen(page, change.parameters)
        outcomes = _patiently(change, place, partial(_take_back, change, group, chosen))
        place.count(outcomes)
        taken += len(chosen)
        if page.next is None:
            _tell_group(change, place, group)
            place.groups, place.after = place.groups[1:], ""
        else:
            place.after = page.next
        if _store(change, place):
            raise _stopped(place)
        ahead_s = taken / change.parameters["rate"] - (change.now_s() - began_s)
        if place.groups and ahead_s > 0:
            change.pause(ahead_s)
        if place.groups and change.now_s() - began_s >= WORK_FOR_S:
            raise GoOnLater
    return _ended(change, place)


def _find(change: Change, group: str, after: str) -> TimerPage:
    parameters = change.parameters
    return change.client.find_timers(
        group,
        topic=parameters.get("topic") or "",
        key=parameters.get("key") or "",
        from_ms=parameters.get("from_ms"),
        to_ms=parameters.get("to_ms"),
        after=after,
        count=min(PAGE, max(1, parameters["rate"])),
    )


def _chosen(page: TimerPage, parameters: Mapping[str, Any]) -> list[TimerItem]:
    """Those of a page that are meant; of the records of one message, which a key finds, the one that it waits by. One that was
    named by its place and does not wait any more is asked for all the same: the broker says what became of it."""
    place = parameters.get("place")
    from_ms, to_ms = parameters.get("from_ms") or 0, parameters.get("to_ms")
    found = [
        each
        for each in page.items
        if place in (None, each.place) and from_ms <= each.due_ms and (to_ms is None or each.due_ms < to_ms)
    ]
    waiting = [each for each in found if each.standing is TimerStanding.WAITING]
    if not waiting and place is not None:
        return [each for each in found if each.standing is not TimerStanding.MARKER][:1]
    return waiting


def _take_back(change: Change, group: str, chosen: Sequence[TimerItem]) -> Counter[RecallOutcome]:
    if not chosen:
        return Counter()
    timers = [
        RecallRequest(topic=each.topic, unique_key=each.unique_key, place=each.place, due_ms=each.due_ms)
        for each in chosen
    ]
    recalls = change.client.recall_timers(group, timers, change.parameters["recalled_by"])
    details = {each.detail for each in recalls if each.detail}
    if details:
        change.record([NodeOutcome(group, Outcome.UNKNOWN, "; ".join(sorted(details)[:3]))])
    return Counter(each.outcome for each in recalls)


def _patiently(change: Change, place: _Place, ask: Callable[[], Any]) -> Any:
    """Ask, again and again while the broker group changes its master: what was taken back already is told apart."""
    until_s = change.now_s() + WAIT_FOR_S
    while True:
        try:
            return ask()
        except RequestError as error:
            reason: Exception = error
            if not error.retriable:
                raise _failed(change, place, error) from error
        except (ConnectionLost, RequestTimeout) as error:
            reason = error
        if change.now_s() >= until_s:
            raise _failed(change, place, reason) from reason
        if _store(change, place):
            raise _stopped(place)
        change.pause(ASK_AGAIN_S)


def _failed(change: Change, place: _Place, error: Exception) -> ChangeFailed:
    change.record([NodeOutcome(place.groups[0], Outcome.UNKNOWN, str(error))])
    return ChangeFailed(
        "recall-incomplete",
        f"{place.groups[0]} does not go on: {error}. So far {_told(place.totals)}. Asking again is safe: what was "
        "recalled is left alone.",
    )


def _stopped(place: _Place) -> Stopped:
    return Stopped({"outcomes": place.totals, "sentence": f"Stopped when it had come to this: {_told(place.totals)}."})


def _store(change: Change, place: _Place) -> bool:
    done = sum(place.totals.values())
    total = change.parameters.get("expected")
    return change.tell_place(done, max(done, total) if total else None, _told(place.totals), place.stored())


def _tell_group(change: Change, place: _Place, group: str) -> None:
    counts = place.counts.get(group, {})
    unsure = counts.get(RecallOutcome.UNKNOWN, 0) + counts.get(RecallOutcome.REFUSED, 0)
    made = counts.get(RecallOutcome.RECALLED, 0)
    outcome = Outcome.UNKNOWN if unsure else Outcome.CONFIRMED if made else Outcome.UNCHANGED
    known = change.outcomes.get(group)
    because = f": {known.detail}" if unsure and known is not None and known.detail else ""
    change.record([NodeOutcome(group, outcome, _told(counts) + because)])


def _told(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {_WORDS[RecallOutcome(outcome)]}" for outcome, number in counts.items()) or "none found"


def _ended(change: Change, place: _Place) -> dict[str, Any]:
    totals = place.totals
    open_ones = totals.get(RecallOutcome.UNKNOWN, 0) + totals.get(RecallOutcome.REFUSED, 0)
    if open_ones:
        raise ChangeFailed(
            "recall-incomplete",
            f"{_told(totals)}. Of {open_ones} it is not known that they are recalled; asking again is safe.",
        )
    if place.unread:
        raise ChangeFailed(
            "recall-incomplete",
            f"{_told(totals).capitalize()}. Up to {place.unread} more may wait in the object store, and could not be looked at: "
            f"{place.problem}. Recall them again when it answers; asking again is safe.",
        )
    return {"outcomes": totals, "sentence": f"{_told(totals).capitalize()}."}


TIMER_CHANGES: Mapping[str, Callable[[Change], dict[str, Any]]] = {"timer.recall": recall}
