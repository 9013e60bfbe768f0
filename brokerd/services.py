"""What a broker does for clients, without any wire format: the seam between the endpoints and the broker's parts.

Two endpoints call these services and nothing else of the broker: the remoting processors and the gRPC endpoint. A service call
never blocks; its result arrives through `done`, exactly once, at once or later on the loop (when a record is acknowledged, a
parked poll is woken, or a deadline passed). Refusals are `RequestError`s, given to `done` where the outcome type allows it and
raised otherwise only by argument checks that happen before anything was done.

The services are implemented by: `MessageSender` (brokerd/send.py), `PopService` (brokerd/pop/service.py),
`MetadataService` (brokerd/metadata/service.py), `ClientRegistry` (brokerd/clients.py), `Routes` (brokerd/routes.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

from remoting.disk import Bytes
from remoting.errors import RequestError
from remoting.message import SYS_BORN_HOST_V6, SYS_STORE_HOST_V6, Record


class PutStatus(IntEnum):
    """The outcome of an append as its producer learns it. The timeouts mean: stored here, not (yet) everywhere."""

    PUT_OK = 0
    FLUSH_DISK_TIMEOUT = 1
    FLUSH_SLAVE_TIMEOUT = 2
    SERVICE_NOT_AVAILABLE = 3  # refused before the append, or the role changed while waiting (then: unknown)
    IN_SYNC_REPLICAS_NOT_ENOUGH = 4
    MESSAGE_ILLEGAL = 5


class Draft(NamedTuple):
    """A message to append. `queue_id` -1 lets the broker choose; `properties` is the encoded property string."""

    topic: str
    queue_id: int
    body: Bytes
    properties: bytes
    born_timestamp_ms: int
    born_host: bytes  # packed IPv4 (4) or IPv6 (16) address and port (4)
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0

    @classmethod
    def again(cls, record: Record) -> Draft:
        """What stores the message of a record once more, as it is; where it goes is for the caller to replace."""
        return cls(
            record.topic,
            record.queue_id,
            record.body,
            record.properties,
            record.born_timestamp_ms,
            record.born_host,
            record.flag,
            record.sys_flag & ~(SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6),  # a new record gets those of its own hosts
            record.reconsume_times,
            record.prepared_transaction_offset,
        )


class SendOutcome(NamedTuple):
    """What became of one draft. Offsets are -1 when nothing was stored; `error` says why and what to do.

    Of a half message the queue is that of its message, the offsets are its own.
    """

    status: PutStatus
    queue_id: int = -1
    queue_offset: int = -1
    physical_offset: int = -1
    error: RequestError | None = None


class Sender(Protocol):
    def send(self, drafts: Sequence[Draft], done: Callable[[Sequence[SendOutcome]], None]) -> None:
        """Append all drafts in one go; `done` gets one outcome per draft, in order, when the last is acknowledged or failed."""


class InitMode(IntEnum):
    """Where a group that never consumed a queue starts: at its first message, or at its last."""

    MIN = 0
    MAX = 1


@dataclass(frozen=True, slots=True)
class PopRequest:
    """Take up to `max_count` (<= 32) messages for `group`, hidden from the group's others for `invisible_time_ms`.

    `queue_id` -1 = any queue of this broker. `deadline_ms` is on the monotonic clock: how long to wait when nothing is there
    (now or earlier = do not wait). `auto_renew` makes the entry a lease of `client_id`: not due while that client lives.
    `expression` is a tag expression (`*`, `A || B`) or SQL92 according to `expression_type` (`TAG`, `SQL92`).
    """

    group: str
    topic: str
    queue_id: int
    max_count: int
    invisible_time_ms: int
    deadline_ms: int
    init_mode: InitMode = InitMode.MAX
    expression_type: str = "TAG"
    expression: str = "*"
    fifo: bool = False
    attempt_id: str = ""
    client_id: str = ""
    auto_renew: bool = False


class PopStatus(IntEnum):
    FOUND = 0
    NOTHING = 1  # nothing came within the time
    POLLING_FULL = 2  # too many are waiting already
    REFUSED = 3  # see error


class PoppedMessage(NamedTuple):
    """One taken message: its stored record bytes and the handle (eight or nine fields) that acks it.

    `topic` is the topic that the client asked for, also when the record was stored in the group's retry topic.
    """

    record: bytes
    topic: str
    retry_flag: int
    queue_id: int
    queue_offset: int
    receipt_handle: str
    delivery_attempt: int


@dataclass(frozen=True, slots=True)
class PopOutcome:
    """The answer to a pop. `start_offsets` maps (retry flag, queue id) to where the read of that queue started."""

    status: PopStatus
    messages: Sequence[PoppedMessage] = ()
    pop_time_ms: int = 0
    invisible_time_ms: int = 0
    revive_queue_id: int = 0
    rest_count: int = 0
    start_offsets: Mapping[tuple[int, int], int] = field(default_factory=dict)
    error: RequestError | None = None


class Parked(Protocol):
    """A pop that waits."""

    def cancel(self) -> None:
        """The client went away: forget the wait and take nothing. `done` is not called any more."""


class AckStatus(IntEnum):
    OK = 0
    INVALID_HANDLE = 1  # malformed, forged, expired, or replaced by a newer handle
    FAILED = 2  # the record could not be acknowledged; the client should try again


@dataclass(frozen=True, slots=True)
class InvisibleTimeOutcome:
    """The answer to a change of the invisible time; on failure `receipt_handle` is the old one."""

    status: AckStatus
    receipt_handle: str
    pop_time_ms: int = 0
    invisible_time_ms: int = 0
    revive_queue_id: int = 0


class Popper(Protocol):
    def pop(self, request: PopRequest, done: Callable[[PopOutcome], None]) -> Parked | None:
        """Take messages now (then `done` follows when the take is recorded) or park until some arrive; None = not parked."""

    def ack(self, group: str, topic: str, handles: Sequence[str], done: Callable[[Sequence[AckStatus]], None]) -> None:
        """Finish messages; one status per handle, in order, when the ack record is acknowledged."""

    def change_invisible_time(
        self, group: str, topic: str, handle: str, invisible_time_ms: int, done: Callable[[InvisibleTimeOutcome], None]
    ) -> None:
        """Let the message return `invisible_time_ms` from now (0 = at once) and replace its handle."""

    def forward_to_dead_letter(self, group: str, topic: str, handle: str, done: Callable[[AckStatus], None]) -> None:
        """Append the message to the group's dead-letter topic, then finish it: first the copy, then the ack."""


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
        """NORMAL, FIFO, DELAY, TRANSACTION, MIXED or UNSPECIFIED."""
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


