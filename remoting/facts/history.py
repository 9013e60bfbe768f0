"""Entries of the history: elections and faults of the cluster, each with its times and its cause (pure)

The collector derives them from pairs of looks, keeps the newest in the snapshot and writes all of them to the console's database.
An entry is known by its key. It may change while it is not over, and never afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass

from remoting.facts.words import HistoryKind


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """One election or fault. Times are milliseconds since 1970; a fault lasts while `ended_ms` is None.

    `key` is made of the kind, of whom it is about and of the epoch or the time of its beginning. `subject` names whom it is
    about, `text` says what happened, `cause` why as far as that is known. An election is from `previous` to `elected`, in `epoch`
    (the controllers' term, of a leader), and lasts until the new one was seen to serve. A time that is `unwatched` is when the
    collector saw it: it had not looked for a while, so the truth is earlier.
    """

    key: str
    kind: HistoryKind
    cluster: str = ""
    group: str = ""
    subject: str = ""
    text: str
    cause: str = ""
    previous: str = ""
    elected: str = ""
    epoch: int | None = None
    started_ms: int
    ended_ms: int | None = None
    start_unwatched: bool = False
    end_unwatched: bool = False

    @property
    def duration_ms(self) -> int | None:
        """None while it lasts."""
        return None if self.ended_ms is None else max(0, self.ended_ms - self.started_ms)

    @property
    def whose(self) -> str:
        """The kind and whom it is about, without the occasion: two entries of the same are one after the other."""
        return self.key.rpartition("/")[0]
