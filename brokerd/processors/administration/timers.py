"""Timers for the console: found by when they are due, by key or id, and taken back by hand (codes of ours)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from brokerd.consuming.key_queries import Found, KeyQueries
from brokerd.journal.record_log import RecordLog
from brokerd.loop.in_turns import run_in_turns
from brokerd.loop.scheduler import Scheduler
from brokerd.processors import fields
from brokerd.store.index.search import Question as KeyQuestion
from brokerd.timers.codes import MAX_DUE_MS
from brokerd.timers.described import describe
from brokerd.timers.finder import Question, TimerFinder, both
from brokerd.timers.finder_places import Part, read_token
from brokerd.timers.interface import Recalled
from brokerd.timers.service import TimerService
from remoting import codes
from remoting.errors import InvalidParameter, LogboomError, ProtocolError, RequestError
from remoting.facts.codec import decode, encode
from remoting.facts.timers import (
    Recall,
    RecallOutcome,
    RecallRequest,
    RecallRequests,
    Recalls,
    TimerItem,
    TimerPage,
    TimerStanding,
)
from remoting.frame import Command
from remoting.names import TIMER_TOPIC
from remoting.record.codec import decode_record
from remoting.record.hosts import decode_offset_message_id
from remoting.transport.connection import RemotingConnection

MAX_FOUND: Final = 100
MAX_RECALLED: Final = 100
MAX_NAME_LENGTH: Final = 150
_RECALLS_IN_A_TURN: Final = 8
_NEVER_MS: Final = MAX_DUE_MS + 1
_UNSURE: Final = frozenset({codes.FLUSH_DISK_TIMEOUT, codes.FLUSH_SLAVE_TIMEOUT, codes.SERVICE_NOT_AVAILABLE})


@dataclass(frozen=True, slots=True)
class TimerProcessor:
    """The handlers."""

    timers: TimerService
    finder: TimerFinder
    queries: KeyQueries
    log: RecordLog
    scheduler: Scheduler

    def find(self, connection: RemotingConnection, request: Command) -> None:
        """Those that wait and are due in a range of time; with a `key`, all records of messages with that key or id."""
        ext = request.ext
        topic, key = ext.get("topic", ""), ext.get("key", "")
        count = fields.integer(ext, "count", MAX_FOUND, low=1, high=MAX_FOUND)
        place = read_token(ext.get("after", ""))
        if key:
            question = Question(topic, 0, _NEVER_MS, place._replace(part=Part.TIER), count, key)
            if place.part is Part.TIER:
                self._find(connection, request, question)
            else:
                self._find_by_key(connection, request, question)
            return
        from_ms = fields.integer(ext, "fromMs", 0, low=0, high=_NEVER_MS)
        to_ms = fields.integer(ext, "toMs", _NEVER_MS, low=0, high=_NEVER_MS)
        self._find(connection, request, Question(topic, from_ms, to_ms, place, count))

    def recall(self, connection: RemotingConnection, request: Command) -> None:
        """Take some back; the answer says of each what became of it, when that cannot be lost any more."""
        by = fields.text(request.ext, "by")[:MAX_NAME_LENGTH]
        if any(ord(character) < 32 for character in by):
            raise InvalidParameter("by must not contain control characters")
        wanted = decode(RecallRequests, request.body).timers
        if len(wanted) > MAX_RECALLED:
            raise InvalidParameter(f"at most {MAX_RECALLED} timers are recalled at once, not {len(wanted)}")
        outcomes: dict[int, Recall] = {}

        def done(number: int, recall: Recall) -> None:
            outcomes[number] = recall
            if len(outcomes) == len(wanted):
                told = tuple(outcomes[each] for each in range(len(wanted)))
                connection.respond(request, body=encode(Recalls(timers=told)))

        if not wanted:
            connection.respond(request, body=encode(Recalls(timers=())))
            return

        def steps() -> Iterator[int]:
            for number, each in enumerate(wanted):
                self._recall(each, by, partial(done, number))
                yield 1

        run_in_turns(steps(), _RECALLS_IN_A_TURN, self.scheduler.call_soon)

    # ---- inside

    def _find(
        self, connection: RemotingConnection, request: Command, question: Question, before: TimerPage | None = None
    ) -> None:
        """Answer with what the finder finds, behind a page of the same answer."""

        def done(found: TimerPage | LogboomError) -> None:
            if isinstance(found, LogboomError):
                connection.respond_error(request, found)
            else:
                connection.respond(request, body=encode(found if before is None else both(before, found)))

        self.finder.find(question, done)

    def _recall(self, wanted: RecallRequest, by: str, done: partial[None]) -> None:
        timer = Recalled(wanted.topic, wanted.unique_key, wanted.place, wanted.due_ms, by)

        def ended(error: RequestError | None) -> None:
            if error is None:
                done(Recall(place=timer.place, outcome=RecallOutcome.RECALLED))
            else:
                outcome = RecallOutcome.UNKNOWN if error.code in _UNSURE else RecallOutcome.REFUSED
                done(Recall(place=timer.place, outcome=outcome, detail=error.message))

        try:
            standing = self.timers.standing(timer)
        except LogboomError as error:
            done(Recall(place=timer.place, outcome=RecallOutcome.REFUSED, detail=str(error)))
            return
        if standing is RecallOutcome.RECALLED:
            self.timers.recall(timer, ended)
        else:
            done(Recall(place=timer.place, outcome=standing))

    def _find_by_key(self, connection: RemotingConnection, request: Command, question: Question) -> None:
        """In the log, and if there is room in the tier."""
        record = self._by_id(question.key)
        if record is not None:
            connection.respond(request, body=encode(self._page([record], question.topic)))
            return
        if not self.queries.is_possible:
            raise RequestError(codes.SYSTEM_ERROR, "this broker keeps no index of keys (store.index_enabled is false)")

        def done(found: Found | LogboomError) -> None:
            if isinstance(found, LogboomError):
                connection.respond_error(request, found)
                return
            page = self._page(found.records, question.topic, found.unread_bytes)
            more = question._replace(most=question.most - len(page.items))
            try:
                self._find(connection, request, more, page)
            except RequestError as error:
                connection.respond_error(request, error)

        self.queries.find(KeyQuestion(TIMER_TOPIC, question.key, question.most, 0, fields.MAX_LONG), done)

    def _by_id(self, key: str) -> bytes | None:
        """The record that an id of the broker names: what the answer to a send says beside the client's own."""
        try:
            _, _, physical_offset = decode_offset_message_id(key)
        except LogboomError:
            return None
        record = self.log.find_record(physical_offset)
        return record if record is not None and decode_record(record).topic == TIMER_TOPIC else None

    def _page(self, records: list[bytes], topic: str, unread: int = 0) -> TimerPage:
        items = [item for each in records if (item := self._describe(each)) is not None and topic in ("", item.topic)]
        items.sort(key=lambda each: (each.standing is not TimerStanding.WAITING, -each.offset))
        return TimerPage(items=tuple(items), looked=len(records), unread=unread)

    def _describe(self, record: bytes) -> TimerItem | None:
        try:
            return describe(decode_record(record), self.timers.table)
        except ProtocolError:
            return None
