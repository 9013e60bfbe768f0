"""What is known so far of each topic's hours, filled from slices and then from all of them (pure)"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

MOST_HOURS: Final = 1_000_000
ADDED: Final = ("delivered", "rolled", "early")
COUNTS: Final = ("delivered", "rolled", "recalled", "overdue", "early", "duplicates")
PERCENTILES: Final = ("p50_ms", "p95_ms", "p99_ms")


class TooMany(Exception):
    """There are more rows than can be held; the text says what to do."""


class Hour(NamedTuple):
    """A topic's hour, which begins then (UTC); sorts by time first."""

    hour_ms: int
    topic: str

    @property
    def key(self) -> str:
        """Names the row within its section: a topic's name has at most 255 characters."""
        return f"{self.hour_ms}|{self.topic}"


class Hours:
    """By hour and topic: the counts, and how late what was delivered came, as far as that is known."""

    def __init__(self) -> None:
        self.found: dict[Hour, dict[str, Any]] = {}
        self.messages = 0  # of all kinds, in the slices so far

    def add(self, rows: Iterable[Mapping[str, Any]]) -> list[Hour]:
        """Add what one slice has; return which hours changed. Raises TooMany."""
        changed = []
        for row in rows:
            self.messages += row["messages"]
            if row["hour_ms"] is None:
                continue  # no timers
            hour, values = self._values(row)
            for name in ADDED:
                values[name] += row[name]
            values["max_ms"] = _larger(values["max_ms"], row["max_ms"])
            changed.append(hour)
        self._check()
        return changed

    def put(self, rows: Iterable[Mapping[str, Any]], *names: str) -> None:
        """Take these values, which are whole, in the place of what was known. Raises TooMany."""
        for row in rows:
            _, values = self._values(row)
            values.update({name: row[name] for name in names})
        self._check()

    def row(self, hour: Hour) -> dict[str, Any]:
        """One as the report's section has it."""
        return {"topic": hour.topic, "hour": moment(hour.hour_ms), **self.found[hour]}

    def newest(self, most: int) -> list[Hour]:
        """At most so many, newest first."""
        return sorted(self.found, reverse=True)[:most]

    def total(self, name: str, topic: str | None = None) -> int:
        """The sum of a count over the hours of a topic, or of all."""
        return sum(values[name] for hour, values in self.found.items() if topic in (None, hour.topic))

    def _values(self, row: Mapping[str, Any]) -> tuple[Hour, dict[str, Any]]:
        hour = Hour(row["hour_ms"], row["topic"] or "")
        unknown = {**dict.fromkeys(COUNTS, 0), **dict.fromkeys((*PERCENTILES, "max_ms"))}
        return hour, self.found.setdefault(hour, unknown)

    def _check(self) -> None:
        if len(self.found) > MOST_HOURS:
            raise TooMany(
                f"more than {MOST_HOURS:,} hours of topics to count; choose fewer topics or a shorter time range"
            )


def moment(time_ms: int | None) -> str | None:
    """As a section has it; None for a time that no calendar has."""
    try:
        at = None if time_ms is None else datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return None if at is None else at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _larger(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)
