"""Replication connections between simulated brokers: two streams, and ends that learn of the other's end late."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.sim.world import Stream

if TYPE_CHECKING:
    from tests.sim.broker import SimBroker


class Link:
    """One end of a replication connection."""

    def __init__(self, owner: SimBroker, peer: SimBroker) -> None:
        self.owner = owner
        self.peer = peer
        self.peer_life = peer.life
        self.connection = owner.new_connection(self)
        self.other: Link | None = None
        self.outgoing = Stream(owner.network, owner, peer, self._to_peer)

    def _to_peer(self, data: bytes) -> None:
        other = self.other
        if other is not None:
            self.peer.guarded(partial(self.peer.received, other.connection, data))()

    def end(self, notify: bool) -> None:
        """Close this end; the other side hears of it when somebody tells it (a reset), or never."""
        if not self.outgoing.is_open:
            return
        self.outgoing.is_open = False
        owner, other = self.owner, self.other
        if owner.is_up:
            owner.after(0, owner.guarded(lambda: owner.connection_lost(self.connection)))
        if notify and other is not None and other.outgoing.is_open:

            def reset() -> None:
                other.outgoing.is_open = False
                self.peer.connection_lost(other.connection)

            peer, life = self.peer, self.peer_life
            owner.world.after(owner.network.delay_ms(owner, peer), lambda: peer.do(life, peer.guarded(reset)))


def dial(source: SimBroker, target: SimBroker, attempt: int) -> None:
    """A connection between two living brokers: both ends learn of it."""
    if not target.is_up or target.is_paused:
        source.driver.connect_failed(attempt, "nobody answers", source.monotonic_ms())
        source.after_event()
        return
    near = Link(source, target)
    far = Link(target, source)
    near.other, far.other = far, near
    target.guarded(lambda: target.driver.accepted(far.connection, target.monotonic_ms()))()
    if source.is_up:
        source.guarded(lambda: source.driver.connected(attempt, near.connection, source.monotonic_ms()))()
