"""Which names topics and groups may have, and which belong to the system (pure)."""

from __future__ import annotations

from typing import Final

from brokerd.metadata.configs import GroupConfig, TopicConfig
from remoting import codes
from remoting.errors import InvalidParameter, RequestError
from remoting.names import (
    BUILT_IN_GROUPS,
    DEAD_LETTER_PREFIX,
    HALF_TOPIC,
    LEGAL_NAME,
    MAX_GROUP_LENGTH,
    MAX_RETRY_TOPIC_LENGTH,
    MAX_TOPIC_LENGTH,
    RESERVED_TOPICS,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    is_system_topic,
)

METADATA_TOPIC: Final = "rmq_sys_logboom_metadata"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
DEVELOPMENT_TEMPLATE_TOPIC: Final = "TBW102"


def check_topic_name(name: str) -> None:
    """Raises InvalidParameter with the rule when a client may not give a topic this name."""
    longest = MAX_RETRY_TOPIC_LENGTH if name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)) else MAX_TOPIC_LENGTH
    _check(name, "topic", longest)


def check_group_name(name: str) -> None:
    """Raises InvalidParameter with the rule when a client may not give a group this name."""
    _check(name, "group", MAX_GROUP_LENGTH)


def is_brokers_group(name: str) -> bool:
    """Whether the broker alone commits offsets of this group: it reads its own topics from there."""
    return name.startswith(SYSTEM_GROUP_PREFIX)


def check_committer(group: str) -> None:
    """Raises RequestError when clients do not commit offsets of this group."""
    if is_brokers_group(group):
        raise RequestError(codes.NO_PERMISSION, f"{group} belongs to the broker; nobody else commits its offsets")


def _check(name: str, what: str, longest: int) -> None:
    if not name:
        raise InvalidParameter(f"a {what} name is required")
    if len(name) > longest:
        raise InvalidParameter(f"a {what} name has at most {longest} characters, {name[:32]!r}... has {len(name)}")
    if not LEGAL_NAME.fullmatch(name):
        raise InvalidParameter(f"a {what} name has letters, digits and the characters % | _ - only, not {name!r}")


class SystemNames:
    """The names that this broker group keeps for itself, and the topics and groups that are there without any record."""

    def __init__(self, cluster_name: str, broker_name: str, *, development: bool, delay_levels: int) -> None:
        own = [
            TopicConfig(cluster_name, 16, 16, 7),
            TopicConfig(broker_name, 1, 1, 7),
            TopicConfig(f"{cluster_name}_REPLY_TOPIC", 1, 1, 6),
            TopicConfig("SELF_TEST_TOPIC", 1, 1, 6),
            TopicConfig(HALF_TOPIC, 1, 1, 6),
            TopicConfig("RMQ_SYS_TRANS_OP_HALF_TOPIC", 1, 1, 6),
            TopicConfig(SCHEDULE_TOPIC, delay_levels, delay_levels, 6),
            TopicConfig(TIMER_TOPIC, 1, 1, 6),
        ]
        if development:
            own.append(TopicConfig(DEVELOPMENT_TEMPLATE_TOPIC, 8, 8, 7))
        self.topics = {config.name: config for config in own}
        self.groups = {name: GroupConfig(name) for name in BUILT_IN_GROUPS}

    def is_system_topic(self, name: str) -> bool:
        """Whether nobody creates, changes or deletes a topic of this name here."""
        return is_system_topic(name) or name in self.topics

    def system_topics(self) -> frozenset[str]:
        """The names of those that cannot be created or deleted, beside everything with the system's prefix."""
        return RESERVED_TOPICS | self.topics.keys()

    def is_system_group(self, name: str) -> bool:
        return name.startswith(SYSTEM_GROUP_PREFIX) or name in self.groups
