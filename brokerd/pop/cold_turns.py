"""When pops read what only the tier has: in turns, in the line of all who read there (`loop/cold_line.py`).

Who asks for a queue out of turn gets nothing of it, stands in line, and is tried again when it is the turn of his group and
queue. A turn that nobody used is kept for a moment: for clients that do not wait, and ask again. Who had his turn and found that
the messages are on their way has no other one before they are there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from brokerd.loop.cold_line import SHORT_BYTES, SHORT_MESSAGES, ColdLine
from brokerd.store.store_reads import StoreReads

_KEPT_S: Final = 2.0
_MOST_KEPT: Final = 1000


class Turn(NamedTuple):
    """Of whom it is."""

    group: str
    topic: str
    queue_id: int


class ColdTurns:
    """Those of pops, and of who looks what a pop would get. `wake` has those tried who wait for it. Without a line everybody may
    read whatever he asks for."""

    def __init__(self, line: ColdLine | None, reads: StoreReads, wake: Callable[[str, str, int], None]) -> None:
        self._line = line
        self._reads = reads
        self._wake = wake
        self._asked: set[Turn] = set()
        self._granted: dict[Turn, float] = {}  # until when
        self._missed: set[Turn] = set()  # whose messages are being fetched
        self._used_s: float | None = None  # when the plan that reads began to

    def may_read(self, group: str, topic: str, queue_id: int, queue_offset: int) -> bool:
        """Whether it is the time for that; if not, it will come."""
        line = self._line
        if line is None or not self._reads.is_cold(topic, queue_id, queue_offset):
            return True
        turn = Turn(group, topic, queue_id)
        if turn in self._missed:
            return False
        now_s = line.clock_s()
        if self._granted.pop(turn, now_s) <= now_s and not line.take():
            self._ask(line, turn)
            return False
        if self._used_s is None:
            self._used_s = line.used_s()
        return True

    def missed(self, group: str, topic: str, queue_id: int) -> None:
        """Who was let read is to wait for messages that are being fetched; `fetched` is called then."""
        if self._line is not None:
            self._missed.add(Turn(group, topic, queue_id))

    def fetched(self, topic: str, queue_id: int) -> None:
        """A fetch of messages of the queue has ended."""
        self._missed = {each for each in self._missed if (each.topic, each.queue_id) != (topic, queue_id)}

    def limits(self, messages: int, size_bytes: int) -> tuple[int, int]:
        """So much may be read at once, which is all that was asked for unless it `is_reading` and others wait meanwhile."""
        if self._line is None or not self.is_reading or not self._line.is_beside_others:
            return messages, size_bytes
        return min(messages, SHORT_MESSAGES), min(size_bytes, SHORT_BYTES)

    @property
    def is_reading(self) -> bool:
        """Whether it was let, since the last `ended`."""
        return self._used_s is not None

    def ended(self) -> None:
        """A plan is carried out, or looked at: what it read from the tier is charged."""
        used_s, self._used_s = self._used_s, None
        if used_s is not None and self._line is not None:
            self._line.charge(self._line.used_s() - used_s)

    def charged(self, work: Callable[[], None]) -> None:
        """Do it, as part of such a plan."""
        if self._line is None:
            work()
            return
        used_s = self._line.used_s()
        work()
        self._line.charge(self._line.used_s() - used_s)

    # ---- inside

    def _ask(self, line: ColdLine, turn: Turn) -> None:
        if turn not in self._asked and line.stand((turn.group, turn.topic), lambda: self._grant(line, turn)):
            self._asked.add(turn)

    def _grant(self, line: ColdLine, turn: Turn) -> None:
        self._asked.discard(turn)
        now_s = line.clock_s()
        self._granted = {each: until_s for each, until_s in self._granted.items() if until_s > now_s}
        if len(self._granted) < _MOST_KEPT:
            self._granted[turn] = now_s + _KEPT_S
            self._wake(*turn)
