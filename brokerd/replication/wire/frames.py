"""What travels between a master and its replicas, as values, whatever bytes it travels as (pure).

One TCP connection, dialled by the replica; each direction is framed on its own. `Layout` says in whose bytes: our own, or one of
the three that the original has spoken (`rocketmq_layouts`, `own_layout`). A body may be cut anywhere, also inside a message, so
log bytes are handed on as they arrive, as `Piece`s with an offset of their own: no body is ever put together, and no length that
a peer names is ever allocated.

How a stale master is refused, in every state:

- between our own brokers every frame carries the master epoch: the handshake the highest that the replica has persisted, an ack
  the one that it follows, a reply and a transfer the master's. A frame of another epoch closes the connection, and a master
  that is shown a newer one leaves its role;
- with the original, neither the handshake nor the ack carries an epoch, but the reply ends with the master's newest. A replica
  goes on only if it equals the epoch that a controller named to it and is not below the highest it has persisted
  (`followership`); else it closes and sends nothing, so it never acks to that master. A master closes all connections when its
  epoch or role changes (`role_machine`), so an ack on an open connection means: this replica was greeted with this epoch.

Before a complete handshake, which between our own brokers includes the proof that both know the cluster's secret (`proof`), a
connection acks nothing and gets nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from brokerd.replication.epochs.epoch_list import EpochEntry
from remoting.disk import Bytes


class Layout(Enum):
    """Whose bytes a connection speaks."""

    OWN = "own"  # authenticated, with the master epoch in every frame
    CURRENT = "current"  # the original with controllers and persistent broker ids
    SEED = "seed"  # the same before persistent ids: a replica names its address
    CLASSIC = "classic"  # the original without controllers: offsets only

    @property
    def is_rocketmq(self) -> bool:
        """Spoken by the original: nobody proves who he is."""
        return self is not Layout.OWN

    @property
    def is_of_guests(self) -> bool:
        """Its replicas name no broker id: they are sent the log and counted nowhere."""
        return self in (Layout.SEED, Layout.CLASSIC)


class Handshake(NamedTuple):
    """How a replica introduces itself. What its layout does not tell has its default."""

    broker_id: int  # -1: a guest
    from_last_file: bool = False
    learner: bool = False
    layout: Layout = Layout.OWN
    incarnation: int = 0  # counts the starts of the replica; 0: not told
    highest_epoch: int = -1  # the highest master epoch that it has persisted
    acks_flushed: bool = True  # an ack means "on my disk", not only "in my memory"
    address: str = ""  # a guest's own words for who it is
    starts_anew: bool = False  # it wants to drop its log, and asks not to be counted on before it acks again
    takes_notes: bool = False  # it understands what a master says besides replies and transfers
    knows_checksums: bool = True  # as a master it leaves a record's checksum behind when it stores the message again


class Ack(NamedTuple):
    """The replica's log is safe up to here; the first one also says from where to send."""

    offset: int


class NewerEpoch(NamedTuple):
    """The replica follows, or has persisted, a newer master epoch than the one that it is talking to."""

    epoch: int


class Reply(NamedTuple):
    """What the master has: the end of its log, its newest epoch (-1 = none), its epoch list, and where its log begins (-1 = not
    told); and which start of it this is (0 = not told)."""

    end_offset: int
    last_epoch: int
    entries: Sequence[EpochEntry]
    min_offset: int = -1
    incarnation: int = 0


class Released(NamedTuple):
    """The master does not count on the replica, nor will before it acks again: it may drop its log."""


class TwinConnected(NamedTuple):
    """Another process with the replica's broker id is connected to the master."""


class TransferHeader(NamedTuple):
    """What travels before log bytes. `offset` is where the body belongs; a heartbeat has the next offset (-1 = not known)."""

    offset: int
    epoch: int
    epoch_start: int
    confirm_offset: int


class Piece(NamedTuple):
    """Log bytes that arrived: `header.offset` is that of the first byte of `body`; an empty body is a heartbeat."""

    header: TransferHeader
    body: Bytes


FromReplica = Handshake | Ack | NewerEpoch
FromMaster = Reply | Piece | Released | TwinConnected
Frame = FromReplica | FromMaster
