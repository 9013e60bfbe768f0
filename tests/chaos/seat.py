"""A client's connection to the broker that it takes for the master, and how it looks for another one.

A broker that is silent is believed as long as some controller names it, and left in the middle of a request when there is a newer
route: what is measured is how fast the cluster recovers, not how long a client is patient. From one that refuses, or that is
silent while no controller can be asked, it goes on to the next of the group, to those that were silent last.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from remoting.client.socket_connection import SocketConnection
from remoting.errors import ConnectionLost
from tests.chaos.observer import Route

_CONNECT_TIMEOUT_MS: Final = 400
_AVOID_S: Final = 2.0  # a broker that did not answer in time
_FRESH_S: Final = 1.0  # since a controller last said so


class Line(SocketConnection):
    """A connection that another thread may cut."""

    def cut(self) -> None:
        """End it; who waits for an answer gets ConnectionLost."""
        with contextlib.suppress(OSError):  # it is closed already
            self._socket.shutdown(socket.SHUT_RDWR)


class Seat:
    """Used by one thread, but for `hear`. `route` gives the newest route."""

    def __init__(self, brokers: Sequence[str], route: Callable[[], Route]) -> None:
        self._brokers = list(brokers)
        self._route = route
        self._lock = threading.Lock()  # of the connection, which `hear` cuts
        self._connection: Line | None = None
        self._believed_epoch = 0
        self._turn = 0
        self._avoid_until_s: dict[str, float] = {}

    def hear(self, route: Route) -> None:
        """There is a newer route: do not wait for answers of another broker any longer."""
        with self._lock:
            if self._connection is not None and self._connection.address != route.address:
                self._connection.cut()

    def connection(self) -> SocketConnection | None:
        """A connection to who is probably the master; None when nobody answered this time (try again)."""
        route = self._route()
        if route.master_epoch > self._believed_epoch and route.address is not None:
            self._believed_epoch = route.master_epoch
            if self._connection is not None and self._connection.address != route.address:
                self.leave()
            self._turn = self._brokers.index(route.address)
        if self._connection is None:
            began_s = time.monotonic()
            try:
                connection = Line(self._brokers[self._turn], timeout_ms=_CONNECT_TIMEOUT_MS)
            except ConnectionLost:
                self.failed(was_silent=time.monotonic() - began_s > _CONNECT_TIMEOUT_MS / 2000)
                return None
            with self._lock:
                self._connection = connection
        return self._connection

    def failed(self, *, was_silent: bool) -> None:
        """The broker did not do what was asked. `was_silent`: it did not answer at all."""
        self.leave()
        now_s = time.monotonic()
        route = self._route()
        if was_silent and route.address is not None and now_s - route.heard_s < _FRESH_S:
            self._turn = self._brokers.index(route.address)
            return
        if was_silent:
            self._avoid_until_s[self._brokers[self._turn]] = now_s + _AVOID_S
        for _ in self._brokers:
            self._turn = (self._turn + 1) % len(self._brokers)
            if self._avoid_until_s.get(self._brokers[self._turn], 0) <= now_s:
                return

    def leave(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
