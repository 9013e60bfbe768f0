"""What Raft nodes say to one another and what a node must keep: plain immutable values (pure)

Owns no behaviour. `Ready` is the one place where the order of effects is fixed: `send_now` may leave at once, everything in
`send_after_persist` may leave only when `persist` is durable, and `committed` is applied after that. Called by the core, which
builds them, and by the shells, which carry them out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from controllerd.raft.quorum import Configuration, NodeId


class Role(StrEnum):
    """What a node is in its present term."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class EntryKind(IntEnum):
    """What an entry carries: nothing, what the state machine decided, or the group's next configuration. The numbers are part of
    the file format."""

    EMPTY = 0
    DECISION = 1
    MEMBERSHIP = 2


class MessageKind(IntEnum):
    """The conversation between nodes; the numbers are part of the wire format."""

    APPEND = 3
    APPEND_RESPONSE = 4
    VOTE = 5
    VOTE_RESPONSE = 6
    SNAPSHOT = 7
    HEARTBEAT = 8
    HEARTBEAT_RESPONSE = 9
    TIMEOUT_NOW = 14
    PRE_VOTE = 17
    PRE_VOTE_RESPONSE = 18


LEADER_TRAFFIC = frozenset({MessageKind.APPEND, MessageKind.HEARTBEAT, MessageKind.SNAPSHOT})


@dataclass(frozen=True, slots=True)
class Entry:
    """One position of the replicated log."""

    index: int
    term: int
    data: bytes = b""
    kind: EntryKind = EntryKind.DECISION

    @property
    def size_bytes(self) -> int:
        """What the entry weighs against size limits."""
        return len(self.data) + 24


@dataclass(frozen=True, slots=True)
class HardState:
    """What a node must remember so that it never votes twice in a term."""

    term: int = 0
    vote: NodeId | None = None
    commit: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state machine after the entry (index, term), and who was a member then."""

    index: int
    term: int
    configuration: Configuration
    data: bytes


@dataclass(frozen=True, slots=True)
class Message:
    """One message; a field that a kind does not use keeps its default.

    `index` and `log_term` name the entry before `entries` (append), the candidate's last entry (votes) or the acknowledged entry
    (append response). A refused append carries in `reject_hint` and `log_term` where the logs may still agree; votes carry in
    `commit` and `reject_hint` index and term of the last entry that their sender knows to be decided. `context` numbers
    the read that a heartbeat confirms (0: none). A `forced` vote is one that the leader asked for: voters do not wait until they
    miss it.
    """

    kind: MessageKind
    sender: NodeId
    to: NodeId
    term: int
    index: int = 0
    log_term: int = 0
    commit: int = 0
    reject: bool = False
    reject_hint: int = 0
    context: int = 0
    entries: tuple[Entry, ...] = ()
    snapshot: Snapshot | None = None
    forced: bool = False


@dataclass(frozen=True, slots=True)
class Persist:
    """What must be durable, as one unit; entries overwrite whatever the log holds from `entries[0].index` on."""

    hard_state: HardState
    snapshot: Snapshot | None
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class SoftState:
    """What a node believes; lost without harm."""

    role: Role
    leader: NodeId | None
    term: int


@dataclass(frozen=True, slots=True)
class ReadState:
    """A confirmed read: the state machine answers it correctly once it has applied `index`."""

    context: int
    index: int


@dataclass(frozen=True, slots=True)
class Ready:
    """One batch of effects, to be carried out in the order of the fields; then the core is told by `advance`."""

    send_now: tuple[Message, ...]
    persist: Persist | None
    send_after_persist: tuple[Message, ...]
    restore: Snapshot | None
    committed: tuple[Entry, ...]
    reads: tuple[ReadState, ...]


@dataclass(frozen=True, slots=True)
class Proposed:
    """Where a proposal went. It is committed exactly when the entry applied at `index` has this `term`."""

    index: int
    term: int
