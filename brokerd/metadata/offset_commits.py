"""Consumer offsets on their way into the log: the commits of a few milliseconds share one record, resets have their own.

What pulls carry of them waits longer. A client that pulls says with each request how far it is, many times a second, and commits
by itself when that has to be known: when a queue goes to another consumer, or when it ends.

Where a group has to go on elsewhere (a pending reset), what it commits meanwhile does not count: it is about messages that it
read before it knew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from brokerd.journal.journal import Journal
from brokerd.journal.record_log import error_of
from brokerd.loop.scheduler import Scheduler, Timer
from brokerd.metadata import records
from brokerd.metadata.tables import MetadataTables
from remoting.errors import LogboomError, RequestError, as_request_error

log = logging.getLogger(__name__)

Done = Callable[[RequestError | None], None]

_COMMIT_INTERVAL_S: Final = 0.005
_CARRIED_INTERVAL_S: Final = 0.05  # of what pulls carry
MAX_PENDING_COMMITS: Final = 8192  # of one record, which is one message of the log


class OffsetCommits:
    """Owned by the metadata service."""

    def __init__(
        self, journal: Journal, tables: MetadataTables, scheduler: Scheduler, now_ms: Callable[[], int]
    ) -> None:
        self._journal = journal
        self._tables = tables
        self._scheduler = scheduler
        self._now_ms = now_ms
        # Of which (group, topic, queue) somebody may have been told offsets that come here later, and what brings them. He
        # commits them as long as it is there: it goes with what is deleted.
        self.elsewhere: dict[tuple[str, str, int], Callable[[], None]] = {}
        self._commits: dict[tuple[str, str, int], int] = {}
        self._waiters: list[Done] = []
        self._timer: Timer | None = None
        self._flush_at_s = 0.0  # when the timer is due
        self._last_flush_s = 0.0

    def commit(
        self, group: str, topic: str, queue_id: int, offset: int, done: Done | None, *, is_carried: bool = False
    ) -> None:
        """Commit soon, or a little later what a pull carries; `done` None = nobody waits. While a reset is pending nothing
        happens, and that is fine."""
        key = (group, topic, queue_id)
        self._bring((key,))
        if self._tables.rules.pending_reset(group, topic, queue_id) is not None:
            if done is not None:
                done(None)
            return
        if key not in self._commits and len(self._commits) >= MAX_PENDING_COMMITS:
            self.flush()
        self._commits[key] = offset
        if done is not None:
            self._waiters.append(done)
        at_s = self._last_flush_s + (_CARRIED_INTERVAL_S if is_carried else _COMMIT_INTERVAL_S)
        if self._timer is None or at_s < self._flush_at_s:
            self._arm(at_s)

    def forget(self, is_gone: Callable[[tuple[str, str, int]], bool]) -> None:
        """What waits of (group, topic, queue) is not to be recorded: it is deleted, and would be there again."""
        for waiting in (self._commits, self.elsewhere):
            for key in [key for key in waiting if is_gone(key)]:
                del waiting[key]

    def _bring(self, keys: Iterable[tuple[str, str, int]]) -> None:
        """Have here what was told before of these."""
        if self.elsewhere:
            for key in keys:
                if key in self.elsewhere:
                    self.elsewhere[key]()

    def _arm(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._flush_at_s = at_s
        self._timer = self._scheduler.call_later(max(0.0, at_s - self._scheduler.time()), self.flush)

    def set_all(self, entries: Mapping[tuple[str, str, int], int], done: Done) -> None:
        """Commit many at once, whatever their number; those that are reset are left out."""
        rules = self._tables.rules
        self._bring(entries)
        wanted = [each for each in entries.items() if rules.pending_reset(*each[0]) is None]
        for key, _ in wanted:
            self._commits.pop(key, None)
        parts = (wanted[start : start + MAX_PENDING_COMMITS] for start in range(0, len(wanted), MAX_PENDING_COMMITS))
        self._journal.record((records.offsets(dict(part), self._now_ms()) for part in parts), done)

    def reset(self, group: str, topic: str, offsets: Mapping[int, int], done: Done) -> None:
        """Let a group go on at other offsets, by queue: they are its offsets from now on, and pending until it was told."""
        keys = [(group, topic, queue_id) for queue_id in offsets]
        self._bring(keys)
        for key in keys:
            self._commits.pop(key, None)
        ends = list(map(list, offsets.items()))
        record = records.record(records.OFFSETS_RESET, self._now_ms(), group=group, topic=topic, o=ends)
        self._journal.record([record], done)

    def take_resets(self, queues: Sequence[tuple[str, str, int]], done: Done) -> None:
        """The group is told about pending resets of (group, topic, queue), and goes on from there."""
        self._journal.record([records.record(records.RESETS_TAKEN, self._now_ms(), o=list(map(list, queues)))], done)

    def flush(self) -> None:
        """Append what was committed, and answer when it is acknowledged."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._last_flush_s = self._scheduler.time()
        commits, self._commits = self._commits, {}
        waiters, self._waiters = self._waiters, []
        changed = {key: offset for key, offset in commits.items() if self._tables.consumer_offset(*key) != offset}

        def tell(error: RequestError | None) -> None:
            for done in waiters:
                done(error)

        end_offset = self._journal.applied_offset
        if changed:
            try:
                end_offset = self._journal.append(*records.offsets(changed, self._now_ms()))
            except LogboomError as error:
                log.info("%d consumer offsets were not committed: %s", len(changed), error)
                tell(as_request_error(error))
                return
        if waiters:
            self._journal.when_acknowledged(end_offset, lambda status: tell(error_of(status)))

    def close(self) -> None:
        """Commit what waits and stop the timer."""
        if self._timer is not None:
            self.flush()
