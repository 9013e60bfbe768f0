"""Which waiting requests belong to which connection, so that those of a closed one are forgotten."""

from __future__ import annotations

from brokerd.pop.requests import Parked


class ParkedRequests:
    """Owned by one processor. A request is known by a ticket: one that held what waits for it would be freed late."""

    def __init__(self) -> None:
        self._by_connection: dict[object, dict[int, Parked]] = {}
        self._last_ticket = 0

    def add(self, connection: object, parked: Parked) -> int:
        """The ticket."""
        self._last_ticket += 1
        self._by_connection.setdefault(connection, {})[self._last_ticket] = parked
        return self._last_ticket

    def forget(self, connection: object, ticket: int) -> None:
        """It was answered."""
        waiting = self._by_connection.get(connection)
        if waiting is not None:
            waiting.pop(ticket, None)
            if not waiting:
                del self._by_connection[connection]

    def cancel_all(self, connection: object) -> None:
        """The connection closed."""
        for parked in self._by_connection.pop(connection, {}).values():
            parked.cancel()
