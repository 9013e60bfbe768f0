"""What is known of a consumer group from its members' heartbeats, and of each member."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final

from brokerd.members.streams import CommandStream
from remoting.facts.words import GroupStart
from remoting.transport.connection import RemotingConnection

MAX_SUBSCRIPTIONS: Final = 1024

CONSUME_TYPES: Final = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
BROADCASTING: Final = "BROADCASTING"
MESSAGE_MODELS: Final = (BROADCASTING, "CLUSTERING")
_FROM_FIRST: Final = "CONSUME_FROM_FIRST_OFFSET"
_FROM_TIMESTAMP: Final = "CONSUME_FROM_TIMESTAMP"
CONSUME_FROM: Final = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    _FROM_FIRST,
    _FROM_TIMESTAMP,
)


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """A live client. `language` as its protocol names it; `address` host:port of its connection;
    `user` is who signs its requests, as it says: whether that is true was asked where they came in."""

    client_id: str
    address: str
    language: str
    version: str
    producer_topics: frozenset[str] = frozenset()
    group: str = ""
    subscriptions: Mapping[str, str] = field(default_factory=dict)  # topic -> expression
    user: str = ""


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a group wants of a topic. A higher version replaces a lower one."""

    topic: str
    expression: str = "*"
    expression_type: str = "TAG"
    version: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerData:
    """What a remoting heartbeat says of one consumer group."""

    group: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from: str = "CONSUME_FROM_LAST_OFFSET"
    subscriptions: Mapping[str, Subscription] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Member:
    """One client in one place. `connection` is set for remoting clients only, `stream` for those of gRPC that have one."""

    info: ClientInfo
    connection: RemotingConnection | None
    last_heard_ms: int
    stream: CommandStream | None = None


@dataclass(slots=True, eq=False)
class ConsumerGroup:
    """The members of one group and what they last agreed on. `remoting` are those members that have a remoting connection: of
    the others there may be very many, and they are told nothing when one comes or goes."""

    members: dict[Hashable, Member] = field(default_factory=dict)
    remoting: dict[Hashable, Member] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    consume_type: str = CONSUME_TYPES[1]
    message_model: str = MESSAGE_MODELS[1]
    consume_from: str = CONSUME_FROM[0]

    def take_subscriptions(self, incoming: Mapping[str, Subscription]) -> bool:
        """Replace what is older, forget what is not named; whether anything changed."""
        merged = {
            topic: wanted if known is None or wanted.version >= known.version else known
            for topic, wanted in incoming.items()
            for known in (self.subscriptions.get(topic),)
        }
        changed = merged != self.subscriptions
        self.subscriptions = merged
        return changed

    def start_in(self, topic: str, *, pops: bool) -> GroupStart:
        """Where those who want a topic start in a queue that is new to the group; `pops`: its remoting clients pop there.

        Clients that pull look for their start themselves: at the first message, or at the end, as the older ways to say it mean
        too. Those of gRPC always pop, and never from the first one.
        """
        kinds = {each.connection is None for each in self.members.values() if topic in each.info.subscriptions}
        starts = {GroupStart.LAST_MESSAGE if is_grpc else self._remoting_start(pops) for is_grpc in kinds}
        return starts.pop() if len(starts) == 1 else GroupStart.UNKNOWN

    def _remoting_start(self, pops: bool) -> GroupStart:
        if self.consume_from == _FROM_FIRST:
            return GroupStart.FIRST
        if pops:
            return GroupStart.LAST_MESSAGE
        return GroupStart.UNKNOWN if self.consume_from == _FROM_TIMESTAMP else GroupStart.END
