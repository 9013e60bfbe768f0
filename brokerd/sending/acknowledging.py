"""What sending needs of the replica: whether messages are taken now, and when a position of the log is acknowledged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from brokerd.store.put_status import PutStatus
from brokerd.store.store import MessageStore
from remoting import codes
from remoting.errors import LogboomError, NotMaster, RequestError

_NOT_ENOUGH: Final = RequestError(
    codes.SYSTEM_ERROR, "in-sync replicas not enough: too few replicas are in sync to store a message"
)
_CROWDED: Final = RequestError(codes.SYSTEM_BUSY, "[OVERLOAD]too many sends wait to be acknowledged; try again")


class ReplicaView(Protocol):
    """What appending needs of the replica."""

    @property
    def is_master(self) -> bool: ...

    @property
    def accepts_messages(self) -> bool: ...

    @property
    def acknowledges_alone(self) -> bool: ...

    @property
    def acknowledges_durable(self) -> bool: ...

    @property
    def refusal(self) -> PutStatus: ...

    def on_appended(self, end_offset: int) -> None: ...

    def wait(self, position: int, callback: Callable[[PutStatus], None]) -> None: ...


class Acknowledger(Protocol):
    """Who appends asks first, tells afterwards, and waits."""

    def refusal(self) -> LogboomError | None:
        """Why no message is taken now, or None."""

    def appended(self, end_offset: int) -> None:
        """Messages were appended: have them flushed, and send them to the replicas."""

    def wait(self, position: int, callback: Callable[[PutStatus], None]) -> None:
        """Call back, once, when the position is acknowledged or will not be."""


class Appends:
    """The acknowledger of a broker: its store's word and its replica's."""

    def __init__(self, store: MessageStore, replica: ReplicaView, request_flush: Callable[[], None]) -> None:
        self._store = store
        self._replica = replica
        self._request_flush = request_flush
        self.wait = replica.wait

    def refusal(self) -> LogboomError | None:
        return self._refusal(self._store.refusal)

    def own_refusal(self) -> LogboomError | None:
        """The same of what the broker itself appends."""
        return self._refusal(self._store.own_refusal)

    @property
    def is_masters(self) -> bool:
        """Whether this broker is the master, who alone appends."""
        return self._replica.is_master

    @property
    def are_alone(self) -> bool:
        """Whether messages are taken now, and acknowledged as soon as they are in the log, or durable there."""
        return self._store.refusal is None and self._replica.acknowledges_alone

    @property
    def are_durable(self) -> bool:
        """Whether what is acknowledged is durable."""
        return self._replica.acknowledges_durable

    def _refusal(self, of_store: RequestError | None) -> LogboomError | None:
        if of_store is None and self._replica.accepts_messages:
            return None
        if not self._replica.is_master:
            return NotMaster()
        if of_store is not None:
            return of_store
        return _NOT_ENOUGH if self._replica.refusal is PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH else _CROWDED

    def appended(self, end_offset: int) -> None:
        self._request_flush()
        self._replica.on_appended(end_offset)
