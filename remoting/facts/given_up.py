"""Half messages that were given up, as their broker lists them for the console (pure)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """One of them. `offset` is its place in queue 0 of TRANS_CHECK_MAX_TIME_TOPIC; `checks`: how often its producer was asked.

    `decision` is what somebody decided about it by hand since (commit, rollback, or resumed: it was opened anew).
    """

    offset: int
    key: str
    producer_group: str
    topic: str
    size: int
    begun_at_ms: int
    given_up_at_ms: int
    checks: int
    decision: str | None = None
    decided_by: str | None = None
    decided_at_ms: int | None = None

    @property
    def open_ms(self) -> int:
        """How long it was open before it was given up."""
        return max(0, self.given_up_at_ms - self.begun_at_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUpPage:
    """Some of them, the newest first; older ones are asked for with `before`, None when there are none."""

    items: tuple[GivenUp, ...]
    before: int | None
