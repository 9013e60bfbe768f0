"""Committing or rolling back by hand a half message that its broker gave up."""

from __future__ import annotations

from typing import Any, Final

from remoting.names import MAX_TOPIC_LENGTH
from webapp import snapshot
from webapp.accounts.permissions import Actor
from webapp.errors import NotFound
from webapp.operations.kinds import Kind, Parameters
from webapp.rules import MAX_INT64, Rules

DECISIONS: Final = ("commit", "rollback")


def _validate(actor: Actor, parameters: Parameters) -> Parameters:
    rules = Rules(parameters)
    cleaned: dict[str, Any] = {
        "group": rules.text("group", least=1, most=MAX_TOPIC_LENGTH),
        "offset": rules.integer("offset", least=0, most=MAX_INT64),
        "decision": rules.choice("decision", DECISIONS),
        "decided_by": actor.name,
    }
    rules.finish()
    present = snapshot.current()
    if present.data is not None and cleaned["group"] not in {each.name for each in present.facts.groups}:
        raise NotFound(f"There is no broker group {cleaned['group']}.", code="group-not-found")
    return cleaned


def _plan(parameters: Parameters) -> list[dict[str, str]]:
    done = "is stored in its own topic" if parameters["decision"] == "commit" else "is never delivered"
    change = f"the message that was given up at offset {parameters['offset']} {done}"
    return [{"node": parameters["group"], "change": change}]


DECIDE = Kind(
    "transaction.decide",
    "End a transaction that was given up",
    "transactions.write",
    _validate,
    _plan,
    target=("group", "offset", "decision"),
)
