"""Which messages of one queue may be finished, for who asked for it and does not know of every ack how it ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from brokerd.pop.requests import AckStatus


class AskedAcks:
    """Counts the acks of each queue offset that were not refused.

    From when an ack is asked for it may have finished its message, whether the answer comes or not; a refused handle finishes
    nothing. A message that came twice is acknowledged by two handles, and their answers may come in any order: that the older
    handle is refused takes back that ack alone.
    """

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def ask(self, offsets: Iterable[int]) -> None:
        """An ack of these messages begins."""
        self._counts.update(offsets)

    def answer(self, offsets: Sequence[int], statuses: Sequence[AckStatus] | None) -> None:
        """It ended with these statuses, one a message; None when no answer came in time."""
        if statuses is not None:
            refused = (
                offset for offset, status in zip(offsets, statuses, strict=True) if status is AckStatus.INVALID_HANDLE
            )
            self._counts.subtract(refused)

    def may_be_finished(self, offset: int) -> bool:
        """Whether some ack of the message was not refused."""
        return self._counts[offset] > 0
