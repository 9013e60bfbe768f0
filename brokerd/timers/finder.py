"""Looks for timers by when they are due, for people: a bounded part of them for each question, in turns of the loop.

They are taken in the order in which the broker comes to them, from the files and, of what these do not have yet, from the queue.
A timer on its way is come to before it is due: half a window at least (`rolling.py`). So a question about what is due sooner
than that begins where it says, and any other at the cursor.

One question is answered at a time; the others wait.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Generator, Iterator
from heapq import nsmallest
from typing import Final, NamedTuple

from brokerd.journal.record_log import RecordLog
from brokerd.loop.in_turns import run_in_turns
from brokerd.loop.scheduler import Scheduler
from brokerd.timers.codes import RECALL, START, Key, due_of, key_of, kind_of
from brokerd.timers.cursor import TimerTable
from brokerd.timers.described import describe
from brokerd.timers.files.layout import DamagedTimerFiles
from brokerd.timers.files.timer_files import TimerFiles
from brokerd.timers.files.timer_reads import Question as Asked
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
_TOKEN: Final = re.compile(r"([0-9]{1,16})\.([0-9]{1,18})")


class Question(NamedTuple):
    """Timers for a topic ("" = any) that are due in `[from_ms, to_ms)`: up to `most` behind the place `after`."""

    topic: str
    from_ms: int
    to_ms: int
    after: Key | None
    most: int


Done = Callable[[TimerPage | LogboomError], None]


def read_token(token: str) -> Key | None:
    """The place that a page's `next` names; None for "". Raises RequestError for another text."""
    if not token:
        return None
    found = _TOKEN.fullmatch(token)
    if found is None:
        raise RequestError(codes.INVALID_PARAMETER, "after: pass `next` of the answer before, as it was")
    return Key(int(found[1]), int(found[2]))


class TimerFinder:
    """On a master: its table is up to date."""

    def __init__(
        self,
        record_log: RecordLog,
        files: TimerFiles | None,
        table: TimerTable,
        window_ms: Callable[[], int],
        now_ms: Callable[[], int],
        scheduler: Scheduler,
    ) -> None:
        self._now_ms = now_ms
        self._log = record_log
        self._files = files
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
        try:
            while self._waiting:
                question, done = self._waiting.popleft()
                try:
                    answer: TimerPage | LogboomError = yield from self._answer(question)
                except DamagedTimerFiles:
                    answer = RequestError(codes.SYSTEM_BUSY, "the timer files are made again at the moment; ask again")
                except LogboomError as error:
                    answer = error
                done(answer)
        finally:
            self._is_answering = False

    def _answer(self, question: Question) -> Generator[int, None, TimerPage]:
        after = self._begin() if question.after is None else max(self._table.cursor, question.after)
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
        token = None if is_all else f"{after.due_ms}.{after.offset}"
        return TimerPage(items=tuple(items), next=token, looked=looked, unread=unread)

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

    def _item(self, offset: int) -> TimerItem | None:
        """None of what cannot be read: whoever delivers it says so."""
        low, high = self._log.queue_range(TIMER_TOPIC, 0)
        if not low <= offset < high:
            return None
        try:
            physical_offset, size, _ = self._log.read_units(TIMER_TOPIC, 0, offset, 1)[0]
            return describe(decode_record(self._log.record_at(physical_offset, size)), self._table)
        except (StorageError, ProtocolError):
            return None


def _is_wanted(item: TimerItem, question: Question) -> bool:
    return (
        item.standing is TimerStanding.WAITING
        and question.from_ms <= item.due_ms < question.to_ms
        and question.topic in ("", item.topic)
    )
