"""What gRPC clients said about themselves in their settings, kept per client id (pure).

A convenience, never a condition: after a restart most clients send their settings only minutes later, and must be served without.
A session goes with the connection that brought it; what one connection can make us remember is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from brokerd.proxy.names import full_name

MAX_SESSIONS_PER_CONNECTION: Final = 256
MAX_TOPICS_PER_SESSION: Final = 256


@dataclass(frozen=True, slots=True)
class Session:
    """One client object's settings, in the broker's names."""

    group: str = ""
    producer_topics: frozenset[str] = frozenset()
    subscriptions: Mapping[str, str] = field(default_factory=dict)


class Sessions:
    """Sessions by client id; owned by the methods of one broker."""

    def __init__(self) -> None:
        self._sessions: dict[str, tuple[object, Session]] = {}
        self._by_connection: dict[object, dict[str, None]] = {}

    def remember(self, client_id: str, connection: object, session: Session) -> None:
        self._sessions[client_id] = connection, session
        clients = self._by_connection.setdefault(connection, {})
        clients.pop(client_id, None)
        clients[client_id] = None
        if len(clients) > MAX_SESSIONS_PER_CONNECTION:
            oldest = next(iter(clients))
            del clients[oldest]
            self._drop(oldest, connection)

    def get(self, client_id: str) -> Session | None:
        entry = self._sessions.get(client_id)
        return None if entry is None else entry[1]

    def connection_closed(self, connection: object) -> None:
        for client_id in self._by_connection.pop(connection, ()):
            self._drop(client_id, connection)

    def _drop(self, client_id: str, connection: object) -> None:
        """Forget a session unless the client has another connection by now."""
        entry = self._sessions.get(client_id)
        if entry is not None and entry[0] is connection:
            del self._sessions[client_id]


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
    )
