"""Running totals of the pop service since the start, for rates and metrics."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class PopCounters:
    """Counted by the pop service; read by anybody."""

    pops: int = 0
    empty_pops: int = 0
    refused_pops: int = 0
    popped_messages: int = 0
    popped_bytes: int = 0
    acked: int = 0
    changed: int = 0
    invalid_handles: int = 0
    revived: int = 0
    dead_lettered: int = 0
    renewed: int = 0
    lost: int = 0  # messages that could not come back: their topic, group or data was removed meanwhile
    revive_failures: int = 0

    def as_dict(self) -> dict[str, int]:
        return asdict(self)
