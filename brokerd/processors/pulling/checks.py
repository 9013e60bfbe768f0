"""Whether a pull is served at all: the checks, in the order in which clients and tools of the protocol expect their answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from brokerd.filters.message_filter import MessageFilter, compile_filter
from brokerd.members.consumer_groups import BROADCASTING, ConsumerGroup, Subscription
from brokerd.members.registry import ClientRegistry
from brokerd.metadata.configs import PERM_READ, GroupConfig, TopicConfig
from brokerd.metadata.groups import ensure_group
from brokerd.metadata.service import MetadataService
from brokerd.processors import fields
from remoting import codes
from remoting.errors import InvalidParameter, RequestError
from remoting.names import RETRY_PREFIX

FLAG_COMMIT: Final = 1
FLAG_SUSPEND: Final = 2
FLAG_SUBSCRIPTION: Final = 4

BY_GROUP: Final = 2
BY_TOPIC: Final = 3
BY_BROADCAST: Final = 4
BY_SUBSCRIPTION: Final = 5

_small: Final = fields.SMALL.get


class Forbidden(RequestError):
    """A pull that would be served but for a permission; `kind` says whose, as the answer's `forbiddenType`."""

    def __init__(self, kind: int, message: str) -> None:
        super().__init__(codes.NO_PERMISSION, message)
        self.kind = kind


class Checked(NamedTuple):
    """What a pull that passed reads, and what that was found out from. `subscription` is the group's, of which the request means
    a version; None when it brought its own."""

    group: str
    group_config: GroupConfig
    topic: str
    topic_config: TopicConfig
    queue_id: int
    flags: int
    message_filter: MessageFilter
    subscription: Subscription | None = None
    version: int = 0


