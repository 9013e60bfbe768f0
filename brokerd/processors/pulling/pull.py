"""Pull (codes 11 and 361): check, read, map the store's status, or hold the request until something arrives.

All four fields of the answer's header are there on every code that carries them. A request is held only when it found the queue's
end, asked to be held, and was not held before.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns
from typing import Final

from brokerd.consuming.filtered_reads import read_admitted
from brokerd.consuming.progress import PullOffsets
from brokerd.consuming.read_place import MASTER, ReadPlace
from brokerd.filters.budget import TurnBudget
from brokerd.loop.long_polling import LongPolling, Waiter, WaitTable
from brokerd.loop.scheduler import Scheduler
from brokerd.metadata.names import is_brokers_group
from brokerd.processors import fields
from brokerd.processors.parked import ParkedRequests
from brokerd.processors.pulling.checks import FLAG_COMMIT, FLAG_SUSPEND, Checked, Forbidden, PullChecks
from brokerd.sending.counters import Counters
from brokerd.store.derived.dispatcher import Arrival
from brokerd.store.queues.queue_reads import GetResult, GetStatus, JoinedResult, joined
from brokerd.store.store_reads import StoreReads
from remoting import codes
from remoting.errors import LogboomError, RequestError
from remoting.frame import Command
from remoting.transport.connection import RemotingConnection

MAX_MESSAGES: Final = 32
MAX_BYTES: Final = 256 * 1024
MAX_SUSPEND_MS: Final = 25_000  # clients give up after 30 s
_FOUND: Final = GetStatus.FOUND.name
_FETCH_MS: Final = 10_000  # what a pull waits for messages of the tier that would not wait for new ones
_MAX_HELD: Final = 100_000
# A reset that is told but not recorded everywhere is at worst told again; not told, this consumer would read on where it was.
_TOLD_ANYWAY: Final = frozenset({codes.FLUSH_DISK_TIMEOUT, codes.FLUSH_SLAVE_TIMEOUT})


class _Pull:
    """One request, checked."""

    __slots__ = (
        "connection",
        "group",
        "group_config",
        "is_cold",
        "max_bytes",
        "max_count",
        "message_filter",
        "offset",
        "queue_id",
        "reader",
        "request",
        "tags_codes",
        "ticket",
        "topic",
    )

    def __init__(self, connection: RemotingConnection, request: Command, group: str, checked: Checked) -> None:
        ext = request.ext
        self.connection = connection
        self.request = request
        self.group = group
        self.group_config, self.topic, self.queue_id, _, self.message_filter = checked
        self.reader = group, self.topic, self.queue_id
        self.offset = fields.integer(ext, "queueOffset", low=-fields.MAX_LONG)  # a wrong one is told the right one
        # The Go client's polling consumer asks for no message and wants some.
        count = fields.SMALL.get(ext.get("maxMsgNums", ""))
        if count is None:
            count = fields.integer(ext, "maxMsgNums", MAX_MESSAGES, low=-fields.MAX_INT, high=fields.MAX_INT)
        self.max_count = count if 1 <= count <= MAX_MESSAGES else max(1, min(count, MAX_MESSAGES))
        self.max_bytes = MAX_BYTES
        if "maxMsgBytes" in ext:
            asked = fields.integer(ext, "maxMsgBytes", 0, low=-1, high=fields.MAX_INT)
            self.max_bytes = min(asked, MAX_BYTES) if asked > 0 else MAX_BYTES
        self.tags_codes = self.message_filter.tags_codes
        self.is_cold = False  # what it asks for is being fetched from the tier
        self.ticket = 0  # among the parked requests, when it is one

    @property
    def client(self) -> str:
        """Those who hold pulls are bounded all together."""
        return ""


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
            scheduler, WaitTable(_MAX_HELD, _MAX_HELD), self._try_again, self._timed_out, share=False
        )

    def handle(self, connection: RemotingConnection, request: Command) -> None:
        """Answer one pull, or hold it."""
        self._place.check(lite=request.code == codes.LITE_PULL_MESSAGE)
        ext = request.ext
        group = fields.text(ext, "consumerGroup")
        try:
            checked = self._checks.check(connection, group, ext)
        except Forbidden as error:
            _respond_forbidden(connection, request, error)
            return
        _, topic, queue_id, flags, _ = checked
        pull = _Pull(connection, request, group, checked)
        if flags & FLAG_COMMIT and self._is_master():
            commit_offset = fields.integer(ext, "commitOffset", -1, low=-1)
            if commit_offset >= 0 and not is_brokers_group(group):
                self._commits.commit(group, topic, queue_id, commit_offset, None, is_carried=True)
        suspend_ms = fields.integer(ext, "suspendTimeoutMillis", 0) if flags & FLAG_SUSPEND else 0
        if self._answer(pull, hold=suspend_ms > 0):
            return
        if pull.is_cold:
            suspend_ms = max(suspend_ms, _FETCH_MS)
        deadline_ms = int(self._scheduler.time() * 1000) + min(suspend_ms, MAX_SUSPEND_MS)
        waiter = self._polling.park(topic, "", queue_id, deadline_ms, pull)
        if waiter is None:
            self._give_up(pull)
        else:
            request.drop_content()
            pull.ticket = self._parked.add(connection, waiter)

    def arrived(self, arrivals: Sequence[Arrival]) -> None:
        """Messages became readable."""
        for arrival in arrivals:
            self._polling.arrived(arrival.topic, arrival.queue_id, arrival.tags_codes)

    def wake(self, topic: str, queue_id: int) -> None:
        """Something changed for those who wait for the queue: let them look again."""
        self._polling.arrived(topic, queue_id)

    def connection_closed(self, connection: object) -> None:
        self._parked.cancel_all(connection)

    def answer_all(self) -> None:
        """The role changed: let everybody ask again."""
        for waiter in self._polling.take_all():
            self._timed_out(waiter)

    @property
    def waiting_count(self) -> int:
        return self._polling.table.count

    # ---- answering

    def _answer(self, pull: _Pull, *, hold: bool, again: bool = False, is_last: bool = False) -> bool:
        """Read and answer; False (and nothing answered) when there is nothing and the request may be held, or what it asks for
        is on its way and this is not the last look.

        Held already (`again`), it stays so over messages that its expression does not let through, and goes on behind them.
        """
        if self._rules.resets:
            target = self._rules.pending_reset(pull.group, pull.topic, pull.queue_id)
            if target is not None:
                self._answer_reset(pull, target)
                return True
        started_ns = perf_counter_ns()
        if again and pull.connection.is_slow:
            self._send_back(pull)
            return True
        code, next_offset, result = self._read(pull)
        if result.status is GetStatus.BEING_FETCHED and not is_last:
            pull.is_cold = True
            return False
        if code == codes.PULL_NOT_FOUND:
            if self._place.sends_back:
                code = codes.PULL_RETRY_IMMEDIATELY
            elif hold:
                return False
        if again and result.status is GetStatus.NO_MATCHED_MESSAGE and next_offset >= result.max_offset:
            pull.offset = next_offset
            return False
        self._pulled.note(pull.reader, next_offset)
        ext = self._header(pull, next_offset, result)
        if code != codes.SUCCESS:
            self._counters.missed += 1
            pull.connection.respond(pull.request, code, ext, remark=result.status.name)
            return True
        body = result.body
        self._counters.pulled(pull.reader, result.messages, len(body), (perf_counter_ns() - started_ns) / 1e6)
        pull.connection.respond(pull.request, codes.SUCCESS, ext, body, _FOUND)
        return True

    def _send_back(self, pull: _Pull) -> None:
        """Messages came for somebody who does not read what he got already: he asks again when he has."""
        ext = self._header_of_nothing(pull, pull.offset)
        remark = "[OVERLOAD]read the answers that are on their way first"
        pull.connection.respond(pull.request, codes.PULL_RETRY_IMMEDIATELY, ext, remark=remark)

    def _header(self, pull: _Pull, next_offset: int, result: JoinedResult) -> dict[str, str]:
        config = pull.group_config
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
        low, high = self._reads.min_offset(pull.topic, pull.queue_id), self._reads.max_offset(pull.topic, pull.queue_id)
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
                self._pulled.note(pull.reader, target)
                pull.connection.respond(pull.request, codes.PULL_OFFSET_MOVED, ext, remark="OFFSET_RESET")
            else:
                pull.connection.respond_error(pull.request, error)

        self._commits.take_resets([(pull.group, pull.topic, pull.queue_id)], taken)

    def _read(self, pull: _Pull) -> tuple[int, int, JoinedResult]:
        """(answer's code, next offset, what was read)."""
        if pull.tags_codes is None and not pull.message_filter.is_exact:
            result = joined(
                read_admitted(
                    self._reads,
                    pull.topic,
                    pull.queue_id,
                    pull.offset,
                    pull.max_count,
                    pull.max_bytes,
                    pull.message_filter,
                    self._turn.look(),
                )
            )
        else:
            result = self._reads.read_joined(
                pull.topic, pull.queue_id, pull.offset, pull.max_count, pull.max_bytes, pull.tags_codes
            )
        if result.status is GetStatus.FOUND:
            return codes.SUCCESS, result.next_offset, result
        code, next_offset = answer_of(result, pull.offset)
        if code == codes.PULL_OFFSET_MOVED and not self._is_master():
            # A replica may know less than the master: it must not move a consumer's offset.
            return codes.PULL_RETRY_IMMEDIATELY, pull.offset, result
        return code, next_offset, result

    # ---- waiting

    def _try_again(self, waiters: Sequence[Waiter[_Pull]]) -> int:
        (waiter,) = waiters
        pull = waiter.payload
        try:
            self._checks.check_forbidden(pull.group, pull.topic)
            answered = self._answer(pull, hold=True, again=True)
        except Forbidden as error:
            _respond_forbidden(pull.connection, pull.request, error)
            answered = True
        except LogboomError as error:
            pull.connection.respond_error(pull.request, error)
            answered = True
        if answered:
            self._parked.forget(pull.connection, pull.ticket)
        return answered

    def _timed_out(self, waiter: Waiter[_Pull]) -> None:
        pull = waiter.payload
        self._parked.forget(pull.connection, pull.ticket)
        self._give_up(pull)

    def _give_up(self, pull: _Pull) -> None:
        """Answer with what there is now."""
        try:
            self._answer(pull, hold=False, is_last=True)
        except LogboomError as error:
            pull.connection.respond_error(pull.request, error)


def _respond_forbidden(connection: RemotingConnection, request: Command, error: Forbidden) -> None:
    connection.respond(request, error.code, {"forbiddenType": str(error.kind)}, remark=error.message)


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
