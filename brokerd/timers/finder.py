"""Looks for timers by when they are due, for people: a bounded part of them for each question, in turns of the loop.

They are taken in the order in which the broker comes to them, from the files and, of what these do not have yet, from the queue.
A timer on its way is come to before it is due: half a window at least (`rolling.py`). So a question about what is due sooner
than that begins where it says, and any other at the cursor. What waits in the tier follows (`stowed_search.py`).

One question is answered at a time; the others wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from functools import partial
from heapq import nsmallest
from typing import Final, NamedTuple

from brokerd.journal.record_log import RecordLog
from brokerd.loop.in_turns import run_in_turns
from brokerd.loop.scheduler import Scheduler
from brokerd.timers.codes import MOVED, RECALL, ROLLED, START, Key, due_of, key_of, kind_of, number_of
from brokerd.timers.cursor import TimerTable
from brokerd.timers.described import describe
from brokerd.timers.files.layout import DamagedTimerFiles
from brokerd.timers.files.timer_files import TimerFiles
from brokerd.timers.files.timer_reads import Question as Asked
from brokerd.timers.finder_places import Part, Place, read_token
from brokerd.timers.stowed_search import Sought, StowedPage, StowedSearch
from remoting import codes
from remoting.errors import LogboomError, ProtocolError, RequestError, StorageError
from remoting.facts.timers import TimerItem, TimerPage, TimerStanding
from remoting.names import TIMER_TOPIC
from remoting.record.codec import decode_record

MOST_LOOKED: Final = 2000  # records for one question
MOST_UNFILED: Final = 1 << 20  # entries that the files lack, for one question: a second
MOST_WAITING: Final = 16

_CHUNK: Final = 4096
_A_TURN: Final = 4096  # entries; a record that is read counts as so many:
_RECORD: Final = 64
_BATCH: Final = 256  # keys that are found at once
_PIECE_MS: Final = 86_400_000  # of the wheel: a look at the slots of more takes too long for a turn
_LAST_OFFSET: Final = 1 << 62


class Question(NamedTuple):
    """Timers for a topic ("" = any) that are due in `[from_ms, to_ms)`: up to `most` from that place on. With a key it is about
    the tier alone, and also about what was recalled."""

    topic: str
    from_ms: int
    to_ms: int
    place: Place
    most: int
    key: str = ""


Done = Callable[[TimerPage | LogboomError], None]


class LookedIn(NamedTuple):
    """Where timers are found beside their queue: in files, if they are kept, and in the tier."""

    files: TimerFiles | None
    stowed: StowedSearch


class TimerFinder:
    """On a master: its table is up to date."""

    def __init__(
        self,
        record_log: RecordLog,
        looked_in: LookedIn,
        table: TimerTable,
        window_ms: Callable[[], int],
        now_ms: Callable[[], int],
        scheduler: Scheduler,
    ) -> None:
        self._now_ms = now_ms
        self._log = record_log
        self._files, self._stowed = looked_in
        self._table = table
        self._window_ms = window_ms
        self._call_soon = scheduler.call_soon
        self._waiting: deque[tuple[Question, Done]] = deque()
        self._is_answering = False

    def find(self, question: Question, done: Done) -> None:
        """Answer a question, in later turns. Raises RequestError while too many wait."""
        if len(self._waiting) >= MOST_WAITING:
            raise RequestError(codes.SYSTEM_BUSY, f"{MOST_WAITING} questions for timers wait already; ask again")
        self._waiting.append((question, done))
        if not self._is_answering:
            self._is_answering = True
            run_in_turns(self._answer_all(), _A_TURN, self._call_soon)

    # ---- inside

    def _answer_all(self) -> Iterator[int]:
        is_asking = False
        try:
            while self._waiting and not is_asking:
                question, done = self._waiting.popleft()
                if question.place.part is Part.TIER:
                    is_asking = True
                    self._ask_tier(question, done)
                    return
                try:
                    page: TimerPage | LogboomError = yield from self._answer(question)
                except DamagedTimerFiles:
                    page = RequestError(codes.SYSTEM_BUSY, "the timer files are made again at the moment; ask again")
                except LogboomError as error:
                    page = error
                self._answered(question, page, done)
        finally:
            self._is_answering = is_asking

    def _ask_tier(self, question: Question, done: Done) -> None:
        """Others wait until the object store has answered, or time is over."""

        def found(page: StowedPage) -> None:
            place: Place | None
            if page.place is not None:
                place = Place(Part.TIER, stowed=page.place, since=question.place.since)
            else:
                place = None if question.place.since is None else Place(Part.BACK, since=question.place.since)
            told = TimerPage(
                items=tuple(page.items),
                next=None if place is None else place.token,
                looked=page.looked,
                unread_in_tier=page.unread,
                problem=page.problem,
            )
            self._answered(question, told, done)
            run_in_turns(self._answer_all(), _A_TURN, self._call_soon)

        wanted = partial(_is_wanted, question=question)
        sought = Sought(question.from_ms, question.to_ms, question.key, wanted, question.most)
        self._stowed.search(sought, question.place.stowed, found)

    def _answered(self, question: Question, page: TimerPage | LogboomError, done: Done) -> None:
        """Where a part is over and there is room, the next one is looked at for the same page."""
        if isinstance(page, LogboomError) or page.next is None:
            done(page)
            return
        place = read_token(page.next)
        if place.part is question.place.part or len(page.items) == question.most:
            done(page)
        else:
            before, more = page, question._replace(place=place, most=question.most - len(page.items))

            def ended(page: TimerPage | LogboomError) -> None:
                done(page if isinstance(page, LogboomError) else both(before, page))

            self._waiting.appendleft((more, ended))

    def _answer(self, question: Question) -> Generator[int, None, TimerPage]:
        """Of a part of the log."""
        if question.place.part is Part.BACK:
            return (yield from self._came_back(question))
        since = question.place.since
        if question.place.after is None and self._stowed.is_of_use:
            since = self._log.queue_range(TIMER_TOPIC, 0)[1]
        page, after = yield from self._in_order(question)
        if after is not None:
            place = Place(Part.LOG, after, since=since)
        elif since is not None or self._stowed.is_of_use:
            since = self._log.queue_range(TIMER_TOPIC, 0)[1] if since is None else since
            place = Place(Part.TIER, since=since)
        else:
            return page
        return replace(page, next=place.token)

    def _came_back(self, question: Question) -> Generator[int, None, TimerPage]:
        """What came from the tier since the search began: where it is in the order of keys may have been passed before."""
        assert question.place.since is not None
        low, high = self._log.queue_range(TIMER_TOPIC, 0)
        at, items, looked = max(low, question.place.since), list[TimerItem](), 0
        end = min(high, at + MOST_UNFILED)
        while at < end and looked < MOST_LOOKED and len(items) < question.most:
            units = self._log.read_units(TIMER_TOPIC, 0, at, min(_CHUNK, end - at))
            if not units:
                break
            yield len(units)
            for _, _, code in units:
                at += 1
                if kind_of(code) == ROLLED and not self._table.done.has(key_of(code, at - 1)):
                    looked += 1
                    yield _RECORD
                    item = self._item(at - 1, came_back=True)
                    if item is not None and _is_wanted(item, question):
                        items.append(item)
                if looked == MOST_LOOKED or len(items) == question.most:
                    break
        place = Place(Part.BACK, since=at)
        return TimerPage(items=tuple(items), next=place.token if at < high else None, looked=looked)

    def _in_order(self, question: Question) -> Generator[int, None, tuple[TimerPage, Key | None]]:
        """Behind a key; and behind which to go on, None: that was all."""
        asked = question.place.after
        after = self._begin() if asked is None else max(self._table.cursor, asked)
        if question.to_ms - self._window_ms() // 2 <= self._table.cursor.due_ms:
            after = max(after, Key(question.from_ms - 1, _LAST_OFFSET))
        begun = self._files.times_begun_again if self._files is not None else 0
        unfiled, unread = yield from self._unfiled(after, question.to_ms)
        items: list[TimerItem] = []
        looked, is_all = 0, False
        while not is_all and looked < MOST_LOOKED and len(items) < question.most:
            filed, is_all = yield from self._filed(after, question.to_ms, begun)
            between = [key for key in unfiled if key > after and (is_all or key < filed[-1])]
            for key in sorted({*filed, *between}):
                if looked == MOST_LOOKED or len(items) == question.most:
                    is_all = False
                    break
                after, looked = key, looked + 1
                yield _RECORD
                item = self._item(key.offset)
                if item is not None and _is_wanted(item, question):
                    items.append(item)
            is_all = is_all and len(unfiled) < MOST_LOOKED
            if not filed and not between:
                break
        return TimerPage(items=tuple(items), looked=looked, unread=unread), None if is_all else after

    def _begin(self) -> Key:
        """Behind what was delivered; where nothing ever was, before the first that came: a day, as clocks are set."""
        cursor = self._table.cursor
        low, high = self._log.queue_range(TIMER_TOPIC, 0)
        first = self._item(low) if cursor == START and low < high else None
        return cursor if first is None else max(cursor, Key(first.stored_ms - _PIECE_MS, -1))

    def _filed(self, after: Key, until_ms: int, begun: int) -> Generator[int, None, tuple[list[Key], bool]]:
        """The first keys in the files that are behind `after` and due before `until_ms`, and whether that is all of them."""
        files, found = self._files, list[Key]()
        if files is None:
            return found, True
        reads = files.look()
        # nothing in the files is due later: what is farther away is on a leg
        most_ms = max(after.due_ms, self._now_ms()) + max(self._window_ms(), files.span_ms)
        until_ms = min(until_ms, most_ms)
        while True:
            end_ms = min(until_ms, after.due_ms + _PIECE_MS)
            keys = None
            while keys is None:
                if files.times_begun_again != begun:
                    raise DamagedTimerFiles("they are made again")
                low = self._log.queue_range(TIMER_TOPIC, 0)[0]
                keys = reads.between(Asked(after, end_ms, _BATCH - len(found)), low) if files.applied else []
                yield _A_TURN
            found += keys
            if len(found) == _BATCH or end_ms >= until_ms:
                return found, len(found) < _BATCH
            after = Key(end_ms - 1, _LAST_OFFSET)

    def _unfiled(self, after: Key, until_ms: int) -> Generator[int, None, tuple[list[Key], int]]:
        """The same of the entries that the files lack, as many as are looked at; and how many entries were not seen."""
        low, high = self._log.queue_range(TIMER_TOPIC, 0)
        at = begin = max(low, self._files.applied if self._files is not None else 0)
        stop = min(high, begin + MOST_UNFILED)
        keys: list[Key] = []
        while at < stop:
            units = self._log.read_units(TIMER_TOPIC, 0, at, min(_CHUNK, stop - at))
            if not units:
                break
            keys += [
                key
                for offset, (_, _, code) in enumerate(units, at)
                if due_of(code) < until_ms and (key := key_of(code, offset)) > after and kind_of(code) != RECALL
            ]
            if len(keys) > 2 * MOST_LOOKED:
                keys = nsmallest(MOST_LOOKED, keys)
            at += len(units)
            yield len(units)
        return nsmallest(MOST_LOOKED, keys), max(0, high - max(at, begin))

    def _item(self, offset: int, *, came_back: bool = False) -> TimerItem | None:
        """None of what cannot be read: whoever delivers it says so. With `came_back` also of what never was in the tier."""
        low, high = self._log.queue_range(TIMER_TOPIC, 0)
        if not low <= offset < high:
            return None
        try:
            physical_offset, size, _ = self._log.read_units(TIMER_TOPIC, 0, offset, 1)[0]
            record = decode_record(self._log.record_at(physical_offset, size))
            if came_back and (number_of(record.property_map(), MOVED) or 0) <= 1:
                return None
            return describe(record, self._table)
        except (StorageError, ProtocolError):
            return None


def both(first: TimerPage, second: TimerPage) -> TimerPage:
    """One page of two."""
    return TimerPage(
        items=first.items + second.items,
        next=second.next,
        looked=first.looked + second.looked,
        unread=first.unread + second.unread,
        unread_in_tier=first.unread_in_tier + second.unread_in_tier,
        problem=first.problem or second.problem,
    )


def _is_wanted(item: TimerItem, question: Question) -> bool:
    return (
        (item.standing is TimerStanding.WAITING or question.key != "")
        and question.from_ms <= item.due_ms < question.to_ms
        and question.topic in ("", item.topic)
    )
