"""Pull (codes 11 and 361): check, read, map the store's status, or hold the request until something arrives.

All four fields of the answer's header are there on every code that carries them. A request is held only when it found the queue's
end, asked to be held, and was not held before.
"""

from __future__ import annotations

import ctypes
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Final

from brokerd.consuming.filtered_reads import read_admitted
from brokerd.consuming.progress import PullOffsets
from brokerd.consuming.read_place import MASTER, ReadPlace
from brokerd.filters.budget import TurnBudget
from brokerd.loop.long_polling import LongPolling, Waiter, WaitTable
from brokerd.loop.scheduler import Scheduler
from brokerd.native.stays import MOST_KINDS, Kind, Told, ToldOfKind
from brokerd.native.wanted import BODY_BYTES, MESSAGES, NEXT_OFFSET
from brokerd.processors import fields
from brokerd.processors.parked import ParkedRequests
from brokerd.processors.pulling.asked_before import AskedBefore
from brokerd.processors.pulling.checks import Forbidden, PullChecks
from brokerd.processors.pulling.laid_out import AnswerLayout, Asking
from brokerd.processors.pulling.standing import Given, Standing
from brokerd.processors.pulling.terms import PullTerms
from brokerd.sending.counters import Counters
from brokerd.store.derived.dispatcher import Arrivals
from brokerd.store.queues.queue_reads import GetResult, GetStatus, JoinedResult, joined
from brokerd.store.store_reads import StoreReads
from remoting import codes
from remoting.errors import CorruptedFile, LogboomError, RequestError
from remoting.frame import Command
from remoting.transport.connection import RemotingConnection

log = logging.getLogger(__name__)

_FOUND: Final = GetStatus.FOUND.name
_FETCH_MS: Final = 10_000  # what a pull waits for messages of the tier that would not wait for new ones
_MAX_HELD: Final = 100_000
_MUCH: Final = 4  # answers for each kind of request in a stay: who asked nothing of one then has left it
LEAST_TOGETHER: Final = 3  # answers to one connection in a turn, from which on one write is better than one for each
# A reset that is told but not recorded everywhere is at worst told again; not told, this consumer would read on where it was.
_TOLD_ANYWAY: Final = frozenset({codes.FLUSH_DISK_TIMEOUT, codes.FLUSH_SLAVE_TIMEOUT})


class _Pull:
    """One request, checked, and which messages it wants."""

    __slots__ = (
        "connection",
        "deadline_ms",
        "is_cold",
        "is_oneway",
        "offset",
        "opaque",
        "tags_codes",
        "terms",
        "ticket",
    )

    def __init__(
        self, connection: RemotingConnection, opaque: int, terms: PullTerms, offset: int, *, is_oneway: bool = False
    ) -> None:
        self.connection = connection
        self.opaque = opaque
        self.terms = terms
        self.offset = offset
        self.is_oneway = is_oneway
        self.tags_codes = terms.tags_codes
        self.is_cold = False  # what it asks for is being fetched from the tier
        self.deadline_ms = 0  # when it is parked
        self.ticket = 0  # among the parked requests, when it is one

    @property
    def client(self) -> str:
        """Those who hold pulls are bounded all together."""
        return ""

    @property
    def request(self) -> Command:
        """As much of it as an answer needs."""
        return Command(codes.PULL_MESSAGE, self.opaque, flag=codes.FLAG_ONEWAY if self.is_oneway else 0)


