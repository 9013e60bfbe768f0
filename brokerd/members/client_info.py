"""Connected clients as the endpoints see them (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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
