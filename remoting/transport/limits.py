"""What one peer of a connection may make us hold (pure); `connection.py` keeps to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from remoting import frame

_MAX_RUN: Final = 64
_MAX_LARGE_RUN: Final = 8  # of requests with large answers, before it is looked whether the peer reads them


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What one peer may make us hold: bytes of a frame, requests that were not answered yet, bytes that wait for a taker, and
    bytes of answers that it does not read. `wait_ms`, by request code: how long a request that was read may wait before it is
    handled; `other_wait_ms` for the codes that are not in it. `large_answers` are the codes whose answers may be large; those in
    `long_requests` are so large that a connection's turn is over with one of them. `always_reads`: also while much is unsent,
    for who dialled: answers come, and the other side may read nothing more before they are read."""

    max_frame_bytes: int = frame.MAX_FRAME_BYTES
    max_in_flight: int = 16384
    max_held_bytes: int = 1024 * 1024
    max_unsent_bytes: int = 32 * 1024 * 1024
    wait_ms: Mapping[int, int] = field(default_factory=dict)
    other_wait_ms: int = 60_000
    large_answers: frozenset[int] = frozenset()
    long_requests: frozenset[int] = frozenset()
    always_reads: bool = False

    def most_at_once(self, code: int) -> int:
        """How many requests with this code, one behind the other, a handler gets at once."""
        if code in self.long_requests:
            return 1
        return _MAX_LARGE_RUN if code in self.large_answers else _MAX_RUN

    def may_wait_s(self, code: int) -> float:
        """How long a request with this code may wait before it is handled."""
        return self.wait_ms.get(code, self.other_wait_ms) / 1000
