"""Creating and deleting consumer groups."""

from __future__ import annotations

from functools import partial

from remoting.facts.snapshot import ConsumerGroup
from remoting.names import MAX_GROUP_LENGTH
from webapp import snapshot
from webapp.accounts.permissions import Actor
from webapp.errors import Conflict, InvalidInput
from webapp.operations.kinds import Kind, Parameters
from webapp.operations.recent import was_made
from webapp.rules import RESERVED_GROUPS, Rules, check_confirmation

DEFAULT_ATTEMPTS = 16


def _validate_create(actor: Actor, parameters: Parameters) -> Parameters:
    rules = Rules(parameters)
    cleaned = {
        "name": rules.name("name", most=MAX_GROUP_LENGTH, what="consumer group"),
        "fifo": rules.flag("fifo"),
        "retry_max_times": rules.integer("retry_max_times", least=0, most=1000, default=DEFAULT_ATTEMPTS),
    }
    if cleaned["name"] in RESERVED_GROUPS:
        rules.refuse("name", "is reserved for the protocol's own tools")
    rules.finish()
    if cleaned["name"] in snapshot.current().consumer_groups and was_made("group", cleaned["name"]) is not False:
        raise Conflict(f"The consumer group {cleaned['name']} exists already.", code="group-exists")
    return cleaned


def _validate_delete(actor: Actor, parameters: Parameters) -> Parameters:
    group = existing(parameters.get("name"))
    name = parameters["name"]
    if name in RESERVED_GROUPS:
        raise InvalidInput(f"{name} is reserved for the protocol's own tools.", code="system-group")
    check_confirmation(parameters, name, "group")
    if group is not None and group.members:
        raise Conflict(
            f"{group.member_count} consumers of {name} are connected; stop them first.", code="group-has-members"
        )
    return {"name": name}


def existing(name: object) -> ConsumerGroup | None:
    """A consumer group; None for one that is there, but that the snapshot does not show yet. Or NotFound."""
    present = snapshot.current()
    if isinstance(name, str) and name not in present.consumer_groups and was_made("group", name):
        return None
    return present.consumer_group(name)


def _plan(verb: str, parameters: Parameters) -> list[dict[str, str]]:
    what = f"{verb} consumer group {parameters['name']}"
    return [{"node": group.name, "change": what} for group in snapshot.current().facts.groups]


CREATE = Kind("group.create", "Create consumer group", "groups.write", _validate_create, partial(_plan, "create"))
DELETE = Kind("group.delete", "Delete consumer group", "groups.write", _validate_delete, partial(_plan, "delete"))