class PullProcessor:
    """The handler of pulls. `place` says who reads here, and where to read next; `pulled` is told what everybody was given."""

    def __init__(
        self,
        checks: PullChecks,
        pulled: PullOffsets,
        reads: StoreReads,
        counters: Counters,
        scheduler: Scheduler,
        place: ReadPlace,
    ) -> None:
        self._layout: AnswerLayout | None = None
        self._rules = checks.rules
        self._commits = checks.metadata.commits
        self._reads = reads
        self._counters = counters
        self._scheduler = scheduler
        self._turn = TurnBudget(scheduler.call_soon)
        self._place = place
        self._pulled = pulled
        self._is_master = place.is_master
        self._checks = checks
        self._parked = ParkedRequests()
        self._polling: LongPolling[_Pull] = LongPolling(
            scheduler,
            WaitTable(_MAX_HELD, _MAX_HELD),
            self._try_again,
            self._timed_out,
            share=False,
        )
        self._polling.trying = _put_off_answers
        line = place.cold_line  # in which those who wait for the tier stand again when something came
        self._fetching: LongPolling[_Pull] = LongPolling(
            scheduler,
            WaitTable(_MAX_HELD, _MAX_HELD),
            self._try_again,
            self._timed_out,
            share=False,
            stand=None if line is None else lambda pull, turn, still: line.stand(pull.connection, turn, still),
        )

    def lay_out_by(self, layout: AnswerLayout) -> None:
        """Answers of the usual form are made in C."""
        self._layout = layout

    def go_behind(self, others: Callable[[], None] | None) -> None:
        """Call this, which does what comes first, before those who wait for new messages are served."""
        self._polling.before = others

    def handle(self, connection: RemotingConnection, request: Command) -> None:
        """Answer one pull, or hold it."""
        ext = request.ext
        try:
            terms = self.terms_of(connection, request.code, ext)
        except Forbidden as error:
            _respond_forbidden(connection, request, error)
            return
        offset = fields.integer(ext, "queueOffset", low=-fields.MAX_LONG)  # a wrong one is told the right one
        commit_offset = fields.integer(ext, "commitOffset", -1, low=-1) if terms.commits and self._is_master() else -1
        self._commit(terms, commit_offset)
        pull = _Pull(connection, request.opaque, terms, offset, is_oneway=request.is_oneway)
        if not self._answer(pull, hold=terms.suspend_ms > 0):
            self._wait(pull)

    def terms_of(self, connection: RemotingConnection, code: int, ext: dict[str, str]) -> PullTerms:
        """What a request asks for. Raises RequestError for the first check that it does not pass."""
        self._place.check(lite=code == codes.LITE_PULL_MESSAGE)
        return PullTerms(code, ext, self._checks.check(connection, fields.text(ext, "consumerGroup"), ext))

    def take(self, request: Asking, commit_offset: int) -> Standing | None:
        """Answer a request with terms that it has still, or hold it; its connection owes its answer. What was given, if that is
        of the usual form."""
        connection, opaque, terms, offset = request
        try:
            if commit_offset >= 0:
                self._commit(terms, commit_offset)
            started_ns = perf_counter_ns()
            is_to_be_reset = bool(self._rules.resets) and self._rules.pending_reset(*terms.reader) is not None
            given = None if is_to_be_reset else self._give(request)
            if given is not None:
                self._note_given(terms, given, started_ns)
                if not given.area.numbers[MESSAGES]:
                    self._give_none(connection, given)
                return given
            pull, hold = _Pull(connection, opaque, terms, offset), terms.suspend_ms > 0
            if is_to_be_reset:
                is_answered = self._answer(pull, hold=hold)
            else:
                is_answered = self._answer_otherwise(pull, None, started_ns, hold=hold)
            if not is_answered:
                self._wait(pull)
        except LogboomError as error:
            connection.respond_error(Command(codes.PULL_MESSAGE, opaque), error)
        except Exception as error:
            log.exception("a pull of %s failed", connection.peer)
            _respond_failed(connection, opaque, error)
        return None

    def have_stay(
        self,
        connection: RemotingConnection,
        asked: ctypes.c_void_p,
        last: AskedBefore,
        given: Standing,
        others: Iterable[AskedBefore],
    ) -> None:
        """Have more requests like the last one, to which that was given just now, and like others that would pass now answered
        beside the loop, for some milliseconds: one connection's at a time, of those that carry offsets of a queue. Before others
        say theirs, its own count. Who is to be told of a reset of a queue is told by the loop."""
        layout = self._layout
        if layout is None or not self._may_stay(last.terms):
            return
        kind = layout.kind_of(self._reads, given, last.slot)
        if kind is None:
            return
        # of one reader one kind, as which of two was asked last would not be known
        stay, kinds, readers = [last], [kind], {last.terms.reader}
        for other in others:
            reader = other.terms.reader
            if len(stay) == MOST_KINDS or reader in readers or not self._may_stay(other.terms):
                continue
            kind = self._kind_seen(layout, other)
            if kind is not None:
                stay.append(other)
                kinds.append(kind)
                readers.add(reader)
        bring = partial(PullProcessor.settle, self)  # which is no other stay's
        if layout.have_stay(connection, asked, kinds, partial(self._note_stay, connection, stay, bring)):
            self._commits.elsewhere.update((each.terms.reader, bring) for each in stay if each.terms.commits)

    def _may_stay(self, terms: PullTerms) -> bool:
        """Whether no other connection's requests carry offsets that they would, and nobody is to be told of a reset."""
        is_elsewhere = terms.commits and terms.reader in self._commits.elsewhere
        return not is_elsewhere and self._rules.pending_reset(*terms.reader) is None

    def _kind_seen(self, layout: AnswerLayout, other: AskedBefore) -> Kind | None:
        try:
            return layout.kind_seen(self._reads, self._place, other.terms, other.slot, other.next_offset)
        except CorruptedFile:  # which was told, and is told whoever asks for it
            other.leave()
            return None

    def _note_stay(
        self, connection: RemotingConnection, stay: Sequence[AskedBefore], bring: Callable[[], None], told: Told
    ) -> None:
        connection.density.came_back(told.answers)
        is_much = told.answers >= _MUCH * len(stay)
        elsewhere = self._commits.elsewhere
        may_commit = [elsewhere.get(each.terms.reader) is bring for each in stay]
        for each, may in zip(stay, may_commit, strict=True):
            if may:
                del elsewhere[each.terms.reader]
        for each, of_kind, may in zip(stay, told.kinds, may_commit, strict=True):
            each.note(of_kind, is_much=is_much)
            self._note_kind(each.terms, of_kind, may_commit=may)

    def _note_kind(self, terms: PullTerms, told: ToldOfKind, *, may_commit: bool) -> None:
        if not told.answers:
            return
        self._counters.missed += told.misses
        if given := told.answers - told.misses:
            read_ms = told.busy_ns / 1e6 / told.answers
            self._counters.pulled(terms.reader, told.messages, told.body_bytes, read_ms, given)
        # what was deleted meanwhile is not to have offsets again
        if self._checks.is_there(terms.checked):
            self._pulled.note(terms.reader, told.next_offset)
        try:
            if may_commit:
                self._commit(terms, told.commit_offset)
        except LogboomError as error:  # nobody is left to be told
            log.warning("an offset that %s committed with a pull was not taken: %s", terms.group, error)

    def look_again(self) -> None:
        """Something changed that requests are checked against: none that comes now is answered by what was found out before."""
        if self._layout is not None:
            self._layout.recall_stays()

    def settle(self) -> None:
        """All that was done beside the loop counts when this returns: of offsets, what pulls carried."""
        if self._layout is not None:
            self._layout.take_stays_back()

    def _commit(self, terms: PullTerms, offset: int) -> None:
        """What a pull carries."""
        if offset >= 0 and terms.commits and self._is_master():
            self._commits.commit(terms.group, terms.topic, terms.queue_id, offset, None, is_carried=True)

    def _wait(self, pull: _Pull) -> None:
        suspend_ms = pull.terms.suspend_ms
        if pull.is_cold:
            suspend_ms = max(suspend_ms, _FETCH_MS)
        pull.deadline_ms = int(self._scheduler.time() * 1000) + suspend_ms
        self._park(pull)

    def arrived(self, arrivals: Arrivals) -> None:
        """Messages became readable."""
        for arrival in arrivals.awaited(self._polling.is_awaited):
            self._polling.arrived(arrival.topic, arrival.queue_id, arrival.tags_codes)

    def wake(self, topic: str, queue_id: int) -> None:
        """Something changed for those who wait for the queue, or read it: let them look again."""
        self.look_again()
        self._polling.arrived(topic, queue_id)
        self.fetched(topic, queue_id)

    def fetched(self, topic: str, queue_id: int) -> None:
        """More of the queue can be read from the tier."""
        self._fetching.arrived(topic, queue_id)

    def connection_closed(self, connection: object) -> None:
        self._parked.cancel_all(connection)

    def answer_all(self) -> None:
        """The role changed: let everybody ask again."""
        self.look_again()
        for waiter in (*self._polling.take_all(), *self._fetching.take_all()):
            self._timed_out(waiter)

    @property
    def waiting_count(self) -> int:
        return self._polling.table.count + self._fetching.table.count

    # ---- answering

    def _answer(self, pull: _Pull, *, hold: bool, again: bool = False) -> bool:
        """Read and answer; False (and nothing answered) when there is nothing and the request may be held, or what it asks for
        is on its way.

        Held already (`again`), it stays so over messages that its expression does not let through, and goes on behind them.
        """
        terms = pull.terms
        if self._rules.resets:
            target = self._rules.pending_reset(*terms.reader)
            if target is not None:
                self._answer_reset(pull, target)
                return True
        started_ns = perf_counter_ns()
        if again and pull.connection.is_slow:
            self._send_back(pull)
            return True
        given = None if pull.is_oneway else self._give(Asking(pull.connection, pull.opaque, terms, pull.offset))
        if given is not None and given.area.numbers[MESSAGES]:
            self._note_given(terms, given, started_ns)
            return True
        return self._answer_otherwise(pull, given, started_ns, hold=hold, again=again)

    def _give_none(self, connection: RemotingConnection, looked_at: Standing) -> None:
        """Say that none of the messages looked at is wanted, and where to go on."""
        assert self._layout is not None
        connection.respond_encoded(self._layout.none_of(looked_at), 1)

    def _note_given(self, terms: PullTerms, given: Standing, started_ns: int) -> None:
        numbers, reader = given.area.numbers, terms.reader
        self._pulled.note(reader, numbers[NEXT_OFFSET])
        if not numbers[MESSAGES]:
            self._counters.missed += 1
            return
        read_ms = (perf_counter_ns() - started_ns) / 1e6
        self._counters.pulled(reader, numbers[MESSAGES], numbers[BODY_BYTES], read_ms)

    def _answer_otherwise(
        self, pull: _Pull, looked_at: Standing | None, started_ns: int, *, hold: bool, again: bool = False
    ) -> bool:
        """Likewise, when nothing of the usual form was given; as none of the messages is wanted, if some were looked at."""
        found = self._read(pull) if looked_at is None else _without_match(looked_at.given)
        return self._answer_read(pull, found, started_ns, hold=hold, again=again)

    def _answer_read(
        self, pull: _Pull, found: tuple[int, int, JoinedResult], started_ns: int, *, hold: bool, again: bool
    ) -> bool:
        """Likewise, with what the reads of the store found."""
        terms = pull.terms
        code, next_offset, result = found
        pull.is_cold = result.status is GetStatus.BEING_FETCHED
        if pull.is_cold:
            return False
        if code == codes.PULL_NOT_FOUND:
            if self._place.sends_back:
                code = codes.PULL_RETRY_IMMEDIATELY
            elif hold:
                return False
        if again and result.status is GetStatus.NO_MATCHED_MESSAGE and next_offset >= result.max_offset:
            pull.offset = next_offset
            return False
        self._pulled.note(terms.reader, next_offset)
        ext = self._header(pull, next_offset, result)
        if code != codes.SUCCESS:
            self._counters.missed += 1
            pull.connection.respond(pull.request, code, ext, remark=result.status.name)
            return True
        body = result.body
        self._counters.pulled(terms.reader, result.messages, len(body), (perf_counter_ns() - started_ns) / 1e6)
        pull.connection.respond(pull.request, codes.SUCCESS, ext, body, _FOUND, body_stays=True)
        return True

    def _give(self, request: Asking) -> Standing | None:
        """Answer, if that is of the usual form and one of the messages is wanted. None for what is left to others."""
        layout = self._layout
        if layout is None or not request.terms.is_by_units:
            return None
        return layout.give(self._reads, self._place, request, self._not_made)

    def _not_made(self, connection: RemotingConnection, opaque: int, terms: PullTerms, offset: int) -> None:
        """An answer that was to be sent beside the loop, and was counted, has a record that is not what was stored: it is what
        the reads of the store say of that."""
        pull = _Pull(connection, opaque, terms, offset)
        connection.owe(1)
        try:
            if not self._answer_otherwise(pull, None, perf_counter_ns(), hold=False):
                self._wait(pull)
        except LogboomError as error:
            connection.respond_error(Command(codes.PULL_MESSAGE, opaque), error)
        except Exception as error:
            log.exception("a pull of %s failed", connection.peer)
            _respond_failed(connection, opaque, error)

    def _send_back(self, pull: _Pull) -> None:
        """Messages came for somebody who does not read what he got already: he asks again when he has."""
        ext = self._header_of_nothing(pull, pull.offset)
        remark = "[OVERLOAD]read the answers that are on their way first"
        pull.connection.respond(pull.request, codes.PULL_RETRY_IMMEDIATELY, ext, remark=remark)

    def _header(self, pull: _Pull, next_offset: int, result: JoinedResult) -> dict[str, str]:
        config = pull.terms.group_config
        suggested = MASTER
        if self._place.settings.value.slave_read:
            read_up_to = result.end_offset if result.messages else None
            suggested = self._place.suggest(read_up_to, config.read_broker_id, config.read_broker_id_when_slow)
        return {
            "suggestWhichBrokerId": str(suggested),
            "nextBeginOffset": str(next_offset),
            "minOffset": str(result.min_offset),
            "maxOffset": str(result.max_offset),
            "topicSysFlag": "0",
            "groupSysFlag": str(config.group_sys_flag),
        }

    def _header_of_nothing(self, pull: _Pull, next_offset: int) -> dict[str, str]:
        _, topic, queue_id = pull.terms.reader
        low, high = self._reads.min_offset(topic, queue_id), self._reads.max_offset(topic, queue_id)
        return self._header(pull, next_offset, JoinedResult(GetStatus.NO_MATCHED_MESSAGE, next_offset, low, high))

    def _answer_reset(self, pull: _Pull, target: int) -> None:
        """The group was told elsewhere to go on at another offset: this consumer hears it, once it is recorded that it did.

        A replica records nothing, and sends the consumer to the master.
        """
        if not self._is_master():
            ext = self._header_of_nothing(pull, pull.offset)
            pull.connection.respond(pull.request, codes.PULL_RETRY_IMMEDIATELY, ext | {"suggestWhichBrokerId": "0"})
            return
        ext = self._header_of_nothing(pull, target)

        def taken(error: RequestError | None) -> None:
            if error is None or error.code in _TOLD_ANYWAY:
                self._pulled.note(pull.terms.reader, target)
                pull.connection.respond(pull.request, codes.PULL_OFFSET_MOVED, ext, remark="OFFSET_RESET")
            else:
                pull.connection.respond_error(pull.request, error)

        self._commits.take_resets([pull.terms.reader], taken)

    def _read(self, pull: _Pull) -> tuple[int, int, JoinedResult]:
        """(answer's code, next offset, what was read)."""
        terms = pull.terms
        wanted = terms.topic, terms.queue_id, pull.offset, terms.max_count, terms.max_bytes
        if terms.is_by_units:
            result = self._reads.read_joined(*wanted, terms.tags_codes)
        else:
            result = joined(read_admitted(self._reads, *wanted, terms.message_filter, self._turn.look()))
        if result.status is GetStatus.FOUND:
            return codes.SUCCESS, result.next_offset, result
        code, next_offset = answer_of(result, pull.offset)
        if code == codes.PULL_OFFSET_MOVED and not self._is_master():
            # A replica may know less than the master: it must not move a consumer's offset.
            return codes.PULL_RETRY_IMMEDIATELY, pull.offset, result
        return code, next_offset, result

    # ---- waiting

    def _park(self, pull: _Pull) -> None:
        polling = self._fetching if pull.is_cold else self._polling
        waiter = polling.park(pull.terms.topic, "", pull.terms.queue_id, pull.deadline_ms, pull)
        if waiter is None:
            self._give_up(pull)
        else:
            pull.ticket = self._parked.add(pull.connection, waiter)

    def _try_again(self, waiters: Sequence[Waiter[_Pull]]) -> int:
        (waiter,) = waiters
        pull = waiter.payload
        was_cold = pull.is_cold
        try:
            self._checks.check_forbidden(pull.terms.group, pull.terms.topic)
            answered = self._answer(pull, hold=True, again=True)
        except Forbidden as error:
            _respond_forbidden(pull.connection, pull.request, error)
            answered = True
        except LogboomError as error:
            pull.connection.respond_error(pull.request, error)
            answered = True
        if answered or pull.is_cold is not was_cold:
            self._parked.forget(pull.connection, pull.ticket)
            if not answered:
                self._park(pull)  # with those who wait for the other thing
            return True
        return False

    def _timed_out(self, waiter: Waiter[_Pull]) -> None:
        pull = waiter.payload
        self._parked.forget(pull.connection, pull.ticket)
        self._give_up(pull)

    def _give_up(self, pull: _Pull) -> None:
        """Answer with what there is now, but for what only the tier has: many may give up at once."""
        try:
            if pull.is_cold or not self._answer(pull, hold=False):
                ext = self._header_of_nothing(pull, pull.offset)
                remark = GetStatus.BEING_FETCHED.name
                pull.connection.respond(pull.request, codes.PULL_RETRY_IMMEDIATELY, ext, remark=remark)
        except LogboomError as error:
            pull.connection.respond_error(pull.request, error)


