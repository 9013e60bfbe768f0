"""Transactions for the endpoints: half messages in, decisions of producers, and a view of what is open.

A decision is one write of two records, first the message, then the op record that closes the transaction: what a crash leaves
of them may deliver the message twice, never lose it. Only a master serves; a replica follows, so that it can go on as master.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from brokerd.journal.record_log import reason_of
from brokerd.store.derived.dispatcher import Arrival
from brokerd.store.draft import Draft
from brokerd.store.put_status import PutStatus
from brokerd.store.run import AppendResult
from brokerd.transactions import records
from brokerd.transactions.checking import CheckBack
from brokerd.transactions.decide import (
    EndTransaction,
    HalfRoom,
    Outcome,
    WrongTransaction,
    check_admission,
    check_end,
    room_for,
)
from brokerd.transactions.given_up import GivenUpMessages
from brokerd.transactions.records import GIVEN_UP_TOPIC, OP_TOPIC, EndedAs, Half
from brokerd.transactions.settings import TransactionSettings
from brokerd.transactions.topics import TransactionTopics
from remoting import codes
from remoting.errors import LogboomError, RequestError, as_request_error
from remoting.facts.broker_state import TransactionState
from remoting.names import HALF_TOPIC
from remoting.record.codec import Record
from remoting.settings import Live

Done = Callable[[RequestError | None], None]

_WHO_RESUMES: Final = "request 323"


class TransactionService:
    """A `journal.resident.Resident`."""

    own_topics: Final = frozenset({HALF_TOPIC, OP_TOPIC})

    def __init__(
        self,
        topics: TransactionTopics,
        checks: CheckBack,
        settings: Live[TransactionSettings],
        to_waiting_draft: Callable[[Draft], Draft],
    ) -> None:
        """`to_waiting_draft` says how a message waits that is delivered later, from its commit on; others stay as they are."""
        self.counters = topics.counters
        self.table = topics.table
        self._topics = topics
        self._checks = checks
        self._settings = settings
        self._to_waiting_draft = to_waiting_draft
        self._serving = False
        self.given_up = GivenUpMessages(topics, self._commit_draft)

    # ---- half messages (`sending.sender.HalfMessages`)

    def to_stored_draft(self, draft: Draft) -> Draft:
        """The half message of a draft that begins a transaction; any other draft as it is. Raises RequestError."""
        if not records.is_half(draft):
            return records.ordinary_draft(draft)
        check_admission(self.table, len(draft.body) + len(draft.properties), self._settings.value)
        return records.half_draft(draft)

    def stored(self, draft: Draft, place: AppendResult) -> None:
        """A half message was appended."""
        self._topics.stored(draft, place)
        self.counters.begun += 1

    def room(self) -> HalfRoom:
        """For transactions that begin now."""
        return room_for(self.table, self._settings.value)

    def begun(self, halves: Sequence[Half], end_offset: int) -> None:
        """Half messages were appended, the last of which ends there."""
        self._topics.begun(halves, end_offset)
        self.counters.begun += len(halves)

    # ---- decisions

    def end(self, request: EndTransaction, done: Done, may_use: Callable[[Record], None]) -> None:
        """Carry out what a producer decided; `done` follows when it is acknowledged, with the reason when it is refused, or when
        nobody knows whether it will be so. Whoever decides the same again is told about the first time. `may_use` raises
        RequestError when the half message is none that who asks may decide about."""
        try:
            self._require_master("ends transactions")
            if request.outcome is Outcome.UNKNOWN:
                done(None)
                return
            end_offset = self._end(request, may_use)
        except LogboomError as error:
            self.counters.refused_ends += 1
            done(as_request_error(error))
            return
        self._when_acknowledged(end_offset, done)

    def end_given_up(self, offset: int, ended_as: EndedAs, by: str, done: Done) -> None:
        """Commit a half message that was given up, or roll it back, as `by` decided; `offset` is its place among those."""
        try:
            self._require_master("ends transactions")
            end_offset = self.given_up.end(offset, ended_as, by)
        except LogboomError as error:
            done(as_request_error(error))
            return
        self._when_acknowledged(end_offset, done)

    def resume(self, physical_offset: int, done: Done, may_use: Callable[[Record], None]) -> None:
        """Begin anew with the checks of a half message that is open or was given up. `may_use`: see `end`."""
        try:
            self._require_master("checks transactions")
            record = self._topics.read(physical_offset)
            if record is None or record.topic not in (HALF_TOPIC, GIVEN_UP_TOPIC):
                raise RequestError(
                    codes.SYSTEM_ERROR,
                    f"no half message, and none that was given up, starts at {physical_offset} of this broker's log",
                )
            may_use(record)
            if record.topic == HALF_TOPIC:
                end_offset = self._topics.replace(self._find_open(record), record, 0).end_offset
            else:
                end_offset = self._begin_again(record)
        except LogboomError as error:
            done(as_request_error(error))
            return
        self._when_acknowledged(end_offset, done)

    # ---- resident of the log

    def held_offset(self) -> int | None:
        """Where the oldest half message that is open begins."""
        oldest = self.table.oldest
        return None if oldest is None else oldest.physical_offset

    def dispatched(self, _arrivals: Sequence[Arrival]) -> None:
        """Apply the records that are new here."""
        self._topics.follow()

    def truncated(self, end_offset: int) -> None:
        self.given_up.restart()
        self._topics.truncated(end_offset)

    def rolled(self) -> None:
        """Nothing: what stays open for long moves up along with the log (`CheckBack`)."""

    def rebuild(self) -> None:
        """The metadata says from where on."""
        self.given_up.restart()
        self._topics.rebuild()

    def catch_up(self) -> None:
        self._topics.catch_up()

    def lead(self) -> None:
        """Look after what is open."""
        self._serving = True
        self._checks.start()

    def step_down(self) -> None:
        self._serving = False
        self._checks.stop()

    def close(self) -> None:
        self.step_down()

    # ---- looking

    def state(self) -> TransactionState:
        """For people: what is open, and what was done since the start."""
        now_ms = self._topics.now_ms()
        longest = self.table.longest_open
        return TransactionState(
            open=len(self.table),
            open_bytes=self.table.size_bytes,
            oldest_since_ms=longest.since_ms if longest is not None else None,
            oldest_age_ms=max(0, now_ms - longest.since_ms) if longest is not None else 0,
            oldest_checks=longest.checks if longest is not None else 0,
            max_checks=self._settings.value.check_max,
            max_open=self._settings.value.max_open,
            **self.counters.as_dict(),
        )

    # ---- inside

    def _end(self, request: EndTransaction, may_use: Callable[[Record], None]) -> int:
        found = self._topics.read(request.physical_offset)
        record, properties = check_end(request, found, self._topics.now_ms(), self._settings.value)
        may_use(record)
        is_commit = request.outcome is Outcome.COMMIT
        ended_as = EndedAs.COMMIT if is_commit else EndedAs.ROLLBACK
        place_of_half = records.half_of(record, properties)
        half = self.table.find(place_of_half)
        if half is None:
            ended = self.table.ended(place_of_half)
            if ended is not None and ended.ended_as is ended_as:
                return ended.end_offset
            raise _not_open(record)
        place = self._topics.close(half, ended_as, [self._commit_draft(record, properties)] if is_commit else [])
        if is_commit:
            self.counters.committed += 1
        else:
            self.counters.rolled_back += 1
        return place.end_offset

    def _begin_again(self, record: Record) -> int:
        made = self.given_up.decision_about(record.queue_offset)
        if made is not None:
            raise RequestError(codes.SYSTEM_ERROR, f"{made.by} decided {made.ended_as} about it already")
        check_admission(self.table, record.size, self._settings.value)
        return self._topics.begin_again(record, _WHO_RESUMES).end_offset

    def _require_master(self, does: str) -> None:
        if not self._serving:
            raise RequestError(codes.SLAVE_NOT_AVAILABLE, f"only the master {does}; ask it")

    def _when_acknowledged(self, end_offset: int, done: Done) -> None:
        self._topics.log.when_acknowledged(end_offset, lambda status: done(_unless_acknowledged(status)))

    def _find_open(self, record: Record) -> Half:
        half = self.table.find(records.half_of(record, record.property_map()))
        if half is None:
            raise _not_open(record)
        return half

    def _commit_draft(self, record: Record, properties: Mapping[str, str]) -> Draft:
        draft = records.commit_draft(record, properties)
        topic = self._topics.metadata.topic(draft.topic)
        if topic is None or topic.write_queue_nums < 1:
            raise RequestError(
                codes.TOPIC_NOT_EXIST,
                f"topic {draft.topic} of the transaction does not exist any more; create it again",
            )
        if draft.queue_id >= max(topic.read_queue_nums, topic.write_queue_nums):  # it has fewer queues now
            draft = draft._replace(queue_id=draft.queue_id % topic.write_queue_nums)
        return self._to_waiting_draft(draft)


def _not_open(record: Record) -> WrongTransaction:
    return WrongTransaction(
        f"the transaction of the half message at {record.physical_offset} is not open: it was committed, rolled back, "
        f"or given up after too many checks (then it is in {GIVEN_UP_TOPIC})"
    )


def _unless_acknowledged(status: PutStatus) -> RequestError | None:
    """A decision in the log of this master may be missing in that of the next one: before it is acknowledged, nobody knows."""
    if status is PutStatus.PUT_OK:
        return None
    code, reason = reason_of(status)
    return RequestError(
        code,
        f"it is not known whether the transaction is ended: that {reason}; ask again with the same decision, which is safe",
    )
