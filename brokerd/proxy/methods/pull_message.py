"""PullMessage: read a queue from an offset on, and stream what is there: a status, a frame per message, and where to go on.

The client keeps the offset, and may commit it with UpdateOffset. It reads what remoting pulls read: messages that are confirmed,
of the master. A call that finds the queue's end is parked, as long as it asks, and no task. A pull of an offset that the queue
does not have is told ILLEGAL_OFFSET with the next one that it has; so is one of a group that was reset, with where that goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any, Final

from brokerd.consuming.filtered_reads import read_admitted
from brokerd.filters.budget import TurnBudget
from brokerd.filters.message_filter import SQL92, TAG, compile_filter
from brokerd.loop.cold_line import FULL, SHORT_BYTES
from brokerd.loop.long_polling import LongPolling, Waiter, WaitTable
from brokerd.loop.scheduler import Scheduler
from brokerd.metadata.groups import ensure_group
from brokerd.pop.requests import PoppedMessage
from brokerd.proxy.calls import Call
from brokerd.proxy.methods.asked import RESERVED_MS, batch_size
from brokerd.proxy.methods.base import CLIENT_ID, LANGUAGE, Services, attempt, header, parse
from brokerd.proxy.methods.groups import Groups
from brokerd.proxy.methods.queues import consumed_queue
from brokerd.proxy.names import group_name
from brokerd.proxy.protobuf import definition, milliseconds, service
from brokerd.proxy.received import Answers, topic_label
from brokerd.proxy.status import OK, Code, Refusal, status_field
from brokerd.store.derived.dispatcher import Arrivals
from brokerd.store.queues.queue_reads import GetResult, GetStatus
from remoting.record.fields import offsets_of

log = logging.getLogger(__name__)

_MAX_BYTES: Final = 1 << 20
_FETCH_MS: Final = 10_000  # what a call waits for messages of the tier that would not wait for new ones
_SQL: Final = definition.FilterType.Value("SQL")
_NOTHING: Final = status_field(Code.MESSAGE_NOT_FOUND, "no message")
_AT_THE_END: Final = frozenset(
    {GetStatus.OFFSET_OVERFLOW_ONE, GetStatus.NO_MESSAGE_IN_QUEUE, GetStatus.NO_MATCHED_LOGIC_QUEUE}
)
_BESIDE: Final = frozenset({GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_OVERFLOW_BADLY})


class PullMessage:
    """The method; keeps the calls that wait. `monotonic_ms` is the clock of deadlines, which the scheduler's is, too."""

    def __init__(
        self,
        services: Services,
        groups: Groups,
        scheduler: Scheduler,
        monotonic_ms: Callable[[], int],
        answers: Answers,
    ) -> None:
        self.services = services
        self.turn = TurnBudget(scheduler.call_soon)
        self._groups = groups
        self._monotonic_ms = monotonic_ms
        self.answers = answers
        self.line = line = services.cold_line
        limits = services.popper.settings
        self._polling: LongPolling[_Pull] = LongPolling(
            scheduler,
            WaitTable(limits.max_waiting_per_client, limits.max_waiting),
            _try_again,
            _time_out,
            share=False,
        )
        # those who wait for the tier, in line again when something came
        self._fetching: LongPolling[_Pull] = LongPolling(
            scheduler,
            WaitTable(limits.max_waiting_per_client, limits.max_waiting),
            _try_again,
            _time_out,
            share=False,
            stand=None if line is None else lambda pull, turn, still: line.stand(pull.client, turn, still),
        )

    def __call__(self, calls: Sequence[Call]) -> None:
        for call in calls:
            request = parse(call, service.PullMessageRequest, refuse)
            if request is not None:
                attempt(call, request, refuse, self._begin, call, request)

    def arrived(self, arrivals: Arrivals) -> None:
        """Messages became readable."""
        for arrival in arrivals.awaited(self._polling.is_awaited):
            self._polling.arrived(arrival.topic, arrival.queue_id, arrival.tags_codes)

    def fetched(self, topic: str, queue_id: int) -> None:
        """More of the queue can be read from the tier."""
        self._fetching.arrived(topic, queue_id)

    def answer_all(self) -> None:
        """The role changed, or the broker stops: let everybody ask again."""
        for waiter in (*self._polling.take_all(), *self._fetching.take_all()):
            _time_out(waiter)

    @property
    def waiting_count(self) -> int:
        return self._polling.table.count + self._fetching.table.count

    def park(self, pull: _Pull) -> bool:
        """Let a pull wait for messages; False when it may not, or not any more, or too many wait."""
        waiter = None
        polling, deadline_ms = self._polling, pull.deadline_ms
        if pull.is_cold:
            polling, deadline_ms = self._fetching, pull.cold_deadline_ms
        if not self.is_late(deadline_ms):
            waiter = polling.park(pull.topic, "", pull.queue_id, deadline_ms, pull)
        if waiter is not None:
            pull.call.on_cancel = waiter.cancel
        return waiter is not None

    def is_late(self, deadline_ms: int) -> bool:
        return deadline_ms <= self._monotonic_ms()

    def _begin(self, call: Call, request: Any) -> None:
        pull = _Pull(self, call, request, *self._deadlines_ms(call, request))
        group = ensure_group(self.services.metadata, pull.group, self._groups.auto_create)
        if not group.consume_enable:
            raise Refusal(Code.FORBIDDEN, f"consumer group {pull.group} is disabled")
        call.message = b""
        call.when_writable(pull.start)

    def _deadlines_ms(self, call: Call, request: Any) -> tuple[int, int]:
        """Until when to wait: as long as the client asks, within bounds, and never beyond its own deadline; and the same for what
        only the tier has."""
        now_ms = self._monotonic_ms()
        asked = milliseconds(request.long_polling_timeout)
        if asked < 0:
            raise Refusal(Code.ILLEGAL_POLLING_TIME, "long_polling_timeout must not be negative")
        wait_ms = min(asked, self.services.popper.settings.max_wait_ms)
        last_ms = now_ms + max(wait_ms, _FETCH_MS) if call.deadline_ms is None else call.deadline_ms - RESERVED_MS
        return min(now_ms + wait_ms, last_ms), min(now_ms + max(wait_ms, _FETCH_MS), last_ms)


