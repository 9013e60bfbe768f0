"""What sending needs of those to whom the end of the log is lent: the thread in C (`native/carrier.py`, `native/lane.py`), what
it lays out with (`native_kernel.py`), and who syncs for it (`store/log/syncs_in_c.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from brokerd.native.lane import Done
from brokerd.native.stays import Waiting
from brokerd.store.run import Run
from remoting.transport.carrying import Lender
from remoting.transport.connection import RemotingConnection


class LentKernel(Protocol):
    """What sends are laid out with, by one at a time."""

    def lend(self, run: Run) -> int:
        """Somebody else lays out in this run, of which nothing is laid out yet: where in memory is what he needs."""

    def take_back(self, run: Run, *, has_failed: bool) -> None:
        """The run has what he laid out, but for his last call's when that failed."""


class Lane(Protocol):
    """The end of the log: the loop's, or lent."""

    def lend(self, areas_at: int, descriptor: int, file_begin: int, for_ns: int, syncs_at: int = 0) -> None:
        """The loop has it. It is lent for so long, with the file that begins there."""

    def take_back(self) -> Done:
        """It was lent. Returns when nobody is at work."""

    def waited(self) -> Iterable[tuple[float, int]]:
        """Of messages that waited for the disk, and were answered since this was asked last: for how many ms, and how many."""

    @property
    def has_news(self) -> bool:
        """Whether something was taken since it was lent, or could not be written."""


class LentTo(Protocol):
    """The thread beside the loop. Both listeners are called on the loop."""

    lane_listener: Callable[[], None] | None
    waiting_listener: Callable[[Lender, Waiting], None] | None

    @property
    def lane(self) -> Lane: ...

    def have_sender(self, connection: RemotingConnection, told: Callable[[int], None]) -> bool:
        """Whether it takes what the connection sends from now on; `told` hears how many frames that was when it is over."""

    @property
    def has_senders(self) -> bool:
        """Whether anybody's sends are taken there."""

    def waiting_senders(self) -> tuple[int, int]:
        """How many groups of their messages wait for the disk there, and since when the first of them does."""

    def recall_senders(self) -> None:
        """Have them come back soon."""

    def finish_senders(self) -> None:
        """Return when they are back."""


class LentSyncs(Protocol):
    """Who syncs the log's last file for who appends beside the loop."""

    @property
    def at(self) -> int:
        """Where in memory that is."""

    def serves(self, file_begin: int) -> bool:
        """Whether the file that begins there is synced when that is wanted beside the loop."""

    def catch_up(self) -> None:
        """Take note of what is durable by now."""


class InC(NamedTuple):
    """What the thread works with; without syncs, as long as answers do not wait for the disk."""

    kernel: LentKernel
    carrier: LentTo
    syncs: LentSyncs | None
