"""Which waiting requests belong to which connection, so that those of a closed one are forgotten."""

from __future__ import annotations

from brokerd.services import Parked


class ParkedRequests:
    """Owned by one processor."""

    def __init__(self) -> None:
        self._by_connection: dict[object, set[Parked]] = {}

    def add(self, connection: object, parked: Parked) -> None:
        self._by_connection.setdefault(connection, set()).add(parked)

    def forget(self, connection: object, parked: Parked) -> None:
        """It was answered."""
        waiting = self._by_connection.get(connection)
        if waiting is not None:
            waiting.discard(parked)
            if not waiting:
                del self._by_connection[connection]

    def cancel_all(self, connection: object) -> None:
        """The connection closed."""
        for parked in self._by_connection.pop(connection, ()):
            parked.cancel()