class PullChecks:
    """Checks 3 and later; whether this broker answers pulls at all is `ReadPlace`'s. `may_create` = it may make groups."""

    def __init__(self, metadata: MetadataService, clients: ClientRegistry, may_create: Callable[[], bool]) -> None:
        self.metadata = metadata
        self.rules = metadata.tables.rules
        self._tables = metadata.tables
        self._forbidden = self.rules.forbidden
        self._clients = clients
        self._may_create = may_create

    def check(self, connection: object, group: str, ext: dict[str, str]) -> Checked:
        """Raises RequestError for the first check that fails."""
        group_config = self._group(group)
        topic_config, topic, queue_id = self._queue(ext)
        flags = _small(ext.get("sysFlag", ""))
        if flags is None:
            flags = fields.integer(ext, "sysFlag", 0, high=fields.MAX_INT)
        present = self._clients.consumer_group(group)
        if flags & FLAG_SUBSCRIPTION:
            message_filter = _compiled(topic, ext.get("expressionType", ""), ext.get("subscription", ""))
        elif present is None:
            raise RequestError(
                codes.SUBSCRIPTION_NOT_EXIST, f"no consumer of {group} sent a heartbeat to this broker yet"
            )
        if _is_broadcast_wrong(present, group_config):
            raise Forbidden(BY_BROADCAST, f"consumer group {group} may not consume by broadcast")
        if self._forbidden:
            self.check_forbidden(group, topic)
        if flags & FLAG_SUBSCRIPTION:
            return Checked(group, group_config, topic, topic_config, queue_id, flags, message_filter)
        assert present is not None
        version = fields.integer(ext, "subVersion", 0, low=-1)
        subscription = self._registered(connection, present, group, topic, version)
        message_filter = _compiled(topic, subscription.expression_type, subscription.expression)
        return Checked(group, group_config, topic, topic_config, queue_id, flags, message_filter, subscription, version)

    def still_passes(self, connection: object, checked: Checked) -> bool:
        """Whether a request that differs only in its offsets from one that passed would pass with the same outcome: nothing that
        this was found out from is another one now. What is written of topics, groups and subscriptions never changes itself."""
        group, group_config, topic, topic_config, _, _, _, subscription, version = checked
        tables = self._tables
        # each is the broker's own, or in the tables, as most are
        if tables.groups.get(group) is not group_config and self.metadata.group(group) is not group_config:
            return False
        if tables.topics.get(topic) is not topic_config and self.metadata.topic(topic) is not topic_config:
            return False
        if self._forbidden and (group, topic) in self._forbidden:
            return False
        present = self._clients.consumer_group(group)
        if _is_broadcast_wrong(present, group_config):
            return False
        if subscription is None:
            return True
        return (
            present is not None
            and present.subscriptions.get(topic) is subscription
            and subscription.version >= self._least_version(connection, version)
        )

    def is_there(self, checked: Checked) -> bool:
        """Whether its group and its topic are what they were: neither was deleted, nor deleted and made again."""
        return (
            self.metadata.group(checked.group) is checked.group_config
            and self.metadata.topic(checked.topic) is checked.topic_config
        )

    def check_bulk(self, group: str, ext: dict[str, str]) -> tuple[str, int]:
        """Topic and queue of a read that has no subscription. Raises RequestError for the first check that fails."""
        self._group(group)
        _, topic, queue_id = self._queue(ext)
        self.check_forbidden(group, topic)
        return topic, queue_id

    def check_forbidden(self, group: str, topic: str) -> None:
        """Raises Forbidden when an administrator took the topic from the group."""
        if (group, topic) in self._forbidden:
            raise Forbidden(BY_SUBSCRIPTION, f"consumer group {group} is forbidden to read topic {topic}")

    def _group(self, group: str) -> GroupConfig:
        config = self.metadata.group(group)
        if config is None:
            try:
                config = ensure_group(self.metadata, group, self._may_create())
            except InvalidParameter as error:  # a name that no group can have
                raise RequestError(codes.SUBSCRIPTION_GROUP_NOT_EXIST, error.message) from error
        if not config.consume_enable:
            raise Forbidden(BY_GROUP, f"consumer group {group} is disabled")
        return config

    def _queue(self, ext: dict[str, str]) -> tuple[TopicConfig, str, int]:
        topic = fields.text(ext, "topic")
        config = self.metadata.topic(topic)
        if config is None:
            raise RequestError(codes.TOPIC_NOT_EXIST, f"topic {topic} does not exist; create it")
        if not config.perm & PERM_READ:
            raise Forbidden(BY_TOPIC, f"topic {topic} is not readable")
        queue_id = _small(ext.get("queueId", ""))
        if queue_id is None:
            queue_id = fields.integer(ext, "queueId", high=fields.MAX_INT)
        if queue_id >= config.read_queue_nums:
            raise InvalidParameter(f"topic {topic} has queues 0 to {config.read_queue_nums - 1}, not {queue_id}")
        return config, topic, queue_id

    def _registered(
        self, connection: object, present: ConsumerGroup, group: str, topic: str, version: int
    ) -> Subscription:
        """What the group's heartbeats brought, which must not be older than the version that the request means."""
        subscription = present.subscriptions.get(topic)
        if subscription is None:
            raise RequestError(codes.SUBSCRIPTION_NOT_EXIST, f"consumer group {group} is not subscribed to {topic}")
        if subscription.version < self._least_version(connection, version):
            raise RequestError(
                codes.SUBSCRIPTION_NOT_LATEST, f"a newer subscription of {group} to {topic} is not known here yet"
            )
        return subscription

    def _least_version(self, connection: object, version: int) -> int:
        """Who names what it wants by fingerprint tells when that changes, and only then; the version that it sends grows with
        every change of its queues."""
        return 0 if self._clients.names_by_fingerprint(connection) else version


def _is_broadcast_wrong(present: ConsumerGroup | None, group_config: GroupConfig) -> bool:
    return present is not None and present.message_model == BROADCASTING and not group_config.broadcast_enable


def _compiled(topic: str, kind: str, expression: str) -> MessageFilter:
    if topic.startswith(RETRY_PREFIX) and kind not in ("", "TAG"):
        kind, expression = "TAG", "*"  # what came back was wanted once
    return compile_filter(kind, expression)
