"""What changes of the group of controllers do, and how they are made sure of; the rest is as in `tasks.changes`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from remoting import codes
from remoting.client.blocking import AdminClient, NodeOutcome
from remoting.errors import ConnectionLost, RequestError, RequestTimeout
from remoting.facts.words import Outcome
from tasks.changes import READ_BACK_TIMEOUT_S, Change, ChangeFailed

Named = Mapping[str, Any]


def _make(
    change: Change, what: str, is_so: Callable[[Named, Named], bool], ask: Callable[[AdminClient, Named], Any]
) -> dict[str, Any]:
    """Make one controller what is wanted; `is_so` looks at the members' listing, `ask` asks the leader, by the parameters."""
    node, what = str(change.parameters["id"]), what.format(**change.parameters)

    def is_confirmed() -> bool:
        return is_so(change.client.controller_members(), change.parameters)

    if is_confirmed():
        change.record([NodeOutcome(node, Outcome.UNCHANGED, f"it is {what} already")])
        return {"controller": node}
    change.tell_progress(0, 2, f"asking the leading controller: {node} is to be {what}")
    try:
        ask(change.client, change.parameters)
    except RequestError as error:
        if error.code != codes.SYSTEM_ERROR:
            change.record([NodeOutcome(node, Outcome.REFUSED, error.message)])
            raise ChangeFailed("change-refused", f"The controllers refused: {error.message}") from error
        # The leader was replaced, or did not come to a decision in time: it says itself that it does not know.
        change.record([NodeOutcome(node, Outcome.UNKNOWN, error.message)])
    except (ConnectionLost, RequestTimeout) as error:
        change.record([NodeOutcome(node, Outcome.UNKNOWN, str(error))])
    change.tell_progress(1, 2, "reading back")
    if not change.read_back(is_confirmed):
        change.record([NodeOutcome(node, Outcome.UNKNOWN, "reading back does not show it")])
        raise ChangeFailed(
            "change-unknown",
            f"Within {READ_BACK_TIMEOUT_S:.0f} s the controllers did not say that {node} is {what}. Asking again is safe.",
        )
    lost = node in change.outcomes
    change.record([NodeOutcome(node, Outcome.CONFIRMED, "the answer was lost; read back" if lost else f"it is {what}")])
    change.tell_progress(2, 2, "done")
    return {"controller": node}


def _member(listing: Named, given: Named) -> Named:
    return next((each for each in listing["members"] if each["id"] == given["id"]), {})


CONTROLLER_CHANGES: Mapping[str, Callable[[Change], dict[str, Any]]] = {
    "controller.add": partial(
        _make,
        what="a member at {address}",
        is_so=lambda listing, given: _member(listing, given).get("address") == given["address"],
        ask=lambda client, given: client.add_controller(given["id"], given["address"]),
    ),
    "controller.promote": partial(
        _make,
        what="a voter",
        is_so=lambda listing, given: _member(listing, given).get("role") == "voter",
        ask=lambda client, given: client.promote_controller(given["id"]),
    ),
    "controller.remove": partial(
        _make,
        what="no member any more",
        is_so=lambda listing, given: given["id"] in listing["retired"],
        ask=lambda client, given: client.remove_controller(given["id"]),
    ),
    "controller.transfer": partial(
        _make,
        what="the leader",
        is_so=lambda listing, given: listing["leaderId"] == given["id"],
        ask=lambda client, given: client.transfer_controller_leader(given["id"]),
    ),
}
