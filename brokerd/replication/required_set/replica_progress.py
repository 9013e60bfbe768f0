"""What a master knows of one replica: where its connection stands, and how well it keeps up across connections (pure)."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from brokerd.replication.wire.frames import Handshake, Layout
from remoting.liveness import Patience, Silence


class ConnectionStage(Enum):
    """Where a replica's connection stands. Moves only downward; everything else closes it."""

    ACCEPTED = "accepted"  # no handshake yet: acks nothing
    GREETED = "greeted"  # our epochs were sent; the replica cuts its log
    STREAMING = "streaming"  # its first ack said from where to send


class Follower:
    """One replica's connection."""

    __slots__ = (
        "ack_offset", "address", "broker_id", "confirm_sent", "connection", "from_last_file", "incarnation", "layout",
        "learner", "next_offset", "sent_ms", "silence", "stage", "unanswered",
    )  # fmt: skip

    def __init__(self, connection: int, patience: Patience, now_ms: int) -> None:
        self.connection = connection
        self.silence = Silence(patience, now_ms)
        self.unanswered: Handshake | None = None  # of a broker id that is not known (yet)
        self.broker_id = -1  # stays so for a guest: sent the log, counted nowhere
        self.address = ""  # of a guest, as it says
        self.layout = Layout.OWN
        self.incarnation = 0
        self.from_last_file = False
        self.learner = False
        self.stage = ConnectionStage.ACCEPTED
        self.ack_offset = -1
        self.next_offset = -1
        self.confirm_sent = -1
        self.sent_ms = now_ms


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
