"""Running totals of the pop service since the start, for rates and metrics."""

from __future__ import annotations


class PopCounters:
    """Counted by the pop service; read by anybody."""

    __slots__ = (
        "acked",
        "changed",
        "dead_lettered",
        "empty_pops",
        "invalid_handles",
        "lost",
        "popped_bytes",
        "popped_messages",
        "pops",
        "refused_pops",
        "renewed",
        "revive_failures",
        "revived",
    )

    def __init__(self) -> None:
        self.pops = self.empty_pops = self.refused_pops = 0
        self.popped_messages = self.popped_bytes = 0
        self.acked = self.changed = self.invalid_handles = 0
        self.revived = self.dead_lettered = self.renewed = 0
        self.lost = 0  # messages that could not come back: their topic, group or data was removed meanwhile
        self.revive_failures = 0

    def as_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}
