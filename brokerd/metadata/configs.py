"""Topics, groups and consumer offsets as the rest of the broker uses them (pure). `MetadataService` is the implementation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from remoting.errors import RequestError

PERM_READ: Final = 4
PERM_WRITE: Final = 2

ORDER_SCOPE: Final = "order.scope"  # an attribute of consumer groups
BY_MESSAGE_GROUP: Final = "MESSAGE_GROUP"
ORDER_SCOPES: Final = ("QUEUE", BY_MESSAGE_GROUP)  # the first one where there is none


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic as the broker group has it. `perm`: 4 read, 2 write, 1 inherit. Attributes as in `message.type`.

    `multi_tag`: its filter type as the protocol has it, which nothing depends on.
    """

    name: str
    read_queue_nums: int = 8
    write_queue_nums: int = 8
    perm: int = 6
    topic_sys_flag: int = 0
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)
    multi_tag: bool = False

    @property
    def message_type(self) -> str:
        """NORMAL, FIFO, DELAY, TRANSACTION, MIXED, PRIORITY or UNSPECIFIED."""
        return self.attributes.get("message.type", "NORMAL")


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """A consumer group. `fifo` = consumeMessageOrderly. `retry_max_times` deliveries are repeated before the dead letter.

    `retry_policy` and the entries of `subscriptions` (what the group is subscribed to without saying so) are kept as the protocol
    writes them; None = not given.
    """

    name: str
    fifo: bool = False
    retry_max_times: int = 16
    consume_enable: bool = True
    broadcast_enable: bool = True
    retry_queue_nums: int = 1
    consume_from_min_enable: bool = True
    read_broker_id: int = 0
    read_broker_id_when_slow: int = 1
    notify_ids_changed: bool = True
    group_sys_flag: int = 0
    consume_timeout_minutes: int = 15
    retry_policy: Mapping[str, Any] | None = None
    subscriptions: Sequence[Mapping[str, Any]] | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)

    @property
    def keeps_message_groups(self) -> bool:
        """Whether an ordered group that pops keeps order in each message group; otherwise in each queue."""
        return self.attributes.get(ORDER_SCOPE, ORDER_SCOPES[0]) == BY_MESSAGE_GROUP


class Metadata(Protocol):
    """Topics, groups and consumer offsets of this broker group, as of the last record applied here."""

    def topic(self, name: str) -> TopicConfig | None: ...

    def topics(self) -> Mapping[str, TopicConfig]: ...

    def group(self, name: str) -> GroupConfig | None: ...

    def groups(self) -> Mapping[str, GroupConfig]: ...

    def consumer_offset(self, group: str, topic: str, queue_id: int) -> int | None: ...

    def put_topic(self, config: TopicConfig, done: Callable[[RequestError | None], None]) -> None: ...

    def ensure_topic(self, name: str, queues: int = 1) -> RequestError | None:
        """Create a retry or dead-letter topic that the broker needs, unless it is there; the reason if that failed."""

    def delete_topic(self, name: str, done: Callable[[RequestError | None], None]) -> None: ...

    def put_group(self, config: GroupConfig, done: Callable[[RequestError | None], None]) -> None: ...

    def delete_group(self, name: str, done: Callable[[RequestError | None], None]) -> None: ...

    def commit_offset(
        self, group: str, topic: str, queue_id: int, offset: int, done: Callable[[RequestError | None], None] | None
    ) -> None:
        """Commit; calls of one loop turn share one record. `done` None = nobody waits."""

    def is_forbidden(self, group: str, topic: str) -> bool:
        """Whether the group may not read the topic."""

    def pending_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Where a group has to go on in a queue, when it was not told yet."""

    def take_resets(self, queues: Sequence[tuple[str, str, int]]) -> None:
        """A group consumes (group, topic, queue), or was told where to go on: what was reset of that is not pending any more."""
