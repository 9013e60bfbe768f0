"""What a master knows of one replica: where its connection stands, and how well it keeps up across connections (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from brokerd.replication.wire.frames import Handshake, Layout
from remoting.liveness import Silence


class ConnectionStage(Enum):
    """Where a replica's connection stands. Moves only downward; everything else closes it."""

    ACCEPTED = "accepted"  # no handshake yet: acks nothing
    LEAVING = "leaving"  # it wants to drop its log, and waits until nothing counts on it
    GREETED = "greeted"  # our epochs were sent; the replica cuts its log
    STREAMING = "streaming"  # its first ack said from where to send


@dataclass(slots=True, eq=False)
class Follower:
    """One replica's connection."""

    connection: int
    silence: Silence
    sent_ms: int
    unanswered: Handshake | None = None  # of a broker id that is not known (yet)
    broker_id: int = -1  # stays so for a guest: sent the log, counted nowhere
    address: str = ""  # of a guest, as it says
    host: str = ""  # where the connection comes from
    layout: Layout = Layout.OWN
    incarnation: int = 0
    from_last_file: bool = False
    learner: bool = False
    stage: ConnectionStage = ConnectionStage.ACCEPTED
    ack_offset: int = -1
    next_offset: int = -1
    confirm_sent: int = -1
    went_back: bool = False  # it is required, and has less than it had acknowledged


class MissingCopy(NamedTuple):
    """A copy that the group lacks, why, and for how long (whatever the reason was in between). `stalls`: it is required, so sends
    wait for it."""

    broker_id: int
    reason: str
    stalls: bool
    for_ms: int


class Progress:
    """How well a replica keeps up, across its connections."""

    __slots__ = ("caught_up_ms", "lost_ms", "mark_end", "mark_ms")

    def __init__(self, caught_up_ms: int, lost_ms: int) -> None:
        self.caught_up_ms = caught_up_ms  # the last moment whose whole log the replica is known to have
        self.mark_end = 0  # the log's end at `mark_ms`: an ack that reaches it proves "caught up at mark_ms"
        self.mark_ms = caught_up_ms
        self.lost_ms = lost_ms  # since when it has had no streaming connection

    def acked(self, offset: int, end_offset: int, now_ms: int) -> None:
        if offset >= end_offset:
            self.caught_up_ms = now_ms
        elif offset < self.mark_end:
            return
        elif self.mark_ms > self.caught_up_ms:
            self.caught_up_ms = self.mark_ms
        self.mark_end = end_offset
        self.mark_ms = now_ms
