"""What lives on the replicated log: state that is read from it, follows it, is cut with it, and on the master is kept in it.

Metadata, pop, transactions and delays are residents; the composition has them in a tuple, in which a resident stands behind those
that it reads from (metadata is the first: the others begin where its consumer offsets say). In that order they are told of
records and cuts, rebuilt, and made leaders; in the reverse order they step down and close. Two rules hold for each:

- At a position of the log, what a resident has is the same on every broker that is there, however it came there: by leading, by
  following, by a cut back to it, or by a start. What only a master has beside that (timers, who waits) begins with `lead`.
- A file of the log below all held offsets may go, and whoever starts without it has the same.

The life of a resident: `rebuild`, then `dispatched` as records are confirmed; `truncated` at any time. When the broker becomes
the master: `catch_up`, then `lead`; when it stops being one: `step_down`, then `rebuild`, as what it appended may be cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from brokerd.store.derived.dispatcher import Arrival


class Resident(Protocol):
    """One of them; all is called on the loop's thread."""

    @property
    def own_topics(self) -> frozenset[str]:
        """The topics that hold its records; it hears of arrivals in these."""

    def held_offset(self) -> int | None:
        """From where on the log must be kept (physical); None = it needs nothing of it."""

    def dispatched(self, arrivals: Sequence[Arrival]) -> None:
        """A round of dispatch made records readable, some of them in its topics. On the master it has applied its own already."""

    def truncated(self, end_offset: int) -> None:
        """The log ends at `end_offset` now, and its queues with it; both may be anywhere, and go on with other records."""

    def rolled(self) -> None:
        """On the master: a new file of the log was begun. Write soon what lets the older files go."""

    def rebuild(self) -> None:
        """Read what was dispatched from the log; not while leading. But at the start it may take further turns, in which
        the state is the one before. Raises CorruptedFile."""

    def catch_up(self) -> None:
        """This broker becomes the master with the log that it has: apply all of it, also what is not confirmed yet.

        Nothing is appended yet. Raises CorruptedFile.
        """

    def lead(self) -> None:
        """This broker is the master, and the log takes records: serve, and do what is due."""

    def step_down(self) -> None:
        """It is not any more, and the log takes no records: answer who waits, and stop the timers."""

    def close(self) -> None:
        """The process ends, whatever the role: record what is pending, answer who waits, and stop the timers."""
