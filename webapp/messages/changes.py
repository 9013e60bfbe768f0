"""Sending a test message."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from remoting.names import MAX_TOPIC_LENGTH
from remoting.record.layout import MAX_BODY_BYTES
from remoting.record.properties import MAX_USER_PROPERTIES, MAX_USER_PROPERTIES_BYTES
from webapp import gateway, snapshot
from webapp.accounts.permissions import Actor
from webapp.errors import InvalidInput
from webapp.operations.kinds import Done, Kind, Parameters
from webapp.rules import Rules

# What the protocol itself keeps in properties; a person sets the first two by their own fields.
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
    rules.finish()
    present = snapshot.current()
    if present.data is not None and present.topic(topic).system:
        raise InvalidInput(f"{topic} is a system topic; the cluster keeps it for itself.", code="system-topic")
    return cleaned


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
    wanted = {name: parameters[name] for name in ("topic", "keys", "tag", "properties", "group")}
    with gateway.cluster() as client:
        stored = client.send(body=base64.b64decode(parameters["body_base64"]), **wanted)
    return Done(
        {
            "message_id": stored.get("msgId"),
            "group": stored.get("brokerName"),
            "queue_id": int(stored["queueId"]) if "queueId" in stored else None,
            "queue_offset": stored.get("queueOffset"),
        }
    )


def _plan(parameters: Parameters) -> list[dict[str, str]]:
    size = len(base64.b64decode(parameters["body_base64"]))
    return [
        {
            "node": parameters["group"] or "any broker group",
            "change": f"store a message of {size} bytes in {parameters['topic']}",
        }
    ]


def _audited(parameters: Parameters) -> Parameters:
    """The body itself is not kept in the audit trail, only its size."""
    size = len(base64.b64decode(parameters["body_base64"]))
    return {**{name: value for name, value in parameters.items() if name != "body_base64"}, "body_bytes": size}


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
