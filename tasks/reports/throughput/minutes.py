"""The minutes counted so far, added up from slice to slice (pure)"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

MOST_COUNTED: Final = 1_000_000
MOST_KEY: Final = 300


class Minute(NamedTuple):
    """One queue's minute; sorts by time first."""

    minute: datetime
    topic: str
    group: str
    queue_id: int

    @property
    def key(self) -> str:
        """Names the row within its section, in at most MOST_KEY characters."""
        text = f"{self.minute:%Y-%m-%dT%H:%M}|{self.topic}|{self.group}|{self.queue_id}"
        if len(text) <= MOST_KEY:
            return text
        return f"{text[:200]}|{hashlib.sha256(text.encode()).hexdigest()}"


class TooMany(Exception):
    """There are more rows than can be held; the text says what to do."""


class Minutes:
    """Messages and bytes of each minute."""

    def __init__(self) -> None:
        self.counts: dict[Minute, tuple[int, int]] = {}
        self.messages = 0

    def add(self, rows: Iterable[Mapping[str, Any]]) -> list[Minute]:
        """Add one slice's rows; return which minutes changed. Raises TooMany."""
        changed = []
        for row in rows:
            minute = Minute(row["minute"], row["topic"], row["broker_name"], row["queue_id"])
            messages, size = self.counts.get(minute, (0, 0))
            self.counts[minute] = (messages + row["messages"], size + row["bytes"])
            self.messages += row["messages"]
            changed.append(minute)
        if len(self.counts) > MOST_COUNTED:
            raise TooMany(
                f"more than {MOST_COUNTED:,} minutes of queues to count; choose fewer topics or a shorter time range"
            )
        return changed

    def row(self, minute: Minute) -> dict[str, Any]:
        """One minute as the report's section has it."""
        messages, size = self.counts[minute]
        return {
            "topic": minute.topic,
            "group": minute.group,
            "queue_id": minute.queue_id,
            "minute": f"{minute.minute:%Y-%m-%dT%H:%M:%S}.000Z",
            "messages": messages,
            "bytes": size,
        }

    def newest(self, most: int) -> list[Minute]:
        """At most so many minutes, the newest, newest first."""
        return sorted(self.counts, reverse=True)[:most]
