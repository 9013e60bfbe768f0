"""The old master's part of a planned switch: take nothing new, wait for the successor, hold still until it is decided (pure).

    asked --> waiting: nothing new is accepted; the successor copies what is left, senders who wait are answered
          --> reached: the successor has the whole log; nothing is accepted until the role changes or the hold is over
          --> over:    refused, or out of time: the broker goes on as master

The gate is what keeps the log's end where it is, so that the successor's position can reach it. Nothing depends on the two times
for safety: an acknowledgement needs every member of the required set, before, during and after.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from brokerd.replication.required_set.replica_progress import ConnectionStage
from brokerd.replication.roles.mastership import Mastership

MAX_MS: Final = 10_000
_LINGER_MS: Final = 250  # how long senders may still be answered when the successor has everything already

# What became of the wait: "" when the successor has everything, else why not; and the log's end.
Told = Callable[[str, int], None]


class HandOver:
    """One planned switch, as the master of one epoch sees it. `told` is called exactly once."""

    def __init__(self, successor: int, wait_ms: int, hold_ms: int, now_ms: int, told: Told) -> None:
        self.successor = successor
        self._give_up_ms = now_ms + min(wait_ms, MAX_MS)
        self._hold_ms = min(hold_ms, MAX_MS)
        self._told = told
        self._is_told = False
        self._reached_ms: int | None = None
        self._until_ms = self._give_up_ms

    def is_over(self, now_ms: int) -> bool:
        """Whether the broker may accept messages again."""
        return now_ms >= self._until_ms

    def look(self, mastership: Mastership, end: int, waiting_sends: int, now_ms: int) -> None:
        """Something moved, or time went by; the log ends at `end`."""
        if self._is_told:
            return
        position = _position(mastership, self.successor)
        if position is None or self.successor not in mastership.sync.local:
            self.end(f"broker {self.successor} is not in sync with this master", end, now_ms)
        elif position < end:
            self._reached_ms = None
            if now_ms >= self._give_up_ms:
                self.end(f"broker {self.successor} still lacks {end - position} bytes of the log", end, now_ms)
        else:
            if self._reached_ms is None:
                self._reached_ms = now_ms
            if not waiting_sends or now_ms >= min(self._reached_ms + _LINGER_MS, self._give_up_ms):
                self._until_ms = now_ms + self._hold_ms
                self._tell("", end)

    def end(self, reason: str, end_offset: int, now_ms: int) -> None:
        """It will not happen: go on."""
        self._until_ms = now_ms
        self._tell(reason, end_offset)

    def _tell(self, reason: str, end_offset: int) -> None:
        if not self._is_told:
            self._is_told = True
            self._told(reason, end_offset)


def _position(mastership: Mastership, broker_id: int) -> int | None:
    """Up to where a replica has the log on disk; None while it does not follow."""
    for follower in mastership.followers:
        if follower.broker_id == broker_id and follower.stage is ConnectionStage.STREAMING and not follower.learner:
            return follower.ack_offset
    return None
