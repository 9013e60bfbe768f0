"""What clients and observers learned during a run: operations with their outcome, and what was seen of the cluster (pure).

Times are seconds on the machine's monotonic clock, the same for every process of the run.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple


class Outcome(StrEnum):
    """Done; certainly not done; or no way to know (no answer, or an answer that says so: codes 10, 11, 12)."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Kind(StrEnum):
    """What a client asked for."""

    SEND = "send"
    PULL = "pull"
    COMMIT = "commit"
    COMMITTED = "committed"  # asked for the committed offset
    POP = "pop"
    ACK = "ack"


class Operation(NamedTuple):
    """One request of one client. `value` is the queue offset of a send or commit, the number of messages of a pull or pop."""

    client: str
    kind: Kind
    start_s: float
    end_s: float
    outcome: Outcome
    broker: str = ""
    message: str = ""
    queue_id: int = -1
    value: int = -1
    detail: str = ""


class Delivery(NamedTuple):
    """A message that a consumer got."""

    client: str
    start_s: float  # of the request that brought it
    at_s: float
    body: bytes
    queue_id: int
    queue_offset: int


class View(NamedTuple):
    """What one controller said of the group, when it differed from what it had said before."""

    start_s: float
    end_s: float
    node: str
    is_leader: bool
    term: int
    master_epoch: int
    set_epoch: int
    master: str | None
    members: tuple[str, ...]


class BrokerView(NamedTuple):
    """What one broker said of itself, when it differed from what it had said before."""

    start_s: float
    end_s: float
    node: str
    role: str
    master_epoch: int
    confirm_offset: int
    end_offset: int
    consumer_offsets: tuple[tuple[str, int, int], ...]  # (group and topic, queue, offset)
    max_offsets: tuple[tuple[str, int, int], ...]  # (topic, queue, offset)


class Read(NamedTuple):
    """A linearizable read of the group's state."""

    start_s: float
    end_s: float
    node: str
    master_epoch: int
    set_epoch: int


SET_LOST: Final = "every member of the set is down"


@dataclass
class FaultWindow:
    """One fault, as it was injected. `evidence` says for each thing looked at whether the fault was really in force."""

    name: str
    start_s: float
    end_s: float = 0.0
    details: dict[str, Any] = field(default_factory=dict)
    evidence: list[tuple[str, bool]] = field(default_factory=list)
    quiet: bool = False  # no client does anything meanwhile, on purpose
    in_force_s: float = 0.0  # when all of it was injected; on a slow machine that takes a while

    def note(self, what: str, in_force: bool) -> None:
        self.evidence.append((what, in_force))


@dataclass
class History:
    """Everything that was recorded. Appending to a list is atomic, so threads share it without a lock."""

    operations: list[Operation] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    views: list[View] = field(default_factory=list)
    broker_views: list[BrokerView] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    faults: list[FaultWindow] = field(default_factory=list)
    marks: list[tuple[float, str]] = field(default_factory=list)
    silences: list[tuple[float, str]] = field(default_factory=list)  # from when on a node did not answer its watcher

    def sends(self) -> list[Operation]:
        return [each for each in self.operations if each.kind is Kind.SEND]

    def during(self, window: FaultWindow, kinds: Iterable[Kind] = (Kind.SEND,)) -> list[Operation]:
        """The operations that were under way at some moment of a fault."""
        chosen = set(kinds)
        return [
            each
            for each in self.operations
            if each.kind in chosen and each.end_s >= window.start_s and each.start_s <= window.end_s
        ]


def message_name(client: str, key: str, sequence: int) -> str:
    """The unique name of a message: who sent it, its sharding key, its number among the messages of that key."""
    return f"{client}|{key}|{sequence}"


def body_of(name: str) -> bytes:
    """The body of a message: its name, then bytes and a length that follow from the name, so that half of one is recognised."""
    seed = zlib.crc32(name.encode())
    filler = b"%08x" % seed * (10 + seed % 40)
    return f"{name}|".encode() + filler


def name_in(body: bytes) -> str:
    """The name that a body begins with; the body need not be whole."""
    return b"|".join(body.split(b"|")[:3]).decode(errors="replace")


def parse_name(name: str) -> tuple[str, str, int]:
    """(client, key, sequence)."""
    client, key, sequence = name.split("|")
    return client, key, int(sequence)
