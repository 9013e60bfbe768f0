"""Moments and lengths of time as the snapshot writes them (pure)"""

from __future__ import annotations

from datetime import UTC, datetime


def timestamp(now_ms: int) -> str:
    """RFC 3339, UTC, with milliseconds."""
    seconds, ms = divmod(now_ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ms:03d}Z"


def milliseconds(text: str | None) -> int | None:
    """Since 1970; None when it is no moment."""
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return int(aware.timestamp() * 1000)


def length(ms: int) -> str:
    """For a sentence: "1.2 s", "3 min 20 s", "2 h 5 min", "3 days"."""
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    minutes, seconds = divmod(ms // 1000, 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s"
    hours, minutes = divmod(minutes, 60)
    days = hours // 24
    return f"{hours} h {minutes} min" if days < 2 else f"{days} days"
