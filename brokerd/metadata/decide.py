"""Whether a change of metadata is legal, and the record that makes it (pure, read-only).

Each method of `Rules` returns the record (kind, body), or None when there is nothing to change, or raises RequestError with the
rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from brokerd.metadata import local_policy as local
from brokerd.metadata import records
from brokerd.metadata import tier_policy as tiers
from brokerd.metadata.configs import ORDER_SCOPE, ORDER_SCOPES, GroupConfig, TopicConfig
from brokerd.metadata.consumer_rules import POP, PULL, RequestMode
from brokerd.metadata.invisible_times import INVISIBLE_TIMES, check_invisible_times
from brokerd.metadata.names import SystemNames, check_group_name, check_topic_name
from brokerd.metadata.records import Record
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

MESSAGE_TYPES: Final = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "PRIORITY", "UNSPECIFIED")
UNCHANGEABLE_ATTRIBUTES: Final = {"queue.type": "SimpleCQ", "cleanup.policy": "DELETE"}

Decision = Record | None


class Rules:
    """What may become of the tables.

    `unread_queues(topic)` says how many queues must stay readable so that no unread message disappears.
    """

    def __init__(
        self,
        tables: MetadataTables,
        names: SystemNames,
        now_ms: Callable[[], int],
        unread_queues: Callable[[str], int] = lambda _: 0,
    ) -> None:
        self.tables = tables
        self.names = names
        self.now_ms = now_ms
        self._unread_queues = unread_queues

    def put_topic(self, config: TopicConfig) -> Decision:
        """Create or change a topic for a client."""
        check_topic_name(config.name)
        if self.names.is_system_topic(config.name):
            raise InvalidParameter(f"{config.name} is a system topic and cannot be changed")
        current = self.tables.topics.get(config.name)
        if current is None and len(self.tables.topics) >= MAX_TOPICS:
            raise InvalidParameter(f"a broker group has at most {MAX_TOPICS} topics; delete unused ones")
        self._check_queues(config, current)
        if not 0 <= config.perm <= 7:
            raise InvalidParameter("perm is a sum of 4 (read), 2 (write) and 1 (inherit)")
        _check_attributes(_changed(config.attributes, current))
        return self._put(config) if config != current else None

    def ensure_topic(self, name: str, queues: int, sys_flag: int = 0) -> Decision:
        """Create a retry or dead-letter topic that the broker needs, unless it is there."""
        if name in self.tables.topics:
            return None
        return self._put(TopicConfig(name, queues, queues, 6, sys_flag))

    def topic_like(self, name: str, template: TopicConfig | None, queues: int, *, is_unit: bool) -> Decision:
        """Create a topic that somebody sends to, after a template that allows it: with so many queues, but no more than that
        has."""
        if template is None or not template.perm & PERM_INHERIT:
            return None
        queues = min(queues, template.write_queue_nums)
        sys_flag = _FLAG_UNIT if is_unit else 0
        return self.put_topic(TopicConfig(name, queues, queues, template.perm & ~PERM_INHERIT, sys_flag))

    def delete_topic(self, name: str) -> Decision:
        """Delete a topic with its retry topics of every group; an unknown one is deleted already."""
        if not name:
            raise InvalidParameter("a topic name is required")
        if self.names.is_system_topic(name):
            raise InvalidParameter(f"{name} is a system topic and cannot be deleted")
        topics = self.tables.topics
        if name not in topics:
            return None
        gone = [each for each in topics if each.startswith(RETRY_PREFIX) and each.endswith(f"+{name}")]
        older = (f"{RETRY_PREFIX}{group}_{name}" for group in self.tables.groups)
        gone += [each for each in older if each in topics]
        return self._delete([name, *gone])

    def put_group(self, config: GroupConfig) -> Decision:
        """Create or change a consumer group for a client."""
        current = self.tables.groups.get(config.name)
        check_group_name(config.name)
        if self.names.is_system_group(config.name):
            raise InvalidParameter(f"{config.name} is a system group and cannot be changed")
        if current is None and len(self.tables.groups) >= MAX_GROUPS:
            raise InvalidParameter(f"a broker group has at most {MAX_GROUPS} consumer groups; delete unused ones")
        if not 0 <= config.retry_max_times <= MAX_RETRIES:
            raise InvalidParameter(f"retryMaxTimes must be from 0 to {MAX_RETRIES}")
        if not 0 <= config.retry_queue_nums <= MAX_QUEUES:
            raise InvalidParameter(f"retryQueueNums must be from 0 to {MAX_QUEUES}")
        if not 0 < config.consume_timeout_minutes <= MAX_CONSUME_TIMEOUT_MINUTES:
            raise InvalidParameter(f"consumeTimeoutMinute must be from 1 to {MAX_CONSUME_TIMEOUT_MINUTES}")
        changed = _changed(config.attributes, current)
        if changed.get(ORDER_SCOPE, ORDER_SCOPES[0]) not in ORDER_SCOPES:
            raise InvalidParameter(f"{ORDER_SCOPE} must be {' or '.join(ORDER_SCOPES)}")
        if any(name in changed for name in INVISIBLE_TIMES):
            check_invisible_times(config.attributes)
        if config == current:
            return None
        return records.record(records.GROUP_PUT, self.now_ms(), group=records.encode_group(config))

    def delete_group(self, name: str, *, clean_offsets: bool) -> Decision:
        """Delete a consumer group; an unknown one is deleted already."""
        if not name:
            raise InvalidParameter("a group name is required")
        if self.names.is_system_group(name):
            raise InvalidParameter(f"{name} is a system group and cannot be deleted")
        if name not in self.tables.groups:
            return None
        return records.record(records.GROUP_DELETED, self.now_ms(), name=name, offsets=clean_offsets)

    def delete_retry_topics(self, group: str) -> Decision:
        """With a group go the topics in which its unfinished messages wait: a later group of that name must not get them."""
        own = f"{RETRY_PREFIX}{group}"
        gone = [name for name in self.tables.topics if name == own or name.startswith(f"{own}+")]
        return self._delete(gone) if gone else None

    def request_mode(self, group: str, topic: str, mode: RequestMode) -> Decision:
        """How a group's members ask for a topic's messages. What came back is always pulled."""
        if topic.startswith(RETRY_PREFIX):
            raise RequestError(codes.NO_PERMISSION, "returned messages are always pulled: their topic has no mode")
        modes = self.tables.rules.modes
        self._check_pair(group, topic, len(modes))
        if mode.mode not in (PULL, POP):
            raise InvalidParameter(f"mode must be {PULL} or {POP}, not {mode.mode[:32]!r}")
        if not -1 <= mode.pop_share_queues <= MAX_QUEUES:
            raise InvalidParameter(f"popShareQueueNum must be from -1 to {MAX_QUEUES}")
        if modes.get((group, topic)) == mode:
            return None
        share = mode.pop_share_queues
        return records.record(
            records.REQUEST_MODE, self.now_ms(), group=group, topic=topic, mode=mode.mode, share=share
        )

    def forbid(self, group: str, topic: str, forbidden: bool) -> Decision:
        """Whether a group may not read a topic."""
        present = self.tables.rules.forbidden
        if ((group, topic) in present) == forbidden:
            return None
        self._check_pair(group, topic, len(present))
        return records.record(records.FORBIDDEN, self.now_ms(), group=group, topic=topic, forbidden=forbidden)

    def _put(self, config: TopicConfig) -> Record:
        return records.record(records.TOPIC_PUT, self.now_ms(), topic=records.encode_topic(config))

    def _delete(self, names: list[str]) -> Record:
        return records.record(records.TOPICS_DELETED, self.now_ms(), names=names)

    def _check_pair(self, group: str, topic: str, count: int) -> None:
        if topic not in self.tables.topics and topic not in self.names.topics:
            raise RequestError(codes.TOPIC_NOT_EXIST, f"topic {topic} does not exist; create it first")
        if group not in self.tables.groups and group not in self.names.groups:
            raise RequestError(
                codes.SUBSCRIPTION_GROUP_NOT_EXIST, f"consumer group {group} does not exist; create it first"
            )
        if count >= MAX_RULES:
            raise InvalidParameter(
                f"a broker group keeps at most {MAX_RULES} such rules; delete unused groups and topics"
            )

    def _check_queues(self, config: TopicConfig, current: TopicConfig | None) -> None:
        read, write = config.read_queue_nums, config.write_queue_nums
        if not 1 <= write <= MAX_QUEUES or not 1 <= read <= MAX_QUEUES:
            raise InvalidParameter(
                f"a topic has from 1 to {MAX_QUEUES} queues, not {read} to read and {write} to write"
            )
        if read < write:
            raise InvalidParameter(
                f"{config.name} would have {write} queues to write and {read} to read: what is written to the others could "
                "never be read; give it at least as many queues to read as to write"
            )
        if (
            current is not None
            and read < current.read_queue_nums
            and read < (unread := self._unread_queues(config.name))
        ):
            raise InvalidParameter(
                f"queues {read} to {unread - 1} of {config.name} hold messages that were not consumed; lower the number "
                "of queues to write first, and the number to read when they are consumed"
            )


def _changed(attributes: Mapping[str, str], current: TopicConfig | GroupConfig | None) -> Mapping[str, str]:
    """Those that are not what they are already. What was taken over from RocketMQ was not checked, and what is wrong in it keeps
    nothing else from being changed."""
    if current is None:
        return attributes
    return {key: value for key, value in attributes.items() if current.attributes.get(key) != value}


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
        elif key in (tiers.ENABLE, tiers.RESERVE_TIME, tiers.EXPORT, tiers.ARCHIVE):
            problem = tiers.problem_of(key, value)
            legal, rule = problem is None, problem or ""
        elif key == local.RESERVE_TIME:
            problem = local.problem_of(key, value)
            legal, rule = problem is None, problem or ""
        else:
            raise RequestError(codes.SYSTEM_ERROR, f"unsupported topic attribute {key!r}")
        if not legal:
            raise RequestError(codes.SYSTEM_ERROR, f"the topic attribute {key} must be {rule}, not {value!r}")
