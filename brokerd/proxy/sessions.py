"""What gRPC clients said about themselves in their settings, kept per connection and client id (pure).

A convenience, never a condition: after a restart most clients send their settings only minutes later, and must be served without.
A session goes with the connection that brought it, and speaks for that connection alone: a client id is no secret, so what one
connection says under it changes nothing for another. What one connection can make us remember is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from brokerd.proxy.commands import TelemetryStream
from brokerd.proxy.names import full_name
from brokerd.proxy.settings_merge import LITE_CONSUMERS

MAX_SESSIONS_PER_CONNECTION: Final = 256
MAX_TOPICS_PER_SESSION: Final = 256


@dataclass(frozen=True, slots=True)
class Session:
    """One client object's settings, in the broker's names. `is_lite`: it wants what this version does not have."""

    group: str = ""
    producer_topics: frozenset[str] = frozenset()
    subscriptions: Mapping[str, str] = field(default_factory=dict)
    is_lite: bool = False


class Announced(NamedTuple):
    """A client, as one connection announced it, and the stream that it did so on."""

    session: Session
    stream: TelemetryStream


class Sessions:
    """Sessions of all connections; owned by the methods of one broker."""

    def __init__(self) -> None:
        self._sessions: dict[object, dict[str, Announced]] = {}

    def __iter__(self) -> Iterator[Announced]:
        for clients in self._sessions.values():
            yield from clients.values()

    def remember(self, client_id: str, connection: object, announced: Announced) -> None:
        clients = self._sessions.setdefault(connection, {})
        clients.pop(client_id, None)
        clients[client_id] = announced
        if len(clients) > MAX_SESSIONS_PER_CONNECTION:
            del clients[next(iter(clients))]

    def get(self, client_id: str, connection: object) -> Session | None:
        """What this connection said of a client; None when it said nothing."""
        announced = self._sessions.get(connection, {}).get(client_id)
        return None if announced is None else announced.session

    def forget(self, client_id: str, connection: object) -> None:
        """The client has ended."""
        self._sessions.get(connection, {}).pop(client_id, None)

    def connection_closed(self, connection: object) -> None:
        self._sessions.pop(connection, None)


def session_of(settings: Any) -> Session:
    """The session that a client's settings describe."""
    subscription = settings.subscription
    return Session(
        full_name(subscription.group) if settings.HasField("subscription") else "",
        frozenset(full_name(topic) for topic in settings.publishing.topics[:MAX_TOPICS_PER_SESSION]),
        {
            full_name(entry.topic): entry.expression.expression or "*"
            for entry in subscription.subscriptions[:MAX_TOPICS_PER_SESSION]
        },
        settings.client_type in LITE_CONSUMERS,
    )
