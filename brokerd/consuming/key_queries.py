"""Queries by key: bring the index up to what consumers can see, then search it, all in slices beside the loop's other work."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from brokerd.loop.scheduler import Scheduler
from brokerd.store.derived.background import Background
from brokerd.store.index.search import MOST_MESSAGES, Question, Search
from brokerd.store.store import MessageStore
from remoting import codes
from remoting.errors import LogboomError, RequestError, StorageError
from remoting.record.codec import decode_record
from remoting.record.fields import physical_offset_of

_MOST_AT_ONCE: Final = 64
_STEP_ITEMS: Final = 256
_PATIENCE_S: Final = 2.0  # clients wait 3 seconds and more


class Found(NamedTuple):
    """The messages found, oldest first; how far the index is (store timestamp and offset of its newest message); and what the
    search did not see: bytes of the log that the index has still to read, and whether it gave up early."""

    records: list[bytes]
    last_timestamp_ms: int
    last_offset: int
    unread_bytes: int
    gave_up: bool


class ColdIndex(Protocol):
    """The index of what is in the tier."""

    def find(
        self,
        question: Question,
        known: Collection[tuple[int, int]],
        done: Callable[[Sequence[bytes] | LogboomError, bool], None],
    ) -> None:
        """Messages of the tier that answer it, oldest first, but for the known ones (queue id, queue offset); `done` is called
        later with them and with whether everything was looked at."""


class KeyQueries:
    """Finds messages by their keys, for remoting requests and the console; several searches take turns. What the files have is
    looked for first; the rest, as many as are still wanted, in the tier."""

    def __init__(
        self, store: MessageStore, background: Background, scheduler: Scheduler, cold: ColdIndex | None = None
    ) -> None:
        self._cold = cold
        self._store = store
        self._background = background
        self._scheduler = scheduler
        self._running = 0

    @property
    def is_possible(self) -> bool:
        return self._store.index is not None or self._cold is not None

    def find(self, question: Question, done: Callable[[Found | LogboomError], None]) -> None:
        """Search; `done` is called later. Raises RequestError when too many searches run."""
        if self._running >= _MOST_AT_ONCE:
            raise RequestError(codes.SYSTEM_BUSY, f"{_MOST_AT_ONCE} queries by key are running; try again")

        def ended(found: Found | LogboomError) -> None:
            self._running -= 1
            done(found)

        question = question._replace(most=min(question.most, MOST_MESSAGES))
        self._running += 1
        if self._store.index is not None:
            in_files = ended if self._cold is None else partial(self._go_on_in_tier, self._cold, question, ended)
            _Running(self._store, self._background, self._scheduler, question, in_files)
        elif self._cold is not None:
            self._go_on_in_tier(self._cold, question, ended, Found([], 0, 0, 0, False))

    def _go_on_in_tier(
        self,
        cold: ColdIndex,
        question: Question,
        done: Callable[[Found | LogboomError], None],
        found: Found | LogboomError,
    ) -> None:
        if isinstance(found, LogboomError) or len(found.records) >= question.most:
            done(found)
            return

        def ended(records: Sequence[bytes] | LogboomError, is_complete: bool) -> None:
            if isinstance(records, LogboomError):
                done(records)
            else:
                whole = sorted([*records, *found.records], key=physical_offset_of)
                done(found._replace(records=whole, gave_up=found.gave_up or not is_complete))

        known = {(each.queue_id, each.queue_offset) for each in map(decode_record, found.records)}
        cold.find(question._replace(most=question.most - len(found.records)), known, ended)


class _Running:
    """One query: waits for the index, at most its patience, then searches."""

    def __init__(
        self,
        store: MessageStore,
        background: Background,
        scheduler: Scheduler,
        question: Question,
        done: Callable[[Found | LogboomError], None],
    ) -> None:
        self._store = store
        self._background = background
        self._scheduler = scheduler
        self._question = question
        self._done = done
        self._search: Search | None = None
        self._impatience = scheduler.call_later(_PATIENCE_S, self._begin)
        background.hurry(self._begin)

    def _begin(self) -> None:
        if self._search is None and self._store.index is not None:
            self._impatience.cancel()
            self._search = Search(self._store.index, self._store.read_physical, self._question)
            self._step()

    def _step(self) -> None:
        search, index = self._search, self._store.index
        assert search is not None
        assert index is not None
        if self._background.is_closed:
            self._done(RequestError(codes.SERVICE_NOT_AVAILABLE, "this broker is stopping; ask another one"))
            return
        try:
            is_over = search.step(_STEP_ITEMS)
        except StorageError as error:  # of one file of the index, or of one message: nothing else depends on it
            self._done(RequestError(codes.SYSTEM_ERROR, str(error)))
            return
        if not is_over:
            self._scheduler.call_soon(self._step)
            return
        timestamp_ms, offset = index.last_update
        records = search.records()
        gave_up = not search.is_complete and len(records) < self._question.most
        self._done(Found(records, timestamp_ms, offset, max(0, self._background.behind_bytes), gave_up))
