"""A client's connection to the broker that it takes for the master, and how it looks for another one.

It believes the newest route that it hears of. When that fails it, or when it hears of none because no controller can be reached,
it tries the group's brokers in turn, those that did not answer last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from remoting.client.socket_connection import SocketConnection
from remoting.errors import ConnectionLost
from tests.chaos.observer import Route

_CONNECT_TIMEOUT_MS: Final = 400
_AVOID_S: Final = 2.0  # a broker that did not answer in time


class Seat:
    """Used by one thread."""

    def __init__(self, brokers: Sequence[str], route: Callable[[], Route]) -> None:
        self._brokers = list(brokers)
        self._route = route
        self._connection: SocketConnection | None = None
        self._believed = Route()
        self._turn = 0
        self._avoid_until_s: dict[str, float] = {}

    def connection(self) -> SocketConnection | None:
        """A connection to who is probably the master; None when nobody answered this time (try again)."""
        route = self._route()
        if route.master_epoch > self._believed.master_epoch:
            self._believed = route
            if self._connection is not None and self._connection.address != route.address:
                self.leave()
            if route.address is not None:
                self._turn = self._brokers.index(route.address)
        if self._connection is None:
            address = self._brokers[self._turn]
            try:
                self._connection = SocketConnection(address, timeout_ms=_CONNECT_TIMEOUT_MS)
            except ConnectionLost:
                self.failed(was_silent=True)
        return self._connection

    def failed(self, *, was_silent: bool) -> None:
        """The broker did not do what was asked: try the next one. `was_silent`: it did not answer at all."""
        now_s = time.monotonic()
        if was_silent:
            self._avoid_until_s[self._brokers[self._turn]] = now_s + _AVOID_S
        self.leave()
        for _ in self._brokers:
            self._turn = (self._turn + 1) % len(self._brokers)
            if self._avoid_until_s.get(self._brokers[self._turn], 0) <= now_s:
                return

    def leave(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