def _respond_forbidden(connection: RemotingConnection, request: Command, error: Forbidden) -> None:
    connection.respond(request, error.code, {"forbiddenType": str(error.kind)}, remark=error.message)


def _respond_failed(connection: RemotingConnection, opaque: int, error: Exception) -> None:
    request = Command(codes.PULL_MESSAGE, opaque)
    connection.respond(request, codes.SYSTEM_ERROR, remark=f"internal error: {type(error).__name__}")


def _put_off_answers(waiters: Sequence[Waiter[_Pull]]) -> None:
    """Have a connection that waits for several queues get its answers of a turn in one write: its client wakes up once."""
    if len(waiters) >= LEAST_TOGETHER:
        for connection, count in Counter(waiter.payload.connection for waiter in waiters).items():
            if count >= LEAST_TOGETHER:
                connection.put_off_answers()


def _without_match(given: Given) -> tuple[int, int, JoinedResult]:
    """What `_read` finds where no message is wanted."""
    _, _, next_offset, low, high = given
    return codes.PULL_RETRY_IMMEDIATELY, next_offset, JoinedResult(GetStatus.NO_MATCHED_MESSAGE, next_offset, low, high)


def answer_of(result: GetResult | JoinedResult, asked_offset: int) -> tuple[int, int]:
    """(code, next offset) for what the store found."""
    status = result.status
    if status == GetStatus.FOUND:
        return codes.SUCCESS, result.next_offset
    if status in (GetStatus.NO_MATCHED_MESSAGE, GetStatus.MESSAGE_WAS_REMOVING, GetStatus.BEING_FETCHED):
        return codes.PULL_RETRY_IMMEDIATELY, result.next_offset
    if status == GetStatus.OFFSET_OVERFLOW_ONE:
        return codes.PULL_NOT_FOUND, asked_offset
    if status in (GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE):
        return (codes.PULL_NOT_FOUND if asked_offset == 0 else codes.PULL_OFFSET_MOVED), 0
    return codes.PULL_OFFSET_MOVED, result.next_offset
