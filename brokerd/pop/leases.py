"""Which batches each client leases (pure).

A client has a number here while it has a lease: that is what rows of batches hold in the place of its id. What it leases is a
list of names, in which those that are over are left until they outnumber the others.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import Final

from brokerd.pop.batch import Batch

_SLACK: Final = 64

Named = Callable[[int, int], Batch | None]  # the open batch of a queue number and a pop time


class _Client:
    """`names` are queue numbers and pop times, in turns."""

    __slots__ = ("client_id", "count", "names", "number")

    def __init__(self, client_id: str, number: int) -> None:
        self.client_id = client_id
        self.number = number
        self.count = 0
        self.names = array("q")


class Leases:
    def __init__(self, named: Named) -> None:
        self._named = named
        self._clients: dict[str, _Client] = {}
        self._by_number: dict[int, _Client] = {}
        self._last = 0
        self._kept: dict[int, str] | None = None  # ids of those who have gone since `keep`

    def begin(self, client_id: str, queue_number: int, pop_time_ms: int) -> int:
        """The client leases one more batch; returns the number of the client, from 1 on."""
        client = self._clients.get(client_id)
        if client is None:
            number = self._new_number()
            client = self._clients[client_id] = self._by_number[number] = _Client(client_id, number)
        if len(client.names) > 4 * client.count + _SLACK:
            client.names = array("q", [each for name in self._held(client) for each in name])
        client.names.extend((queue_number, pop_time_ms))
        client.count += 1
        return client.number

    def end(self, client_id: str) -> None:
        """One of the client's batches is done."""
        client = self._clients[client_id]
        client.count -= 1
        if not client.count:
            del self._clients[client_id], self._by_number[client.number]
            if self._kept is not None:
                self._kept[client.number] = client_id

    def client_id(self, number: int) -> str:
        client = self._by_number.get(number)
        if client is not None:
            return client.client_id
        assert self._kept is not None
        return self._kept[number]

    def keep(self) -> None:
        """Numbers keep their meaning until `forget`, also when the client has no lease any more."""
        self._kept = {}

    def forget(self) -> None:
        self._kept = None

    def of(self, client_id: str) -> list[Batch]:
        """What the client leases."""
        client = self._clients.get(client_id)
        found = (self._named(*name) for name in self._held(client)) if client is not None else ()
        return [batch for batch in found if batch is not None]

    def clear(self) -> None:
        self._clients.clear()
        self._by_number.clear()

    def _held(self, client: _Client) -> Iterator[tuple[int, int]]:
        names = client.names
        for queue_number, pop_time_ms in zip(names[::2], names[1::2], strict=True):
            batch = self._named(queue_number, pop_time_ms)
            if batch is not None and batch.client_id == client.client_id:
                yield queue_number, pop_time_ms

    def _new_number(self) -> int:
        """One that no client has; it fits into the four bytes of a row."""
        while True:
            self._last = self._last % 0xFFFF_FFFF + 1
            if self._last not in self._by_number and self._last not in (self._kept or ()):
                return self._last
