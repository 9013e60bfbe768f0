"""What the role machine wants done, in the order in which it must be done (pure).

`driver` carries these out one after the other; an effect that touches the disk has taken place, durably, before the next one is
looked at. Network effects may be lost (that is what networks do), disk effects may not: if one fails the broker stops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from brokerd.replication.epochs.epoch_list import EpochEntry
from brokerd.replication.required_set.sync_state import Proposal
from brokerd.replication.wire.frames import Handshake, Reply, TransferHeader
from remoting.disk import Bytes
from remoting.facts.words import BrokerRole


class Role(Enum):
    """What this broker is in its group."""

    FENCED = BrokerRole.FENCED  # no confirmed role: serves nobody, follows nobody
    PROMOTING = BrokerRole.PROMOTING  # elected; its log is being settled
    MASTER = BrokerRole.MASTER
    REPLICA = BrokerRole.REPLICA


@dataclass(frozen=True, slots=True)
class RoleView:
    """What a controller says about the group: by an answer to a linearizable request, or by a notification."""

    master_id: int | None
    master_epoch: int
    members: frozenset[int] = frozenset()
    set_epoch: int = 0
    master_address: str = ""
    master_ha_address: str = ""
    master_grpc_address: str = ""
    master_incarnation: int = 0  # which start of it was elected; 0 = not told
    master_is_ours: bool = True  # it told the controllers where it replicates, which the original's brokers do not


class Refusal(Enum):
    """Why the log did not take what a master sent."""

    FULL = "the disk has no room, which passes"
    DAMAGED = "a record is not what was stored: in the master's log, or on the way here"
    MISFIT = "it cannot be a log there: the two logs differ although their epochs say otherwise"


# Towards the waiting senders


@dataclass(frozen=True, slots=True)
class FailWaiters:
    """The role changed: nobody who waits may be told that its message is safe."""


@dataclass(frozen=True, slots=True)
class RoleChanged:
    role: Role
    master_epoch: int


# Towards the disk


@dataclass(frozen=True, slots=True)
class PersistMasterEpoch:
    epoch: int


@dataclass(frozen=True, slots=True)
class PersistEpochs:
    entries: tuple[EpochEntry, ...]


@dataclass(frozen=True, slots=True)
class SettleLog:
    """Cut an incomplete trailing record and make the rest durable; answered by `RoleMachine.log_settled`."""


@dataclass(frozen=True, slots=True)
class TruncateLog:
    offset: int


@dataclass(frozen=True, slots=True)
class ResetLog:
    """Remove everything; the empty log begins at `offset`."""

    offset: int


@dataclass(frozen=True, slots=True)
class AppendReplicated:
    offset: int
    buffers: Sequence[Bytes]


@dataclass(frozen=True, slots=True)
class RequestFlush:
    """Flush soon; answered by `RoleMachine.flushed`."""


# Towards other brokers


@dataclass(frozen=True, slots=True)
class Connect:
    """Dial the master's replication address; answered by `connected` or `connect_failed` with the same attempt."""

    address: str
    attempt: int


@dataclass(frozen=True, slots=True)
class CloseConnection:
    connection: int
    reason: str


@dataclass(frozen=True, slots=True)
class SendHandshake:
    connection: int
    handshake: Handshake


@dataclass(frozen=True, slots=True)
class SendReply:
    connection: int
    reply: Reply


@dataclass(frozen=True, slots=True)
class SendRelease:
    """To a replica that asked for it: nothing counts on its log."""

    connection: int


@dataclass(frozen=True, slots=True)
class SendTwinConnected:
    """To a replica whose broker id another process has; the connection is closed next."""

    connection: int


@dataclass(frozen=True, slots=True)
class SendAck:
    connection: int
    offset: int


@dataclass(frozen=True, slots=True)
class SendHeartbeat:
    connection: int
    header: TransferHeader


# Towards the controllers


class Ask(Enum):
    """What the controllers are to be asked."""

    SYNC = "who is master now, and what the sync-state set is"
    ELECTION = "for a new master epoch: there is no master, or the recorded one is an earlier life of this broker"
    MEMBERS = "which broker ids belong to the group: an unknown one wants to follow"


@dataclass(frozen=True, slots=True)
class ProposeSyncStateSet:
    proposal: Proposal
    master_epoch: int


Effect = (
    FailWaiters
    | RoleChanged
    | PersistMasterEpoch
    | PersistEpochs
    | SettleLog
    | TruncateLog
    | ResetLog
    | AppendReplicated
    | RequestFlush
    | Connect
    | CloseConnection
    | SendHandshake
    | SendReply
    | SendRelease
    | SendTwinConnected
    | SendAck
    | SendHeartbeat
    | Ask
    | ProposeSyncStateSet
)
