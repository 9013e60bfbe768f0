"""How late the event loop of a broker or controller is (pure)"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopState:
    """In milliseconds: the last tick's delay, the worst of the last one to two minutes, and the longest since the start.

    `pauses` counts how often the process stood still.
    """

    delay_ms: int = 0
    worst_delay_ms: int = 0
    pauses: int = 0
    longest_pause_ms: int = 0
