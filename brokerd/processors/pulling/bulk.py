"""Reads in bulk (code 12009, ours): the records of a queue from an offset on, as many at once as is good for both sides.

For programs that read what is stored from one offset to another, such as reports. It is what a pull is without all that belongs
to consuming: no subscription, nothing held, no offset committed, noted or reset, and nobody is sent elsewhere. So it is served by
every replica that is in sync. How much comes at once is limited by settings (`pull.bulk_*`), by less where the disk may have to
be waited for, and by the asker.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns
from typing import Final

from brokerd.consuming.read_place import ReadPlace
from brokerd.loop.cold_line import SHORT_BYTES
from brokerd.loop.long_polling import LongPolling, Waiter, WaitTable
from brokerd.loop.scheduler import Scheduler
from brokerd.processors import fields
from brokerd.processors.parked import ParkedRequests
from brokerd.processors.pulling.checks import PullChecks
from brokerd.processors.pulling.pull import answer_of
from brokerd.sending.counters import Counters
from brokerd.store.queues.queue_reads import GetStatus
from brokerd.store.store_reads import StoreReads
from remoting import codes
from remoting.errors import LogboomError, RequestError
from remoting.frame import Command
from remoting.transport.connection import RemotingConnection

_FETCH_MS: Final = 10_000
_MAX_HELD: Final = 1000
_COMES: Final = RequestError(codes.SYSTEM_BUSY, "the messages are being fetched from the tier; ask again")


class _Bulk:
    """One request."""

    __slots__ = ("connection", "request", "ticket")

    def __init__(self, connection: RemotingConnection, request: Command) -> None:
        self.connection = connection
        self.request = request
        self.ticket = 0  # among the parked requests, when it is one

    @property
    def tags_codes(self) -> None:
        """It asks for whatever there is."""

    @property
    def client(self) -> str:
        """Those who wait are bounded all together."""
        return ""


class BulkProcessor:
    """The handler of bulk reads. `place` says whether they are served here, and with which limits."""

    def __init__(
        self,
        checks: PullChecks,
        reads: StoreReads,
        counters: Counters,
        place: ReadPlace,
        scheduler: Scheduler,
    ) -> None:
        self._checks = checks
        self._reads = reads
        self._counters = counters
        self._place = place
        self._scheduler = scheduler
        self._cold_line = line = place.cold_line
        self._parked = ParkedRequests()
        self._polling: LongPolling[_Bulk] = LongPolling(
            scheduler,
            WaitTable(_MAX_HELD, _MAX_HELD),
            self._try_again,
            self._timed_out,
            share=False,
            stand=None if line is None else lambda bulk, turn, still: line.stand(bulk.connection, turn, still),
        )

    def handle(self, connection: RemotingConnection, request: Command) -> None:
        """Answer: records back to back, or the code that says why there are none; what is fetched from a tier is waited for."""
        bulk = _Bulk(connection, request)
        if self._answer(bulk):
            return
        ext = request.ext
        topic, queue_id = fields.text(ext, "topic"), fields.integer(ext, "queueId")
        deadline_ms = int(self._scheduler.time() * 1000) + _FETCH_MS
        waiter = self._polling.park(topic, "", queue_id, deadline_ms, bulk)
        if waiter is None:
            connection.respond_error(request, _COMES)
        else:
            bulk.ticket = self._parked.add(connection, waiter)

    def wake(self, topic: str, queue_id: int) -> None:
        """More of the queue can be read."""
        self._polling.arrived(topic, queue_id)

    def connection_closed(self, connection: object) -> None:
        self._parked.cancel_all(connection)

    def answer_all(self) -> None:
        """The role changed, or the broker stops: let everybody ask again."""
        for waiter in self._polling.take_all():
            self._timed_out(waiter)

    # ---- answering

    def _try_again(self, waiters: Sequence[Waiter[_Bulk]]) -> int:
        (waiter,) = waiters
        bulk = waiter.payload
        try:
            answered = self._answer(bulk)
        except LogboomError as error:
            bulk.connection.respond_error(bulk.request, error)
            answered = True
        if answered:
            self._parked.forget(bulk.connection, bulk.ticket)
        return answered

    def _timed_out(self, waiter: Waiter[_Bulk]) -> None:
        bulk = waiter.payload
        self._parked.forget(bulk.connection, bulk.ticket)
        bulk.connection.respond_error(bulk.request, _COMES)

    def _answer(self, bulk: _Bulk) -> bool:
        """False, and nothing answered, when the messages are on their way from the tier."""
        connection, request = bulk.connection, bulk.request
        self._place.check_bulk()
        ext = request.ext
        group = fields.text(ext, "consumerGroup")
        topic, queue_id = self._checks.check_bulk(group, ext)
        offset = fields.integer(ext, "queueOffset", low=-fields.MAX_LONG)
        max_count, max_bytes = self._limits(topic, queue_id, offset, ext)
        started_ns = perf_counter_ns()
        result = self._reads.read_joined(topic, queue_id, offset, max_count, max_bytes)
        if result.status is GetStatus.BEING_FETCHED:
            return False
        code, next_offset = answer_of(result, offset)
        header = {
            "nextBeginOffset": str(next_offset),
            "minOffset": str(result.min_offset),
            "maxOffset": str(result.max_offset),
        }
        if code == codes.SUCCESS:
            read_ms = (perf_counter_ns() - started_ns) / 1e6
            self._counters.pulled((group, topic, queue_id), result.messages, len(result.body), read_ms)
        else:
            self._counters.missed += 1
        connection.respond(request, code, header, result.body, result.status.name, body_stays=True)
        return True

    def _limits(self, topic: str, queue_id: int, offset: int, ext: dict[str, str]) -> tuple[int, int]:
        """The most messages and bytes: the settings' limits, or less if the request asks for less."""
        first = self._reads.read_units(topic, queue_id, max(offset, self._reads.min_offset(topic, queue_id)), 1)
        on_disk = bool(first) and self._place.is_far_behind(first[0][0])
        most_messages, most_bytes = self._place.settings.value.bulk_limits(on_disk=on_disk)
        line = self._cold_line
        if line is not None and self._reads.is_cold(topic, queue_id, offset) and line.is_beside_others:
            most_bytes = min(most_bytes, SHORT_BYTES)
        messages = fields.integer(ext, "maxMsgNums", most_messages, low=1, high=fields.MAX_INT)
        size_bytes = fields.integer(ext, "maxMsgBytes", most_bytes, low=1, high=fields.MAX_INT)
        return min(messages, most_messages), min(size_bytes, most_bytes)
