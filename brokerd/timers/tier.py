"""What timers need of an object store: there those wait that are due long after their files of the log go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from remoting.tier.stowed import StowedObject, Waiting


class Fetched(NamedTuple):
    """Timers of an object, from the first on that was asked for; the next one is due at `next_ms`, None: there is none."""

    timers: Sequence[Waiting]
    next_ms: int | None


Stored = Callable[[StowedObject | None], None]
Done = Callable[[Fetched | None], None]


class TimerTier(Protocol):
    """All is called on the loop's thread. What has no answer yet when this broker is not the master any more never has one."""

    @property
    def is_there(self) -> bool:
        """Whether there is an object store."""

    @property
    def is_open(self) -> bool:
        """Whether this broker may put objects there."""

    @property
    def trouble(self) -> str:
        """Why timers do not go there or do not come back now; "" when all is well."""

    @property
    def failures(self) -> int:
        """Attempts that failed, since the start."""

    def store(self, timers: Sequence[Waiting], before: int, done: Stored) -> None:
        """Have timers, which are in the order in which they are due, in an object, for which `settle` follows; None: it cannot be
        had now."""

    def settle(self, entry: StowedObject) -> None:
        """The log names the object now, or never will."""

    def fetch(self, entry: StowedObject, done: Done) -> None:
        """Some timers of the object, from the first on that did not return; None: they cannot be had now."""

    def hold(self, entry: StowedObject) -> None:
        """All of it is in the log, which names it no more: that may still be lost."""

    def retire(self, entry: StowedObject) -> None:
        """It cannot any more: the object is removed in a while."""


class ToTier(NamedTuple):
    """Timers go to the tier that are due further ahead than `ahead_ms`, and come back `back_ms` before they are due."""

    tier: TimerTier
    ahead_ms: int
    back_ms: int


class NoTier:
    """Without an object store."""

    is_there = is_open = False
    trouble = ""
    failures = 0

    def store(self, timers: Sequence[Waiting], before: int, done: Stored) -> None:
        done(None)

    def settle(self, entry: StowedObject) -> None:
        """There is none."""

    def fetch(self, entry: StowedObject, done: Done) -> None:
        done(None)

    def hold(self, entry: StowedObject) -> None:
        """There is none."""

    def retire(self, entry: StowedObject) -> None:
        """There is none."""
