"""What changes of the group of controllers do, and how they are made sure of; the rest is as in `tasks.changes`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from remoting import codes
from remoting.client.blocking import NodeOutcome
from remoting.errors import ConnectionLost, RequestError, RequestTimeout
from remoting.facts.words import Outcome
from tasks.changes import READ_BACK_TIMEOUT_S, Change, ChangeFailed

Listing = Mapping[str, Any]


def add(change: Change) -> dict[str, Any]:
    """Bring a new controller in as a learner."""
    wanted, address = change.parameters["id"], change.parameters["address"]

    def is_confirmed(listing: Listing) -> bool:
        found = _member(listing, wanted)
        return found is not None and found["address"] == address

    return _make(change, is_confirmed, lambda: change.client.add_controller(wanted, address), f"a member at {address}")


def promote(change: Change) -> dict[str, Any]:
    """Give a learner its vote."""
    wanted = change.parameters["id"]

    def is_confirmed(listing: Listing) -> bool:
        found = _member(listing, wanted)
        return found is not None and found["role"] == "voter"

    return _make(change, is_confirmed, lambda: change.client.promote_controller(wanted), "a voter")


def remove(change: Change) -> dict[str, Any]:
    """Take a controller out for good."""
    wanted = change.parameters["id"]
    return _make(
        change,
        lambda listing: wanted in listing["retired"],
        lambda: change.client.remove_controller(wanted),
        "no member any more",
    )


def transfer(change: Change) -> dict[str, Any]:
    """Let a voter lead."""
    wanted = change.parameters["id"]
    return _make(
        change,
        lambda listing: listing["leaderId"] == wanted,
        lambda: change.client.transfer_controller_leader(wanted),
        "the leader",
    )


def _make(change: Change, is_confirmed: Callable[[Listing], bool], ask: Callable[[], Any], what: str) -> dict[str, Any]:
    node = str(change.parameters["id"])
    if is_confirmed(change.client.controller_members()):
        change.record([NodeOutcome(node, Outcome.UNCHANGED, f"it is {what} already")])
        return {"controller": node}
    change.tell_progress(0, 2, f"asking the leading controller: {node} is to be {what}")
    try:
        ask()
    except RequestError as error:
        if error.code != codes.SYSTEM_ERROR:
            change.record([NodeOutcome(node, Outcome.REFUSED, error.message)])
            raise ChangeFailed("change-refused", f"The controllers refused: {error.message}") from error
        # The leader was replaced, or did not come to a decision in time: it says itself that it does not know.
        change.record([NodeOutcome(node, Outcome.UNKNOWN, error.message)])
    except (ConnectionLost, RequestTimeout) as error:
        change.record([NodeOutcome(node, Outcome.UNKNOWN, str(error))])
    change.tell_progress(1, 2, "reading back")
    if not change.read_back(lambda: is_confirmed(change.client.controller_members())):
        change.record([NodeOutcome(node, Outcome.UNKNOWN, "reading back does not show it")])
        raise ChangeFailed(
            "change-unknown",
            f"Within {READ_BACK_TIMEOUT_S:.0f} s the controllers did not say that {node} is {what}. Asking again is safe.",
        )
    lost = node in change.outcomes
    change.record([NodeOutcome(node, Outcome.CONFIRMED, "the answer was lost; read back" if lost else f"it is {what}")])
    change.tell_progress(2, 2, "done")
    return {"controller": node}


def _member(listing: Listing, wanted: str) -> Mapping[str, Any] | None:
    return next((each for each in listing["members"] if each["id"] == wanted), None)


CONTROLLER_CHANGES: Mapping[str, Callable[[Change], dict[str, Any]]] = {
    "controller.add": add,
    "controller.promote": promote,
    "controller.remove": remove,
    "controller.transfer": transfer,
}
