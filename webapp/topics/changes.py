"""Creating, changing and deleting topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from remoting.names import MAX_TOPIC_LENGTH, is_dead_letter_topic, is_retry_topic, is_system_topic
from webapp import gateway, snapshot
from webapp.accounts.permissions import Actor
from webapp.errors import Conflict, InvalidInput, NotFound
from webapp.operations.kinds import Kind, Parameters
from webapp.operations.recent import was_made
from webapp.rules import MAX_QUEUES, PERMISSION_BITS, TOPIC_TYPES, Rules, check_confirmation

DEFAULT_QUEUES = 8
MAX_RESERVE_HOURS = 876_000
_MOST_DIGITS = 16
EXPORT_FORMATS = ("none", "parquet")


def _validate(parameters: Parameters, type_now: str = "NORMAL") -> Parameters:
    """`type_now` is what the topic is already, which may be a type that nobody could give it here."""
    rules = Rules(parameters)
    types = TOPIC_TYPES if type_now in TOPIC_TYPES else (*TOPIC_TYPES, type_now)
    cleaned = {
        "name": rules.name("name", most=MAX_TOPIC_LENGTH, what="topic"),
        "type": rules.choice("type", types, default="NORMAL"),
        "queues": rules.integer("queues", least=1, most=MAX_QUEUES, default=DEFAULT_QUEUES),
        "perm": rules.choice("perm", tuple(PERMISSION_BITS), default=6),
        "group": rules.text("group", most=MAX_TOPIC_LENGTH) or None,
    }
    if rules.has("local_reserve_time"):
        cleaned["local_reserve_time"] = _hours(rules, "local_reserve_time")
    if rules.has("tier_enable"):
        cleaned["tier_enable"] = rules.flag("tier_enable")
    if rules.has("tier_reserve_time"):
        cleaned["tier_reserve_time"] = _hours(rules, "tier_reserve_time")
    if rules.has("tier_archive"):
        cleaned["tier_archive"] = rules.flag("tier_archive")
    if rules.has("tier_export"):
        cleaned["tier_export"] = rules.choice("tier_export", EXPORT_FORMATS)
    if is_system_topic(cleaned["name"]):
        rules.refuse(
            "name", "is reserved: names that start with rmq_sys_ and the protocol's own topics belong to the cluster"
        )
    if is_retry_topic(cleaned["name"]) or is_dead_letter_topic(cleaned["name"]):
        rules.refuse("name", "must not start with %RETRY% or %DLQ%: the cluster makes those topics itself")
    groups = {group.name for group in snapshot.current().facts.groups}
    if cleaned["group"] is not None and groups and cleaned["group"] not in groups:
        rules.refuse("group", f"must be a broker group of this cluster: {', '.join(sorted(groups))}")
    rules.finish()
    return cleaned


def _hours(rules: Rules, field: str) -> int:
    hours = rules.integer(field, least=-1, most=MAX_RESERVE_HOURS)
    if hours == 0:
        rules.refuse(field, "must be at least one hour, or -1: as long as the brokers say")
    return hours


def _validate_create(actor: Actor, parameters: Parameters) -> Parameters:
    cleaned = _validate(parameters)
    if cleaned["name"] in snapshot.current().topics and was_made("topic", cleaned["name"]) is not False:
        raise Conflict(f"The topic {cleaned['name']} exists already; edit it instead.", code="topic-exists")
    return cleaned


def _validate_update(actor: Actor, parameters: Parameters) -> Parameters:
    name = existing(parameters.get("name"))
    given = {field: value for field, value in parameters.items() if value is not None}
    if {"type", "queues", "perm"} <= given.keys() and given["type"] in TOPIC_TYPES:
        return _validate(given)
    present = configuration(name)
    return _validate({**present, **given}, present["type"])  # what is not asked for stays as the brokers have it


def configuration(name: str) -> Parameters:
    """The topic's type, queues and permission as the brokers have them now, and what it says of how it is kept, if it does."""
    return configuration_and_oddities(name)[0]


def configuration_and_oddities(name: str) -> tuple[Parameters, dict[str, str]]:
    """The same; and the attributes whose values mean nothing, as of a topic that was taken over from RocketMQ, where they were
    not checked. They stay till somebody sets them right."""
    with gateway.cluster() as client:
        found = client.topic_config(name)
    if not found:
        raise NotFound(f"There is no topic {name}.", code="topic-not-found")
    one = next(iter(found.values()))
    attributes = one.get("attributes") or {}
    message_type = attributes.get("message.type") or attributes.get("+message.type") or "NORMAL"
    kept: Parameters = {}
    odd = {} if message_type in TOPIC_TYPES else {"message.type": message_type}
    for field, (key, read) in _KEPT.items():
        value = read(attributes[key]) if key in attributes else None
        if value is not None:
            kept[field] = value
        elif key in attributes:
            odd[key] = attributes[key]
    queues, perm = one.get("writeQueueNums", DEFAULT_QUEUES), one.get("perm", 6) & 6
    return {**kept, "type": message_type, "queues": queues, "perm": perm}, odd


