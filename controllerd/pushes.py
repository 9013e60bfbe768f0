"""One-way messages to brokers, best effort: brokers also ask, so a lost one costs time and nothing else.

What an address has not been told yet is kept once per kind: a newer message takes the place of the older, so nobody hears of a
role that ended while it was being dialled.
"""

from __future__ import annotations

import logging

from controllerd.metrics import Counters
from remoting.errors import ConnectionLost
from remoting.transport.client import RemotingClient
from remoting.transport.tasks import TaskOwner

log = logging.getLogger(__name__)


class Pushes:
    """Sends over one connection per address, dialled when needed."""

    def __init__(self, client: RemotingClient, counters: Counters, owner: TaskOwner) -> None:
        self._client = client
        self._counters = counters
        self._owner = owner
        self._waiting: dict[tuple[str, int], tuple[dict[str, str], bytes]] = {}

    def push(self, address: str, code: int, ext: dict[str, str], body: bytes = b"") -> None:
        """Tell an address; the newest message of a kind is the one that counts."""
        key = address, code
        if key in self._waiting:
            self._counters.pushes_replaced += 1
        else:
            self._owner.spawn(self._send(key), f"tell {address} {code}")
        self._waiting[key] = ext, body

    async def _send(self, key: tuple[str, int]) -> None:
        address, code = key
        try:
            connection = await self._client.connection(address)
        except ConnectionLost as error:
            log.warning("cannot push to a broker, it will ask: %s", error)
            return
        finally:
            ext, body = self._waiting.pop(key)
        if connection.notify(code, ext, body):
            self._counters.notifications += 1
