"""Whether a change of metadata is legal, and the record that makes it (pure, read-only).

Each function returns the record (kind, body), or None when there is nothing to change, or raises RequestError with the rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from brokerd.metadata import records
from brokerd.metadata.configs import GroupConfig, TopicConfig
from brokerd.metadata.consumer_rules import POP, PULL, RequestMode
from brokerd.metadata.names import SystemNames, check_group_name, check_topic_name
from brokerd.metadata.tables import MetadataTables
from remoting import codes
from remoting.errors import InvalidParameter, RequestError
from remoting.names import RETRY_PREFIX

MAX_QUEUES: Final = 4096
MAX_TOPICS: Final = 50_000
MAX_GROUPS: Final = 50_000
PERM_INHERIT: Final = 1
_FLAG_UNIT: Final = 1
MAX_RETRIES: Final = 10_000
MAX_RULES: Final = 100_000
MAX_CONSUME_TIMEOUT_MINUTES: Final = 7 * 24 * 60

MESSAGE_TYPES: Final = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "UNSPECIFIED")
UNCHANGEABLE_ATTRIBUTES: Final = {"queue.type": "SimpleCQ", "cleanup.policy": "DELETE"}

Decision = tuple[str, Any] | None


def decide_put_topic(
    tables: MetadataTables, names: SystemNames, config: TopicConfig, unread_queues: int, now_ms: int
) -> Decision:
    """Create or change a topic for a client. `unread_queues`: see `_check_queues`."""
    check_topic_name(config.name)
    if names.is_system_topic(config.name):
        raise InvalidParameter(f"{config.name} is a system topic and cannot be changed")
    current = tables.topics.get(config.name)
    if current is None and len(tables.topics) >= MAX_TOPICS:
        raise InvalidParameter(f"a broker group has at most {MAX_TOPICS} topics; delete unused ones")
    _check_queues(config, current, unread_queues)
    if not 0 <= config.perm <= 7:
        raise InvalidParameter("perm is a sum of 4 (read), 2 (write) and 1 (inherit)")
    _check_attributes(config.attributes)
    if config == current:
        return None
    return records.TOPIC_PUT, records.topic_put(config, now_ms)


def decide_ensure_topic(tables: MetadataTables, name: str, queues: int, now_ms: int, sys_flag: int = 0) -> Decision:
    """Create a retry or dead-letter topic that the broker needs, unless it is there."""
    if name in tables.topics:
        return None
    return records.TOPIC_PUT, records.topic_put(TopicConfig(name, queues, queues, 6, sys_flag), now_ms)


def decide_topic_like(
    tables: MetadataTables,
    names: SystemNames,
    name: str,
    template: TopicConfig | None,
    queues: int,
    is_unit: bool,
    now_ms: int,
) -> Decision:
    """Create a topic that somebody sends to, after a template that allows it: with so many queues, but no more than that has."""
    if template is None or not template.perm & PERM_INHERIT:
        return None
    queues = min(queues, template.write_queue_nums)
    config = TopicConfig(name, queues, queues, template.perm & ~PERM_INHERIT, _FLAG_UNIT if is_unit else 0)
    return decide_put_topic(tables, names, config, 0, now_ms)


def decide_delete_topic(tables: MetadataTables, names: SystemNames, name: str, now_ms: int) -> Decision:
    """Delete a topic with its retry topics of every group; an unknown one is deleted already."""
    if not name:
        raise InvalidParameter("a topic name is required")
    if names.is_system_topic(name):
        raise InvalidParameter(f"{name} is a system topic and cannot be deleted")
    if name not in tables.topics:
        return None
    suffix = f"+{name}"
    gone = [each for each in tables.topics if each.startswith(RETRY_PREFIX) and each.endswith(suffix)]
    older = (f"{RETRY_PREFIX}{group}_{name}" for group in tables.groups)
    gone += [each for each in older if each in tables.topics]
    return records.TOPICS_DELETED, records.topics_deleted([name, *gone], now_ms)


def decide_put_group(tables: MetadataTables, names: SystemNames, config: GroupConfig, now_ms: int) -> Decision:
    """Create or change a consumer group for a client."""
    check_group_name(config.name)
    if names.is_system_group(config.name):
        raise InvalidParameter(f"{config.name} is a system group and cannot be changed")
    current = tables.groups.get(config.name)
    if current is None and len(tables.groups) >= MAX_GROUPS:
        raise InvalidParameter(f"a broker group has at most {MAX_GROUPS} consumer groups; delete unused ones")
    if not 0 <= config.retry_max_times <= MAX_RETRIES:
        raise InvalidParameter(f"retryMaxTimes must be from 0 to {MAX_RETRIES}")
    if not 0 <= config.retry_queue_nums <= MAX_QUEUES:
        raise InvalidParameter(f"retryQueueNums must be from 0 to {MAX_QUEUES}")
    if not 0 < config.consume_timeout_minutes <= MAX_CONSUME_TIMEOUT_MINUTES:
        raise InvalidParameter(f"consumeTimeoutMinute must be from 1 to {MAX_CONSUME_TIMEOUT_MINUTES}")
    if config == current:
        return None
    return records.GROUP_PUT, records.group_put(config, now_ms)


def decide_delete_group(
    tables: MetadataTables, names: SystemNames, name: str, clean_offsets: bool, now_ms: int
) -> Decision:
    """Delete a consumer group; an unknown one is deleted already."""
    if not name:
        raise InvalidParameter("a group name is required")
    if names.is_system_group(name):
        raise InvalidParameter(f"{name} is a system group and cannot be deleted")
    if name not in tables.groups:
        return None
    return records.GROUP_DELETED, records.group_deleted(name, clean_offsets, now_ms)


def decide_delete_retry_topics(tables: MetadataTables, group: str, now_ms: int) -> Decision:
    """With a group go the topics in which its unfinished messages wait: a later group of that name must not get them."""
    prefix = f"{RETRY_PREFIX}{group}+"
    own = f"{RETRY_PREFIX}{group}"
    gone = [name for name in tables.topics if name == own or name.startswith(prefix)]
    return (records.TOPICS_DELETED, records.topics_deleted(gone, now_ms)) if gone else None


def decide_request_mode(
    tables: MetadataTables, group: str, topic: str, mode: RequestMode, has_topic: bool, has_group: bool, now_ms: int
) -> Decision:
    """How a group's members ask for a topic's messages. What came back is always pulled."""
    if topic.startswith(RETRY_PREFIX):
        raise RequestError(codes.NO_PERMISSION, "returned messages are always pulled: their topic has no mode")
    _check_pair(group, topic, has_topic, has_group, len(tables.rules.modes))
    if mode.mode not in (PULL, POP):
        raise InvalidParameter(f"mode must be {PULL} or {POP}, not {mode.mode[:32]!r}")
    if not -1 <= mode.pop_share_queues <= MAX_QUEUES:
        raise InvalidParameter(f"popShareQueueNum must be from -1 to {MAX_QUEUES}")
    if tables.rules.modes.get((group, topic)) == mode:
        return None
    return records.REQUEST_MODE, records.request_mode(group, topic, *mode, now_ms)


def decide_forbid(
    tables: MetadataTables, group: str, topic: str, forbidden: bool, has_topic: bool, has_group: bool, now_ms: int
) -> Decision:
    """Whether a group may not read a topic."""
    if ((group, topic) in tables.rules.forbidden) == forbidden:
        return None
    _check_pair(group, topic, has_topic, has_group, len(tables.rules.forbidden))
    return records.FORBIDDEN, records.forbidden(group, topic, forbidden, now_ms)


def _check_pair(group: str, topic: str, has_topic: bool, has_group: bool, count: int) -> None:
    if not has_topic:
        raise RequestError(codes.TOPIC_NOT_EXIST, f"topic {topic} does not exist; create it first")
    if not has_group:
        raise RequestError(
            codes.SUBSCRIPTION_GROUP_NOT_EXIST, f"consumer group {group} does not exist; create it first"
        )
    if count >= MAX_RULES:
        raise InvalidParameter(f"a broker group keeps at most {MAX_RULES} such rules; delete unused groups and topics")


def _check_queues(config: TopicConfig, current: TopicConfig | None, unread_queues: int) -> None:
    """`unread_queues`: how many queues must stay readable so that no unread message disappears."""
    read, write = config.read_queue_nums, config.write_queue_nums
    if not 1 <= write <= MAX_QUEUES or not 1 <= read <= MAX_QUEUES:
        raise InvalidParameter(f"a topic has from 1 to {MAX_QUEUES} queues, not {read} to read and {write} to write")
    if read < write:
        raise InvalidParameter(
            f"{config.name} would have {write} queues to write and {read} to read: what is written to the others could "
            "never be read; give it at least as many queues to read as to write"
        )
    if current is not None and read < current.read_queue_nums and read < unread_queues:
        raise InvalidParameter(
            f"queues {read} to {unread_queues - 1} of {config.name} hold messages that were not consumed; lower the number "
            "of queues to write first, and the number to read when they are consumed"
        )


def _check_attributes(attributes: Mapping[str, str]) -> None:
    for key, value in attributes.items():
        if key == "message.type":
            legal = value in MESSAGE_TYPES
            rule = "one of " + ", ".join(MESSAGE_TYPES)
        elif key in UNCHANGEABLE_ATTRIBUTES:
            legal = value == UNCHANGEABLE_ATTRIBUTES[key]
            rule = f"{UNCHANGEABLE_ATTRIBUTES[key]} in this version"
        elif key == "reserve.time":
            legal = value == "-1" or (value.isdecimal() and len(value) < 16)
            rule = "-1 or a number of milliseconds"
        else:
            raise RequestError(codes.SYSTEM_ERROR, f"unsupported topic attribute {key!r}")
        if not legal:
            raise RequestError(codes.SYSTEM_ERROR, f"the topic attribute {key} must be {rule}, not {value!r}")
