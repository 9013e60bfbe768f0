"""Retiring a broker group: asked for here, carried out by a worker."""

from __future__ import annotations

from typing import Final

from remoting.facts.retiring import plan_of
from remoting.names import MAX_BROKER_NAME_LENGTH
from webapp import gateway, snapshot
from webapp.accounts.permissions import Actor
from webapp.errors import Conflict
from webapp.operations.kinds import Kind, Parameters
from webapp.rules import Rules

PERMISSION: Final = "broker-groups.write"
TARGET: Final = ("cluster", "group")


def named_group(rules: Rules) -> Parameters:
    """The parameters that say which broker group."""
    return {name: rules.text(name, least=1, most=MAX_BROKER_NAME_LENGTH) for name in TARGET}


def _validate(actor: Actor, parameters: Parameters) -> Parameters:
    rules = Rules(parameters)
    cleaned = named_group(rules)
    rules.finish()
    name = snapshot.current().group(cleaned["cluster"], cleaned["group"]).name
    state = gateway.master_state(name)
    if state is None:
        raise Conflict(f"{name} has no master now, so nobody can tell what is left there.", code="no-master")
    if state.tier is None:
        raise Conflict(
            f"{name} has no tier: nothing of it could be read once it is off. Start its brokers with tiers.url.",
            code="no-tier",
        )
    return cleaned


def _plan(parameters: Parameters) -> list[dict[str, str]]:
    name = parameters["group"]
    state = gateway.master_state(name)
    if state is None:
        return [{"node": name, "change": "waits for its master"}]
    others = [each.name for each in snapshot.current().facts.groups if each.name != name and each.serving is not None]
    return [{"node": name, "change": step} for step in plan_of(state, others)]


RETIRE = Kind(
    "broker-group.retire", "Retire broker group", PERMISSION, _validate, _plan, target=TARGET, is_dangerous=True
)
