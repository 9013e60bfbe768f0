"""Creating, changing and deleting consumer groups."""

from __future__ import annotations

from functools import partial

from remoting.facts.snapshot import ConsumerGroup
from remoting.group_settings import NAMES, ORDER_SCOPES, named_settings
from remoting.names import MAX_GROUP_LENGTH
from webapp import snapshot
from webapp.accounts.permissions import Actor
from webapp.errors import Conflict, InvalidInput
from webapp.groups.settings import BOUNDS, check_settings, configured
from webapp.operations.kinds import Kind, Parameters
from webapp.operations.recent import was_made
from webapp.rules import RESERVED_GROUPS, Rules, check_confirmation

DEFAULT_ATTEMPTS = 16


def _validate_create(actor: Actor, parameters: Parameters) -> Parameters:
    given = {name: value for name, value in parameters.items() if value not in (None, "")}
    given.setdefault("order_scope", ORDER_SCOPES[0])
    rules = Rules(given)
    cleaned = {
        "name": rules.name("name", most=MAX_GROUP_LENGTH, what="consumer group"),
        "fifo": rules.flag("fifo"),
        "retry_max_times": rules.integer("retry_max_times", least=0, most=1000, default=DEFAULT_ATTEMPTS),
        **check_settings(rules, given, {}),
    }
    if cleaned["name"] in RESERVED_GROUPS:
        rules.refuse("name", "is reserved for the protocol's own tools")
    rules.finish()
    if cleaned["name"] in snapshot.current().consumer_groups and was_made("group", cleaned["name"]) is not False:
        raise Conflict(f"The consumer group {cleaned['name']} exists already.", code="group-exists")
    return cleaned


def _validate_update(actor: Actor, parameters: Parameters) -> Parameters:
    existing(parameters.get("name"))
    name = parameters["name"]
    if name in RESERVED_GROUPS:
        raise InvalidInput(f"{name} is reserved for the protocol's own tools.", code="system-group")
    named = named_settings(parameters)
    if not named:
        raise InvalidInput(f"Name at least one of {', '.join(NAMES)}.")
    rules = Rules(parameters)
    present = configured(name) if 0 < len(named.keys() & set(BOUNDS)) < len(BOUNDS) else {}
    cleaned = check_settings(rules, named, present)
    rules.finish()
    return {"name": name, **cleaned}


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


def _plan_update(parameters: Parameters) -> list[dict[str, str]]:
    settings = named_settings(parameters).items()
    words = ", ".join(f"no {name}" if value is None else f"{name} {value}" for name, value in settings)
    return [{**each, "change": f"{each['change']}: {words}"} for each in _plan("change", parameters)]


def _plan(verb: str, parameters: Parameters) -> list[dict[str, str]]:
    what = f"{verb} consumer group {parameters['name']}"
    return [{"node": group.name, "change": what} for group in snapshot.current().facts.groups]


CREATE = Kind("group.create", "Create consumer group", "groups.write", _validate_create, partial(_plan, "create"))
UPDATE = Kind("group.update", "Change consumer group", "groups.write", _validate_update, _plan_update)
DELETE = Kind(
    "group.delete",
    "Delete consumer group",
    "groups.write",
    _validate_delete,
    partial(_plan, "delete"),
    is_dangerous=True,
)