def _hours_told(text: str) -> int | None:
    """None where an attribute says no number of hours: what was taken over from RocketMQ was not checked."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
    return int(text) if text == "-1" or (is_number and 0 < int(text) <= MAX_RESERVE_HOURS) else None


# By field: the attribute that says it, and what its value means; None = nothing
_KEPT: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "local_reserve_time": ("local.reserve.time", _hours_told),
    "tier_reserve_time": ("tier.reserve.time", _hours_told),
    "tier_enable": ("tier.enable", {"true": True, "false": False}.get),
    "tier_archive": ("tier.archive", {"true": True, "false": False}.get),
    "tier_export": ("tier.export", {each: each for each in EXPORT_FORMATS}.get),
}


def _validate_delete(actor: Actor, parameters: Parameters) -> Parameters:
    name = existing(parameters.get("name"))
    check_confirmation(parameters, name, "topic")
    return {"name": name}


def existing(name: object) -> str:
    """The name of a topic that is no system topic, also of one that the snapshot does not show yet; or NotFound."""
    present = snapshot.current()
    if isinstance(name, str) and name not in present.topics and was_made("topic", name):
        return name
    topic = present.topic(name)
    if topic.system:
        raise InvalidInput(f"{name} is a system topic; the cluster keeps it for itself.", code="system-topic")
    return topic.name


def type_of(name: str) -> str:
    """The type of a topic that is no system topic: by the snapshot if it has it, else by the brokers' word; or NotFound."""
    present = snapshot.current()
    if present.data is None:
        if is_system_topic(name):
            raise InvalidInput(f"{name} is a system topic; the cluster keeps it for itself.", code="system-topic")
    else:
        existing(name)
    known = present.topics.get(name)
    return known.type if known is not None else configuration(name)["type"]


def _validate_open_gate(actor: Actor, parameters: Parameters) -> Parameters:
    rules = Rules(parameters)
    cleaned = {
        "name": rules.name("name", most=MAX_TOPIC_LENGTH, what="topic"),
        "group": rules.text("group", least=1, most=MAX_TOPIC_LENGTH),
        "source": rules.text("source", least=1, most=MAX_TOPIC_LENGTH),
    }
    rules.finish()
    present = snapshot.current()
    if present.data is not None and cleaned["group"] not in {each.name for each in present.facts.groups}:
        raise NotFound(f"There is no broker group {cleaned['group']}.", code="group-not-found")
    return cleaned


def _plan_open_gate(parameters: Parameters) -> list[dict[str, str]]:
    change = f"ordered groups wait no more for what of {parameters['name']} lies in {parameters['source']}"
    return [{"node": parameters["group"], "change": change}]


def _plan(verb: str, parameters: Parameters) -> list[dict[str, str]]:
    what = f"{verb} {parameters['name']}"
    if "queues" in parameters:
        what += f": {parameters['queues']} queues, {parameters['type']}, {PERMISSION_BITS[parameters['perm']]}"
    if "local_reserve_time" in parameters:
        hours = parameters["local_reserve_time"]
        what += "; its messages stay in the brokers' files "
        what += "as long as the brokers say" if hours < 0 else f"for {hours} hours at least"
    if "tier_enable" in parameters:
        what += "; its messages are kept in the tier"
        if not parameters["tier_enable"]:
            what += " no more: what is there stays until its time is over"
    if "tier_reserve_time" in parameters:
        hours = parameters["tier_reserve_time"]
        what += f"; the tier keeps them {'as long as the brokers say' if hours < 0 else f'for {hours} hours'}"
    if "tier_archive" in parameters:
        what += f"; what is merged there from now on is {'' if parameters['tier_archive'] else 'not '}compressed"
    if "tier_export" in parameters:
        is_wanted = parameters["tier_export"] != "none"
        what += "; workers write it as Parquet, too" if is_wanted else "; nothing more is written as Parquet"
    return [
        {"node": group.name, "change": what}
        for group in snapshot.current().facts.groups
        if parameters.get("group") in (None, group.name)
    ]


CREATE = Kind("topic.create", "Create topic", "topics.write", _validate_create, partial(_plan, "create"))
UPDATE = Kind("topic.update", "Change topic", "topics.write", _validate_update, partial(_plan, "change"))
DELETE = Kind(
    "topic.delete", "Delete topic", "topics.write", _validate_delete, partial(_plan, "delete"), is_dangerous=True
)


def _validate_export(actor: Actor, parameters: Parameters) -> Parameters:
    rules = Rules(parameters)
    cleaned = {"name": rules.name("name", most=MAX_TOPIC_LENGTH, what="topic")}
    rules.finish()
    if snapshot.current().data is not None:
        existing(cleaned["name"])
    return cleaned


def _plan_export(parameters: Parameters) -> list[dict[str, str]]:
    change = f"{parameters['name']}: write what is due to Parquet files in the tier, and remove what is not kept"
    return [{"node": group.name, "change": change} for group in snapshot.current().facts.groups]


EXPORT = Kind("tier.export", "Export to Parquet", "topics.write", _validate_export, _plan_export)
OPEN_GATE = Kind(
    "topic.open-gate",
    "Stop waiting for a broker group",
    "topics.write",
    _validate_open_gate,
    _plan_open_gate,
    target=("name", "group", "source"),
)
