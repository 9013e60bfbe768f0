"""What timers need of an object store: there those wait that are due long after their files of the log go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from remoting.tier.stowed import StowedObject, Waiting
from remoting.tier.stowed_summary import Summary


class Fetched(NamedTuple):
    """Timers of an object, from the first on that was asked for; the next one is due at `next_ms`, None: there is none."""

    timers: Sequence[Waiting]
    next_ms: int | None


class Wanted(NamedTuple):
    """Timers of an object that somebody looks for: from the number `first` on, those that may be due in `[from_ms, to_ms)`, and
    may have a key of that hash, where there is one."""

    first: int
    from_ms: int
    to_ms: int
    hashed: int | None = None


class Looked(NamedTuple):
    """Some of these with their numbers, in order; `next` is where to go on, None: there are no more."""

    timers: Sequence[tuple[int, Waiting]]
    next: int | None


class Unseen(NamedTuple):
    """They cannot be had, and why. Where it is `of_store`, no other object can be had now, either."""

    reason: str
    of_store: bool = False


Stored = Callable[[StowedObject | None], None]
Done = Callable[[Fetched | None], None]
Summarized = Callable[[Summary | str], None]
Seen = Callable[[Looked | Unseen], None]
NO_STORE: Final = "this broker has no object store: start its group with the same tiers.url as before"


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

    def summarize(self, entry: StowedObject, done: Summarized) -> None:
        """What the object says of all its timers, or why that cannot be had now."""

    def look(self, entry: StowedObject, wanted: Wanted, done: Seen) -> None:
        """Some timers of the object for people: two or three requests, and about a megabyte."""

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

    def summarize(self, entry: StowedObject, done: Summarized) -> None:
        done(NO_STORE)

    def look(self, entry: StowedObject, wanted: Wanted, done: Seen) -> None:
        done(Unseen(NO_STORE, of_store=True))

    def hold(self, entry: StowedObject) -> None:
        """There is none."""

    def retire(self, entry: StowedObject) -> None:
        """There is none."""
