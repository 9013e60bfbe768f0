"""Transactions for the endpoints: half messages in, decisions of producers, and a view of what is open.

A decision is one write of two records, first the message, then the op record that closes the transaction: what a crash leaves
of them may deliver the message twice, never lose it. Only a master serves; a replica follows, so that it can go on as master.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from brokerd.delay.levels import DEFAULT_DELAYS, Delays
from brokerd.delay.rules import schedule
from brokerd.journal.record_log import error_of
from brokerd.loop.scheduler import Scheduler
from brokerd.metadata.configs import TopicConfig
from brokerd.store.derived.dispatcher import Arrival
from brokerd.store.draft import Draft
from brokerd.store.put_status import PutStatus
from brokerd.store.run import AppendResult
from brokerd.transactions import records
from brokerd.transactions.checking import CheckBack, Producers
from brokerd.transactions.counters import TransactionCounters
from brokerd.transactions.decide import EndTransaction, Outcome, check_admission, check_end
from brokerd.transactions.following import LogReads, TransactionFollower
from brokerd.transactions.records import GIVEN_UP_TOPIC, HALF_TOPIC, OP_TOPIC, TRANSACTION_GROUP, Half
from brokerd.transactions.settings import TransactionSettings
from brokerd.transactions.table import OpenTransactions
from remoting import codes
from remoting.errors import LogboomError, RequestError, as_request_error, raise_refusal
from remoting.facts.broker_state import TransactionState
from remoting.record.codec import Record, decode_record
from remoting.settings import Live

Done = Callable[[RequestError | None], None]

_PROGRESS_EVERY: Final = (
    4096  # ended transactions, so that a start has little to read however rarely open ones are looked at
)


class TransactionLog(LogReads, Protocol):
    """The replicated log: reads, and appends that tell where."""

    @property
    def end_offset(self) -> int: ...

    def append_placed(self, drafts: Sequence[Draft]) -> Sequence[AppendResult]: ...

    def when_acknowledged(self, end_offset: int, done: Callable[[PutStatus], None]) -> None: ...

    def find_record(self, physical_offset: int) -> bytes | None: ...


class TransactionMetadata(Protocol):
    """What is needed of the metadata service."""

    def topic(self, name: str) -> TopicConfig | None: ...

    def ensure_topic(self, name: str, queues: int = 1) -> RequestError | None: ...

    def consumer_offset(self, group: str, topic: str, queue_id: int) -> int | None: ...

    def commit_offset(
        self, group: str, topic: str, queue_id: int, offset: int, done: Callable[[RequestError | None], None] | None
    ) -> None: ...


class TransactionService:
    """A `journal.resident.Resident`. `host` is this broker's packed address, `move_up_bytes` see `decide_due`."""

    own_topics: Final = frozenset({HALF_TOPIC, OP_TOPIC})

    def __init__(
        self,
        *,
        broker_name: str,
        log: TransactionLog,
        metadata: TransactionMetadata,
        producers: Producers,
        move_up_bytes: int,
        scheduler: Scheduler,
        now_ms: Callable[[], int],
        host: bytes,
        settings: Live[TransactionSettings] | None = None,
        delays: Delays = DEFAULT_DELAYS,
    ) -> None:
        self._settings = settings or Live(TransactionSettings())
        self._delays = delays
        self.counters = TransactionCounters()
        self.table = OpenTransactions()
        self._log = log
        self._metadata = metadata
        self._now_ms = now_ms
        self._host = host
        self._serving = False
        self._closed = 0  # since the progress was committed
        self._follower = TransactionFollower(
            log, self.table, lambda: metadata.consumer_offset(TRANSACTION_GROUP, HALF_TOPIC, 0)
        )
        self.checks = CheckBack(self, producers, broker_name, scheduler, now_ms, move_up_bytes, self._settings)

    # ---- half messages (`sending.sender.HalfMessages`)

    def to_stored_draft(self, draft: Draft) -> Draft:
        """The half message of a draft that begins a transaction; any other draft as it is. Raises RequestError."""
        if not records.is_half(draft):
            return records.ordinary_draft(draft)
        check_admission(self.table, len(draft.body) + len(draft.properties), self._settings.value)
        return records.half_draft(draft)

    def stored(self, draft: Draft, place: AppendResult) -> None:
        """A half message was appended."""
        self._apply(draft, place)
        self.counters.begun += 1

    # ---- decisions

    def end(self, request: EndTransaction, done: Done) -> None:
        """Carry out what a producer decided; `done` follows when it is acknowledged, with the reason when it is refused."""
        try:
            if not self._serving:
                raise RequestError(codes.SLAVE_NOT_AVAILABLE, "only the master ends transactions; ask it")
            if request.outcome is Outcome.UNKNOWN:
                done(None)
                return
            end_offset = self._end(request)
        except LogboomError as error:
            self.counters.refused_ends += 1
            done(as_request_error(error))
            return
        self._log.when_acknowledged(end_offset, lambda status: done(_unless_stored(status)))

    def resume(self, physical_offset: int, done: Done) -> None:
        """Begin anew with the checks of a half message that is open or was given up."""
        try:
            if not self._serving:
                raise RequestError(codes.SLAVE_NOT_AVAILABLE, "only the master checks transactions; ask it")
            record = self.read(physical_offset)
            if record is None or record.topic not in (HALF_TOPIC, GIVEN_UP_TOPIC):
                raise RequestError(
                    codes.SYSTEM_ERROR,
                    f"no half message, and none that was given up, starts at {physical_offset} of this broker's log",
                )
            half = None
            if record.topic == HALF_TOPIC:
                half = self._find_open(record)
            else:
                check_admission(self.table, record.size, self._settings.value)
            end_offset = self.replace(half, record, 0).end_offset
        except LogboomError as error:
            done(as_request_error(error))
            return
        self._log.when_acknowledged(end_offset, lambda status: done(_unless_stored(status)))

    # ---- resident of the log

    def held_offset(self) -> int | None:
        """Where the oldest half message that is open begins."""
        oldest = self.table.oldest
        return None if oldest is None else oldest.physical_offset

    def dispatched(self, _arrivals: Sequence[Arrival]) -> None:
        """Apply the records that are new here."""
        self._follower.follow()

    def truncated(self, end_offset: int) -> None:
        self._follower.truncated(end_offset)

    def rolled(self) -> None:
        """Nothing: what stays open for long moves up along with the log (`CheckBack`)."""

    def rebuild(self) -> None:
        """The metadata says from where on."""
        self._follower.rebuild()

    def catch_up(self) -> None:
        self._follower.catch_up()

    def lead(self) -> None:
        """Look after what is open."""
        self._serving = True
        self.checks.start()

    def step_down(self) -> None:
        self._serving = False
        self.checks.stop()

    def close(self) -> None:
        self.step_down()

    # ---- looking

    def state(self) -> TransactionState:
        """For people: what is open, and what was done since the start."""
        now_ms = self._now_ms()
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

    # ---- for the checks

    @property
    def log_end(self) -> int:
        """Where the log ends."""
        return self._log.end_offset

    def read(self, physical_offset: int) -> Record | None:
        """The record that starts there."""
        encoded = self._log.find_record(physical_offset)
        return None if encoded is None else decode_record(encoded)

    def replace(self, half: Half | None, record: Record, checks: int | None) -> AppendResult:
        """Append the record that takes the place of a half message (None: of one that was given up), and return where that is.

        `checks` is how often it was checked; None leaves that as it is.
        """
        first = None if half is None else half.first
        draft = records.successor_draft(record, first, checks)
        drafts = [draft]
        if half is not None and checks is not None:
            drafts.append(records.successor_noted_draft(half.queue_offset, self._now_ms(), self._host))
        place, *others = self._log.append_placed(drafts)
        self._apply(draft, place)
        if others:
            self._follower.appended(others[-1].end_offset)
        return place

    def give_up(self, half: Half, record: Record) -> AppendResult:
        """Put a half message where people find it, and close its transaction."""
        raise_refusal(self._metadata.ensure_topic(GIVEN_UP_TOPIC))
        place = self._close(half, [records.given_up_draft(record)])
        self.counters.given_up += 1
        return place

    def when_acknowledged(self, end_offset: int, done: Callable[[PutStatus], None]) -> None:
        self._log.when_acknowledged(end_offset, done)

    def commit_progress(self) -> None:
        """Say how far the two topics are done, as the original does: a start reads them from there."""
        self._closed = 0
        for topic, offset in ((HALF_TOPIC, self.table.done_before), (OP_TOPIC, self._follower.op_progress())):
            if (self._metadata.consumer_offset(TRANSACTION_GROUP, topic, 0) or 0) < offset:
                self._metadata.commit_offset(TRANSACTION_GROUP, topic, 0, offset, None)

    # ---- inside

    def _end(self, request: EndTransaction) -> int:
        record = self.read(request.physical_offset)
        check_end(request, record, self._now_ms(), self._settings.value)
        assert record is not None
        half = self._find_open(record)
        if request.outcome is Outcome.ROLLBACK:
            place = self._close(half, [])
            self.counters.rolled_back += 1
        else:
            place = self._close(half, [self._commit_draft(record)])
            self.counters.committed += 1
        return place.end_offset

    def _find_open(self, record: Record) -> Half:
        half = self.table.find(records.half_of(record))
        if half is None:
            raise RequestError(
                codes.SYSTEM_ERROR,
                f"the transaction of the half message at {record.physical_offset} is not open: it was committed, rolled back, "
                f"or given up after too many checks (then it is in {GIVEN_UP_TOPIC})",
            )
        return half

    def _commit_draft(self, record: Record) -> Draft:
        draft = records.commit_draft(record)
        topic = self._metadata.topic(draft.topic)
        if topic is None or topic.write_queue_nums < 1:
            raise RequestError(
                codes.TOPIC_NOT_EXIST,
                f"topic {draft.topic} of the transaction does not exist any more; create it again",
            )
        if draft.queue_id >= max(topic.read_queue_nums, topic.write_queue_nums):  # it has fewer queues now
            draft = draft._replace(queue_id=draft.queue_id % topic.write_queue_nums)
        return schedule(draft, self._delays)  # one that is to be delayed waits from its commit on

    def _close(self, half: Half, drafts: list[Draft]) -> AppendResult:
        """Append the records and, behind them, the one that closes the transaction; return where that is."""
        done = [half.queue_offset] if half.first == half.queue_offset else [half.first, half.queue_offset]
        op = records.op_draft(done, self._now_ms(), self._host)
        places = self._log.append_placed([*drafts, op])
        self.table.apply_done(done)
        self._follower.appended(places[-1].end_offset)
        self._closed += 1
        if self._closed >= _PROGRESS_EVERY:
            self.commit_progress()
        return places[-1]

    def _apply(self, draft: Draft, place: AppendResult) -> None:
        self._follower.appended(place.end_offset)
        self.table.apply_half(
            records.half_of_draft(draft, place.queue_offset, place.physical_offset, place.size, self._now_ms())
        )


def _unless_stored(status: PutStatus) -> RequestError | None:
    """A decision that is in the log will be carried out, even when not everybody confirmed it in time."""
    if status in (PutStatus.FLUSH_DISK_TIMEOUT, PutStatus.FLUSH_SLAVE_TIMEOUT):
        return None
    return error_of(status)