class Metadata(Protocol):
    """Topics, groups and consumer offsets of this broker group, as of the last record applied here."""

    def topic(self, name: str) -> TopicConfig | None: ...

    def topics(self) -> Mapping[str, TopicConfig]: ...

    def group(self, name: str) -> GroupConfig | None: ...

    def groups(self) -> Mapping[str, GroupConfig]: ...

    def consumer_offset(self, group: str, topic: str, queue_id: int) -> int | None: ...

    def put_topic(self, config: TopicConfig, done: Callable[[RequestError | None], None]) -> None: ...

    def delete_topic(self, name: str, done: Callable[[RequestError | None], None]) -> None: ...

    def put_group(self, config: GroupConfig, done: Callable[[RequestError | None], None]) -> None: ...

    def delete_group(self, name: str, done: Callable[[RequestError | None], None]) -> None: ...

    def commit_offset(
        self, group: str, topic: str, queue_id: int, offset: int, done: Callable[[RequestError | None], None] | None
    ) -> None:
        """Commit; calls of one loop turn share one record. `done` None = nobody waits."""


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """A live client. `language` as its protocol names it; `address` host:port of its connection."""

    client_id: str
    address: str
    language: str
    version: str
    producer_topics: frozenset[str] = frozenset()
    group: str = ""
    subscriptions: Mapping[str, str] = field(default_factory=dict)  # topic -> expression


class Clients(Protocol):
    """Who is there: fed by heartbeats of both protocols, expires after 120 s or when a connection closes."""

    def heartbeat(self, info: ClientInfo, connection: object) -> None: ...

    def unregister(self, client_id: str, group: str) -> None: ...

    def connection_closed(self, connection: object) -> None: ...

    def members(self, group: str) -> Sequence[ClientInfo]: ...


@dataclass(frozen=True, slots=True)
class BrokerRoute:
    """One broker group in a topic's route. `grpc_addresses`: master first, then the replicas, as host:port."""

    broker_name: str
    addresses: Mapping[int, str]  # role id (0 = master) -> remoting address
    grpc_addresses: Sequence[str]
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    message_type: str


class RouteSource(Protocol):
    def route(self, topic: str, done: Callable[[Sequence[BrokerRoute] | RequestError], None]) -> None:
        """Who has the topic, cluster-wide; TOPIC_NOT_EXIST when nobody has. Own group from own tables, the rest cached."""
