"""Retiring a broker group: no new messages there, until nothing that it has would be missing where its tier is mounted.

Its topics are made read-only, so producers go to other groups. Then it is waited for what a mount has not (messages that wait for
a time, open transactions) and for what clients hold; for the upload of everything; and for a round of the master's in which it
made sure that the tier has its topics, groups and offsets. Whoever stops it gets the group's topics back as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from remoting.client.blocking import NodeOutcome
from remoting.errors import ConnectionLost, LogboomError, RequestError, RequestTimeout
from remoting.facts.broker_state import BrokerState
from remoting.facts.retiring import WRITE, open_topics, told, what_is_left
from remoting.facts.words import Outcome, TierCondition
from tasks.changes import Change, ChangeFailed, GoOnLater, Stopped

LOOK_EVERY_S: Final = 1.0
WORK_FOR_S: Final = 30.0  # then others have their turn
WAIT_FOR_S: Final = 20.0  # for a broker group that does not answer, or has no master for a moment
_WHOLE_ROUNDS: Final = 2  # the first that ends may have begun earlier


@dataclass(slots=True)
class _Place:
    """`closed`: topic -> its permissions before. `settled`: the master's epoch and its rounds when nothing was left any more."""

    closed: dict[str, int] = field(default_factory=dict)
    settled: list[int] | None = None

    def stored(self) -> dict[str, Any]:
        return {"closed": self.closed, "settled": self.settled}


def retire(change: Change) -> dict[str, Any]:
    """Bring the broker group `group` to where it can be switched off. The result has a `sentence` that says what is next."""
    group = change.parameters["group"]
    place, began_s = _Place(**(change.place or {})), change.now_s()
    while True:
        state = _patiently(change, place, lambda: change.client.broker_state(_master(change, group)))
        _check(state, group)
        _close(change, place, open_topics(state))
        left = what_is_left(state)
        _settle(place, state, left)
        is_over = not left and _is_kept(place, state)
        if _tell(change, place, _stage(place, state, left)) and not is_over:
            raise _stopped(change, place)
        if is_over:
            break
        if change.now_s() - began_s >= WORK_FOR_S:
            raise GoOnLater
        change.pause(LOOK_EVERY_S)
    sentence = (
        f"{group} is retired: nobody sends there, nothing waits, and its tier has all of it. Switch its brokers off next "
        f"(`manage.py group down {group}`); `manage.py group mount {group}` serves what is in the tier under the same name."
    )
    change.record(
        [NodeOutcome(group, Outcome.CONFIRMED, f"{len(place.closed)} topics made read-only, nothing is left")]
    )
    return {"sentence": sentence, "closed": sorted(place.closed)}


def _master(change: Change, group: str) -> str:
    """Its address. Raises ConnectionLost while there is none."""
    address = change.client.masters().get(group)
    if address is None:
        raise ConnectionLost(f"{group} has no master at the moment")
    return address


def _check(state: BrokerState, group: str) -> None:
    """Raises ChangeFailed when waiting would not help."""
    if state.tier is None:
        raise ChangeFailed(
            "no-tier",
            f"{group} has no tier, so nothing of it could be read once it is off. Start its brokers with tiers.url.",
        )
    if state.tier.condition is TierCondition.FENCED:
        raise ChangeFailed("tier-fenced", f"{group} does not upload: {state.tier.trouble}")


def _close(change: Change, place: _Place, wanted: Mapping[str, int]) -> None:
    """Make topics read-only; also those that somebody made meanwhile."""
    if not wanted:
        return
    place.closed.update(wanted)
    _tell(change, place, f"making {len(wanted)} topics read-only")  # what is not known cannot be put back
    _put_permissions(change, {topic: perm & ~WRITE for topic, perm in wanted.items()})


def _put_permissions(change: Change, perms: Mapping[str, int]) -> None:
    group = change.parameters["group"]
    for each in change.client.put_permissions(group, perms):
        if each.outcome is Outcome.REFUSED:
            raise ChangeFailed("change-refused", f"{group} does not change its topics: {each.detail}")


def _settle(place: _Place, state: BrokerState, left: Mapping[str, int]) -> None:
    """Note since when nothing is left, in this master's rounds."""
    if left or state.tier is None:
        place.settled = None
    elif place.settled is None or place.settled[0] != state.master_epoch:
        place.settled = [state.master_epoch, state.tier.state_rounds]


def _is_kept(place: _Place, state: BrokerState) -> bool:
    """Whether a whole round began and ended since nothing is left."""
    if place.settled is None or state.tier is None or state.tier.condition is not TierCondition.OPEN:
        return False
    return state.tier.state_rounds >= place.settled[1] + _WHOLE_ROUNDS


def _stage(place: _Place, state: BrokerState, left: Mapping[str, int]) -> str:
    trouble = state.tier.trouble if state.tier is not None else None
    because = f"; the tier is in trouble: {trouble}" if trouble else ""
    if left:
        return f"waiting for {told(left)}{because}"
    if _is_kept(place, state):
        return "nothing is left"
    return f"waiting until the tier has the topics, groups and offsets as they are now{because}"


def _tell(change: Change, place: _Place, text: str) -> bool:
    """Whether somebody wants it to end."""
    return change.tell_place(0, None, text, place.stored())


def _stopped(change: Change, place: _Place) -> Stopped:
    """Undoes it as far as it can be."""
    group = change.parameters["group"]
    if place.closed:
        outcomes = change.client.put_permissions(group, place.closed)
        bad = [each for each in outcomes if each.outcome not in (Outcome.CONFIRMED, Outcome.UNCHANGED)]
        if bad:
            topics = ", ".join(sorted(place.closed)[:10])
            change.record(bad)
            return Stopped(
                {"sentence": f"{group} is not retired. Make its topics writable again ({topics}, ...): {bad[0].detail}"}
            )
        change.record([NodeOutcome(group, Outcome.CONFIRMED, f"{len(place.closed)} topics take messages again")])
    return Stopped(
        {"sentence": f"{group} is not retired; its topics are as they were.", "opened": sorted(place.closed)}
    )


def _patiently(change: Change, place: _Place, ask: Callable[[], BrokerState]) -> BrokerState:
    """Ask, again and again while the broker group changes its master."""
    until_s = change.now_s() + WAIT_FOR_S
    while True:
        try:
            return ask()
        except RequestError as error:
            reason: LogboomError = error
            if not error.retriable:
                raise
        except (ConnectionLost, RequestTimeout) as error:
            reason = error
        group = change.parameters["group"]
        if change.now_s() >= until_s:
            closed = f" {len(place.closed)} of its topics stay read-only." if place.closed else ""
            raise ChangeFailed(
                "retire-incomplete", f"{group} does not answer: {reason}.{closed} Asking again is safe, and goes on."
            ) from reason
        if _tell(change, place, f"{group} does not answer: {reason}"):
            raise _stopped(change, place)
        change.pause(LOOK_EVERY_S)


RETIRING: Mapping[str, Callable[[Change], dict[str, Any]]] = {"broker-group.retire": retire}