class _Pull:
    """One call under way."""

    __slots__ = (
        "_method", "call", "client", "cold_deadline_ms", "deadline_ms", "filter", "group", "is_cold", "label",
        "max_count", "offset", "queue_id", "tags_codes", "topic",
    )  # fmt: skip

    def __init__(self, method: PullMessage, call: Call, request: Any, deadline_ms: int, cold_deadline_ms: int) -> None:
        """Raises Refusal or RequestError for what is wrong with the request."""
        asked = request.message_queue.topic
        expression = request.filter_expression
        self._method = method
        self.call = call
        self.client = header(call, CLIENT_ID)
        self.deadline_ms = deadline_ms
        self.cold_deadline_ms = cold_deadline_ms
        self.group = group_name(request.group)
        self.topic, self.queue_id = consumed_queue(method.services, request.message_queue)
        self.offset: int = request.offset
        self.max_count = batch_size(request.batch_size)
        kind = SQL92 if expression.type == _SQL else TAG
        self.filter = compile_filter(kind, expression.expression.strip() or "*")
        self.tags_codes = self.filter.tags_codes
        self.label = topic_label(asked)
        self.is_cold = False  # what it asks for is being fetched from the tier

    def start(self) -> None:
        """Read, now or when the client has read what it was sent before; what only the tier has, in its turn."""
        if self.call.live:
            attempt(self.call, None, refuse, self._enter)

    def _enter(self) -> None:
        line, reads = self._method.line, self._method.services.reads
        if line is None or not reads.is_cold(self.topic, self.queue_id, self.offset):
            self._first_look()
        elif not line.enter(self.client, partial(attempt, self.call, None, refuse, self._first_look), self._still_asks):
            raise FULL

    def _still_asks(self) -> bool:
        if self.call.live and self._method.is_late(self.cold_deadline_ms):
            self.give_up()
            return False
        return self.call.live

    def _first_look(self) -> None:
        if not self.look():
            self.wait()

    def wait(self) -> None:
        """For messages, if it may."""
        if not self._method.park(self):
            self.give_up()

    def look(self) -> bool:
        """Answer with what is there; False when nothing is and the call may wait."""
        services = self._method.services
        if services.metadata.is_forbidden(self.group, self.topic):
            raise Refusal(Code.FORBIDDEN, f"consumer group {self.group} is forbidden to read topic {self.topic}")
        target = services.metadata.pending_reset(self.group, self.topic, self.queue_id)
        if target is not None:
            services.metadata.take_resets([(self.group, self.topic, self.queue_id)])
            self._send_elsewhere(target, f"the offset of group {self.group} was reset to {target}")
            return True
        started_ns, line = perf_counter_ns(), self._method.line
        result = read_admitted(
            services.reads,
            self.topic,
            self.queue_id,
            self.offset,
            self.max_count,
            SHORT_BYTES if line is not None and line.is_short else _MAX_BYTES,
            self.filter,
            self._method.turn.look(),
        )
        self.is_cold = result.status is GetStatus.BEING_FETCHED
        if result.status is GetStatus.FOUND:
            self._deliver(result, started_ns)
        elif result.status in _BESIDE or (result.status in _AT_THE_END and self.offset != result.next_offset):
            low, high = result.min_offset, result.max_offset
            text = f"queue {self.queue_id} of {self.topic} has offsets from {low} to {high}, not {self.offset}"
            self._send_elsewhere(result.next_offset, text)
        elif result.status in _AT_THE_END or self.is_cold:
            return False
        else:  # looked through: behind that there is more, or nothing yet
            self.offset = result.next_offset
            if self.offset >= result.max_offset:
                return False
            self.give_up()
        return True

    def give_up(self) -> None:
        """Nothing came: the client goes on where this call looked last."""
        services = self._method.services
        services.progress.pulled.note((self.group, self.topic, self.queue_id), self.offset)
        services.counters.missed += 1
        self._finish([_NOTHING], self.offset)

    def _send_elsewhere(self, next_offset: int, text: str) -> None:
        self._method.services.counters.missed += 1
        self._finish([status_field(Code.ILLEGAL_OFFSET, text)], next_offset)

    def _deliver(self, result: GetResult, started_ns: int) -> None:
        services, reader = self._method.services, (self.group, self.topic, self.queue_id)
        size = sum(map(len, result.records))
        services.counters.pulled(reader, len(result.records), size, (perf_counter_ns() - started_ns) / 1e6)
        frames, rest = self._frames(result.records)
        next_offset = result.next_offset if rest is None else rest
        services.progress.pulled.note(reader, next_offset)
        self._finish([OK if frames else _NOTHING, *frames], next_offset)

    def _frames(self, records: Sequence[bytes]) -> tuple[list[bytes], int | None]:
        """The response frames of messages, without those whose bytes are no message; and where the next call goes on when all
        of them would be too much at once."""
        pulled = []
        for record in records:
            queue_offset, _, reconsume_times = offsets_of(record)
            pulled.append(PoppedMessage(record, self.topic, 0, self.queue_id, queue_offset, "", reconsume_times + 1))
        answered = self._method.answers(pulled, self.label, 0, header(self.call, LANGUAGE))
        if None in answered:
            log.error("%d records of %s cannot be given to group %s", answered.count(None), self.topic, self.group)
        rest = pulled[len(answered)].queue_offset if len(answered) < len(pulled) else None
        return [each[1] for each in answered if each is not None], rest

    def _finish(self, frames: list[bytes], next_offset: int) -> None:
        self.call.on_cancel = None
        frames.append(service.PullMessageResponse(next_offset=next_offset).SerializeToString())
        self.call.send(frames)
        self.call.finish()


def refuse(call: Call, request: Any, refusal: Refusal) -> None:
    """A refused pull: a status, and no word of where to go on."""
    call.on_cancel = None
    call.send([refusal.status])
    call.finish()


def _try_again(waiters: Sequence[Waiter[_Pull]]) -> int:
    """Messages came: how many of the calls were answered, of the one that is tried at a time."""
    (waiter,) = waiters
    pull = waiter.payload
    answered = True  # also by a refusal

    def look() -> None:
        nonlocal answered
        was_cold = pull.is_cold
        answered = pull.look()
        if not answered and pull.is_cold is not was_cold:
            answered = True  # here: it waits for the other thing now
            pull.wait()

    attempt(pull.call, None, refuse, look)
    return answered


def _time_out(waiter: Waiter[_Pull]) -> None:
    waiter.payload.give_up()
