"""Sending a test message: what it must be, by the type of its topic, and what became of it."""

from __future__ import annotations

import base64
import binascii
from datetime import datetime
from typing import Any

from django.utils import timezone

from remoting.names import MAX_TOPIC_LENGTH
from remoting.record.layout import MAX_BODY_BYTES
from remoting.record.properties import MAX_USER_PROPERTIES, MAX_USER_PROPERTIES_BYTES
from webapp import gateway, snapshot
from webapp.accounts.permissions import Actor
from webapp.errors import Problem
from webapp.messages.types import COMMIT, DEFAULT_LEVELS, FIELDS, check_type
from webapp.operations.kinds import Done, Kind, Parameters
from webapp.rules import Rules
from webapp.topics.changes import type_of

# What the protocol itself keeps in properties; a person sets some of them by their own fields.
RESERVED_PROPERTIES = frozenset(
    [
        "KEYS",
        "TAGS",
        "UNIQ_KEY",
        "WAIT",
        "MSG_REGION",
        "TRACE_ON",
        "CLUSTER",
        "REAL_TOPIC",
        "REAL_QID",
        "PGROUP",
        "TRAN_MSG",
        "__SHARDINGKEY",
        "DELAY",
        "TIMER_DELAY_SEC",
        "TIMER_DELAY_MS",
        "TIMER_DELIVER_MS",
        "TIMER_DEL_UNIQKEY",
        "TIMER_OUT_MS",
    ]
)


def _validate(actor: Actor, parameters: Parameters) -> Parameters:
    rules = Rules(parameters)
    topic = rules.name("topic", most=MAX_TOPIC_LENGTH, what="topic")
    cleaned: dict[str, Any] = {
        "topic": topic,
        "body_base64": _body(rules, parameters),
        "keys": rules.text("keys", most=1000),
        "tag": rules.text("tag", most=127),
        "properties": _properties(rules, parameters.get("properties")),
        "group": rules.text("group", most=MAX_TOPIC_LENGTH) or None,
    }
    if "|" in cleaned["tag"] or " " in cleaned["tag"]:
        rules.refuse("tag", "must not contain blanks or bars: a bar separates the tags of a subscription")
    if "topic" not in rules.broken:
        levels = delay_levels(cleaned["group"])
        most = levels[-1][0] if levels else DEFAULT_LEVELS
        cleaned |= check_type(rules, type_of(topic), most, timezone.get_current_timezone())
    rules.finish()
    return cleaned


def delay_levels(group: str | None = None) -> list[tuple[int, int]]:
    """The delay levels with their milliseconds, as a master tells them: of a broker group, or of any. Empty while none does."""
    for each in snapshot.current().facts.groups:
        if each.delays is not None and group in (None, each.name):
            return [(level.level, level.delay_ms) for level in each.delays.levels]
    return []


def _body(rules: Rules, parameters: Parameters) -> str:
    """The body, base64; it comes as text (`body`) or as base64 (`body_base64`), never both."""
    text, encoded = parameters.get("body"), parameters.get("body_base64")
    if text and encoded:
        rules.refuse("body", "give either body or body_base64, not both")
        return ""
    if encoded:
        try:
            body = base64.b64decode(str(encoded), validate=True)
        except (binascii.Error, ValueError):
            rules.refuse("body_base64", "must be base64")
            return ""
    else:
        body = str(text or "").encode()
    if not 1 <= len(body) <= MAX_BODY_BYTES:
        rules.refuse("body", f"must have 1 to {MAX_BODY_BYTES} bytes (4 MiB); it has {len(body)}")
        return ""
    return base64.b64encode(body).decode("ascii")


def _properties(rules: Rules, given: Any) -> dict[str, str]:
    """Properties as an object, or as lines `name=value` from a form."""
    if not given:
        return {}
    if isinstance(given, str):
        pairs = [line.partition("=") for line in given.splitlines() if line.strip()]
        if any(not separator for _, separator, _ in pairs):
            rules.refuse("properties", "each line must read name=value")
            return {}
        given = {name.strip(): value.strip() for name, _, value in pairs}
    if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
        rules.refuse("properties", "must be an object of text values")
        return {}
    if (
        len(given) > MAX_USER_PROPERTIES
        or sum(len(f"{name}{value}".encode()) for name, value in given.items()) > MAX_USER_PROPERTIES_BYTES
    ):
        rules.refuse(
            "properties", f"at most {MAX_USER_PROPERTIES} properties and {MAX_USER_PROPERTIES_BYTES} bytes together"
        )
    for name, value in given.items():
        if name in RESERVED_PROPERTIES or not name:
            rules.refuse("properties", f"{name or 'an empty name'} is reserved for the protocol")
        if any(ord(character) < 32 for character in f"{name}{value}"):
            rules.refuse("properties", f"{name} must not contain control characters")
    return dict(given)


def _send(actor: Actor, parameters: Parameters) -> Done:
    wanted = {name: parameters[name] for name in ("topic", "keys", "tag", "group")}
    properties, decision = dict(parameters["properties"]), parameters["decision"]
    if parameters["delay_level"] is not None:
        properties["DELAY"] = str(parameters["delay_level"])
    if parameters["deliver_at"] is not None:
        properties["TIMER_DELIVER_MS"] = str(round(datetime.fromisoformat(parameters["deliver_at"]).timestamp() * 1000))
    with gateway.cluster() as client:
        stored = client.send(
            body=base64.b64decode(parameters["body_base64"]),
            properties=properties,
            message_group=parameters["message_group"] or "",
            transaction=decision is not None,
            **wanted,
        )
    if decision is not None:
        _decide(parameters["topic"], stored, decision)
    # What waits has no place in its topic yet: where it waits is no place to look it up.
    handle = stored.get("recallHandle")
    waits = decision is not None or parameters["delay_level"] is not None or handle is not None
    return Done(
        {
            "message_id": stored.get("msgId"),
            "unique_id": stored.get("transactionId"),
            "group": stored.get("brokerName"),
            "queue_id": int(stored["queueId"]) if "queueId" in stored and not waits else None,
            "queue_offset": stored.get("queueOffset") if not waits else None,
            **({} if handle is None else {"recall_handle": handle}),
            **{field: parameters[field] for field in FIELDS if parameters[field] is not None},
        }
    )


def _decide(topic: str, stored: dict[str, str], decision: str) -> None:
    """End the transaction; a Problem says that the message is stored all the same."""
    try:
        with gateway.cluster() as client:
            client.end_transaction(topic, stored, commit=decision == COMMIT)
    except Problem as problem:
        said = f"The message is stored as a half message, and its {decision} was not confirmed: {problem.detail}"
        raise type(problem)(said, code=problem.code) from problem


def _plan(parameters: Parameters) -> list[dict[str, str]]:
    size = len(base64.b64decode(parameters["body_base64"]))
    return [
        {
            "node": parameters["group"] or "any broker group",
            "change": f"store a message of {size} bytes in {parameters['topic']}",
        }
    ]


def _audited(parameters: Parameters) -> Parameters:
    """What a message says is not kept in operations nor in the audit trail, which others read: its size is, and which properties
    it has."""
    size = len(base64.b64decode(parameters["body_base64"]))
    kept = {name: value for name, value in parameters.items() if name not in ("body_base64", "properties")}
    return {**kept, "body_bytes": size, "property_names": sorted(parameters["properties"])}


SEND = Kind(
    "message.send",
    "Send test message",
    "messages.write",
    _validate,
    _plan,
    target=("topic",),
    inline=_send,
    audited=_audited,
)
