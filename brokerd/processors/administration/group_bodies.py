"""A consumer group's configuration as the protocol writes it (pure).

Members that are not known are left out, null is the same as missing, and everything is bounded before it is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from brokerd.members.consumer_groups import MAX_SUBSCRIPTIONS
from brokerd.metadata.configs import GroupConfig
from brokerd.processors import bodies
from remoting.errors import InvalidParameter

MAX_ATTRIBUTES: Final = 64
_MAX_TEXT: Final = 8192
_MAX_DELAYS: Final = 64
_MAX_DELAY_MS: Final = 30 * 24 * 3_600_000
_POLICIES: Final = ("CUSTOMIZED", "EXPONENTIAL")


def group_json(config: GroupConfig) -> dict[str, Any]:
    """The configuration, every member of it."""
    return {
        "attributes": dict(config.attributes),
        "brokerId": config.read_broker_id,
        "consumeBroadcastEnable": config.broadcast_enable,
        "consumeEnable": config.consume_enable,
        "consumeFromMinEnable": config.consume_from_min_enable,
        "consumeMessageOrderly": config.fifo,
        "consumeTimeoutMinute": config.consume_timeout_minutes,
        "groupName": config.name,
        "groupRetryPolicy": config.retry_policy or {"type": _POLICIES[0]},
        "groupSysFlag": config.group_sys_flag,
        "notifyConsumerIdsChangedEnable": config.notify_ids_changed,
        "retryMaxTimes": config.retry_max_times,
        "retryQueueNums": config.retry_queue_nums,
        "whichBrokerWhenConsumeSlowly": config.read_broker_id_when_slow,
        **({"subscriptionDataSet": list(config.subscriptions)} if config.subscriptions is not None else {}),
    }


def decode_group(document: dict[str, Any], present: Mapping[str, str]) -> GroupConfig:
    """The configuration that a document describes; `present` are the group's attributes until now. Raises InvalidParameter."""
    return GroupConfig(
        name=bodies.text(document, "groupName"),
        fifo=bodies.boolean(document, "consumeMessageOrderly", False),
        retry_max_times=bodies.integer(document, "retryMaxTimes", 16),
        consume_enable=bodies.boolean(document, "consumeEnable", True),
        broadcast_enable=bodies.boolean(document, "consumeBroadcastEnable", True),
        retry_queue_nums=bodies.integer(document, "retryQueueNums", 1),
        consume_from_min_enable=bodies.boolean(document, "consumeFromMinEnable", True),
        read_broker_id=bodies.integer(document, "brokerId", 0),
        read_broker_id_when_slow=bodies.integer(document, "whichBrokerWhenConsumeSlowly", 1),
        notify_ids_changed=bodies.boolean(document, "notifyConsumerIdsChangedEnable", True),
        group_sys_flag=bodies.integer(document, "groupSysFlag", 0),
        consume_timeout_minutes=bodies.integer(document, "consumeTimeoutMinute", 15),
        retry_policy=_retry_policy(document),
        subscriptions=_subscriptions(document),
        attributes=_attributes(document, present),
    )


def _retry_policy(document: dict[str, Any]) -> dict[str, Any] | None:
    """None for the usual delays."""
    policy = bodies.member(document, "groupRetryPolicy")
    if policy is None:
        return None
    kind = bodies.enumeration(policy, "type", _POLICIES, _POLICIES[0])
    customized, exponential = (
        bodies.member(policy, "customizedRetryPolicy"),
        bodies.member(policy, "exponentialRetryPolicy"),
    )
    found: dict[str, Any] = {"type": kind}
    if customized is not None:
        delays = customized.get("next") or []
        if not isinstance(delays, list) or len(delays) > _MAX_DELAYS:
            raise InvalidParameter(f"customizedRetryPolicy.next must be a list of at most {_MAX_DELAYS} delays")
        found["customizedRetryPolicy"] = {"next": [_delay_ms({"next": each}, "next", 0) for each in delays]}
    if exponential is not None:
        multiplier = bodies.integer(exponential, "multiplier", 2)
        if not 1 <= multiplier <= 1000:
            raise InvalidParameter("exponentialRetryPolicy.multiplier must be from 1 to 1000")
        found["exponentialRetryPolicy"] = {
            "initial": _delay_ms(exponential, "initial", 5_000),
            "max": _delay_ms(exponential, "max", 7_200_000),
            "multiplier": multiplier,
        }
    return found if len(found) > 1 or kind != _POLICIES[0] else None


def _delay_ms(document: dict[str, Any], name: str, default: int) -> int:
    found = bodies.integer(document, name, default)
    if not 0 <= found <= _MAX_DELAY_MS:
        raise InvalidParameter(f"a retry policy's {name} must be from 0 to {_MAX_DELAY_MS} ms")
    return found


def _subscriptions(document: dict[str, Any]) -> list[dict[str, Any]] | None:
    if document.get("subscriptionDataSet") is None:
        return None
    return [
        {
            "expression": _bounded_text(each, "expression", "*"),
            "expressionType": _bounded_text(each, "expressionType", "TAG"),
            "topic": _bounded_text(each, "topic", ""),
            "version": bodies.integer(each, "version"),
        }
        for each in bodies.objects(document, "subscriptionDataSet", MAX_SUBSCRIPTIONS)
    ]


def _attributes(document: dict[str, Any], present: Mapping[str, str]) -> dict[str, str]:
    """The attributes after the changes that the document names: `+key` sets, `-key` removes, a key alone sets too."""
    changes = bodies.member(document, "attributes") or {}
    found = dict(present)
    for name in changes:
        value = _bounded_text(changes, name, "")
        if name.startswith("-"):
            found.pop(name[1:], None)
        else:
            found[name.removeprefix("+")] = value
    if len(found) > MAX_ATTRIBUTES or not all(0 < len(name) <= _MAX_TEXT for name in found):
        raise InvalidParameter(f"a group has at most {MAX_ATTRIBUTES} attributes, each with a name")
    return found


def _bounded_text(document: dict[str, Any], name: str, default: str) -> str:
    found = bodies.text(document, name, default)
    if len(found) > _MAX_TEXT:
        raise InvalidParameter(f"{name[:80]} is longer than {_MAX_TEXT} characters")
    return found
