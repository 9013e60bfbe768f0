"""The seam for what is derived from the log beside the consume queues, each at its own pace with a position of its own.

Consume queues are dispatched before anybody reads on; a follower comes after them, when there is time for it, and never goes
beyond the dispatch offset. It is derived data: it says up to which position of the log it is complete, makes that durable with
the store's checkpoints, and takes the rest from the log again after a crash. It is cut with the log and ends with its files.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, Protocol

from remoting.errors import StorageError

log = logging.getLogger(__name__)

# Of the log, for each follower: more than arrives in the pauses that they make.
MOST_AT_CLOSE_BYTES: Final = 16 << 20


class FollowerWrite(Protocol):
    """What a follower has to write; `run` blocks and belongs into a helper thread."""

    def run(self) -> None: ...


class Reader(Protocol):
    """What reads on in the log when there is time for it."""

    @property
    def offset(self) -> int:
        """Everything before this position of the log is in it."""

    def take(self, limit_offset: int, most_bytes: int) -> int:
        """Read on, about that many bytes, to the record boundary `limit_offset` at most; returns how far that went.

        Raises CorruptedFile when the log is not what was appended.
        """


class Follower(Reader, Protocol):
    """One derived structure. The loop's thread calls everything but `FollowerWrite.run`."""

    def load(self, *, known: bool, clean: bool) -> None:
        """Take over the files at start. `known`: the store's own checkpoint is intact, so ours was written last; `clean`: the
        last run ended cleanly."""

    def truncate(self, offset: int) -> None:
        """The log was cut at the offset; durable on return."""

    def restart(self, offset: int) -> None:
        """The log was thrown away and begins at the offset; durable on return."""

    def begin_write(self, *, closing: bool) -> FollowerWrite | None:
        """What has to become durable now, or None; `closing`: everything, the store is closed next."""

    def finish_write(self, write: FollowerWrite) -> None: ...

    def abandon_write(self, write: FollowerWrite) -> None: ...

    def forget_expired(self, log_min_offset: int) -> Sequence[str]:
        """Forget files of which the log has nothing any more; returns the paths to remove."""

    def close(self) -> None: ...


def finish_all(followers: Sequence[Follower], end: int) -> None:
    """They rest between their slices, and a broker of the original goes by what they leave: it reads no keys of messages, and
    delivers timers again, that they have not come to. One that is far behind stays so."""
    for follower in followers:
        left = MOST_AT_CLOSE_BYTES
        try:
            while left > 0 and (moved := follower.take(end, left)):
                left -= moved
        except StorageError as error:  # it is complete up to there, and goes on there after the next start
            log.warning("what is derived from the log ends before it: %s", error)
