"""What gRPC clients said about themselves in their settings, kept per connection and client id (pure).

A convenience, never a condition: after a restart most clients send their settings only minutes later, and must be served without.
A session goes with the connection that brought it, and speaks for that connection alone: a client id is no secret, so what one
connection says under it changes nothing for another. What one connection can make us remember is bounded, and so is all of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from brokerd.filters.message_filter import MAX_EXPRESSION_LENGTH
from brokerd.proxy.commands import TelemetryStream
from brokerd.proxy.names import full_name
from brokerd.proxy.settings_merge import LITE_CONSUMERS
from brokerd.proxy.status import Code, Refusal

MAX_SESSIONS_PER_CONNECTION: Final = 256
MAX_TOPICS_PER_SESSION: Final = 256
# Of settings, as clients sent them; usual ones have some hundred bytes. One connection has too few to keep others from theirs.
MAX_SETTINGS_BYTES: Final = 64 << 20
MAX_SETTINGS_BYTES_PER_CONNECTION: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Session:
    """One client object's settings, in the broker's names. `is_lite`: it wants what this version does not have."""

    group: str = ""
    producer_topics: frozenset[str] = frozenset()
    subscriptions: Mapping[str, str] = field(default_factory=dict)
    is_lite: bool = False


class Announced(NamedTuple):
    """A client, as one connection announced it, the stream that it did so on, and how many bytes its settings had."""

    session: Session
    stream: TelemetryStream
    size: int


class Sessions:
    """Sessions of all connections; owned by the methods of one broker."""

    def __init__(self) -> None:
        self._sessions: dict[object, dict[str, Announced]] = {}
        self._size = 0

    def __iter__(self) -> Iterator[Announced]:
        for clients in self._sessions.values():
            yield from clients.values()

    def check_room(self, client_id: str, connection: object, size: int) -> None:
        """Raises Refusal when so many bytes of a client's settings are not remembered any more."""
        known = self._sessions.get(connection, {}).get(client_id)
        if self._size - (known.size if known is not None else 0) + size > MAX_SETTINGS_BYTES:
            raise Refusal(
                Code.TOO_MANY_REQUESTS,
                "the clients of this broker told it as much about themselves as it remembers; try again when some have ended",
            )

    def remember(self, client_id: str, connection: object, announced: Announced) -> None:
        """For which there is room. A connection's oldest ones make room for its newest."""
        clients = self._sessions.setdefault(connection, {})
        self._drop(clients, client_id)
        clients[client_id] = announced
        self._size += announced.size
        size = sum(each.size for each in clients.values())
        while len(clients) > 1 and (
            len(clients) > MAX_SESSIONS_PER_CONNECTION or size > MAX_SETTINGS_BYTES_PER_CONNECTION
        ):
            oldest = next(iter(clients))
            size -= clients[oldest].size
            self._drop(clients, oldest)

    def get(self, client_id: str, connection: object) -> Session | None:
        """What this connection said of a client; None when it said nothing."""
        announced = self._sessions.get(connection, {}).get(client_id)
        return None if announced is None else announced.session

    def forget(self, client_id: str, connection: object) -> None:
        """The client has ended."""
        self._drop(self._sessions.get(connection, {}), client_id)

    def connection_closed(self, connection: object) -> None:
        self._size -= sum(announced.size for announced in self._sessions.pop(connection, {}).values())

    def _drop(self, clients: dict[str, Announced], client_id: str) -> None:
        announced = clients.pop(client_id, None)
        if announced is not None:
            self._size -= announced.size


def session_of(settings: Any) -> Session:
    """The session that a client's settings describe. Raises Refusal for an expression that no receive may have."""
    subscription = settings.subscription
    return Session(
        full_name(subscription.group) if settings.HasField("subscription") else "",
        frozenset(full_name(topic) for topic in settings.publishing.topics[:MAX_TOPICS_PER_SESSION]),
        {
            full_name(entry.topic): _expression(entry.expression.expression)
            for entry in subscription.subscriptions[:MAX_TOPICS_PER_SESSION]
        },
        settings.client_type in LITE_CONSUMERS,
    )


def _expression(text: str) -> str:
    if len(text) > MAX_EXPRESSION_LENGTH:
        raise Refusal(
            Code.ILLEGAL_FILTER_EXPRESSION,
            f"a filter expression has at most {MAX_EXPRESSION_LENGTH} characters, not {len(text)}",
        )
    return text or "*"
