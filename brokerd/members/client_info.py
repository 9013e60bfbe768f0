"""Connected clients as the endpoints see them (pure). `ClientRegistry` is the implementation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


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
