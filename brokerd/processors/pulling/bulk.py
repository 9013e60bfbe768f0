"""Reads in bulk (code 12009, ours): the records of a queue from an offset on, as many at once as is good for both sides.

For programs that read what is stored from one offset to another, such as reports. It is what a pull is without all that belongs
to consuming: no subscription, nothing held, no offset committed, noted or reset, and nobody is sent elsewhere. So it is served by
every replica that is in sync. How much comes at once is limited by settings (`pull.bulk_*`), by less where the disk may have to
be waited for, and by the asker.
"""

from __future__ import annotations

from time import perf_counter_ns

from brokerd.consuming.read_place import ReadPlace
from brokerd.processors import fields
from brokerd.processors.pulling.checks import PullChecks
from brokerd.processors.pulling.pull import answer_of
from brokerd.sending.counters import Counters
from brokerd.store.store_reads import StoreReads
from remoting import codes
from remoting.frame import Command
from remoting.transport.connection import RemotingConnection


class BulkProcessor:
    """The handler of bulk reads. `place` says whether they are served here, and with which limits."""

    def __init__(self, checks: PullChecks, reads: StoreReads, counters: Counters, place: ReadPlace) -> None:
        self._checks = checks
        self._reads = reads
        self._counters = counters
        self._place = place

    def handle(self, connection: RemotingConnection, request: Command) -> None:
        """Answer at once: records back to back, or the code that says why there are none."""
        self._place.check_bulk()
        ext = request.ext
        group = fields.text(ext, "consumerGroup")
        topic, queue_id = self._checks.check_bulk(group, ext)
        offset = fields.integer(ext, "queueOffset", low=-fields.MAX_LONG)
        max_count, max_bytes = self._limits(topic, queue_id, offset, ext)
        started_ns = perf_counter_ns()
        result = self._reads.read_joined(topic, queue_id, offset, max_count, max_bytes)
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
        connection.respond(request, code, header, result.body, result.status.name)

    def _limits(self, topic: str, queue_id: int, offset: int, ext: dict[str, str]) -> tuple[int, int]:
        """The most messages and bytes: the settings' limits, or less if the request asks for less."""
        first = self._reads.read_units(topic, queue_id, max(offset, self._reads.min_offset(topic, queue_id)), 1)
        on_disk = bool(first) and self._place.is_far_behind(first[0][0])
        most_messages, most_bytes = self._place.settings.value.bulk_limits(on_disk=on_disk)
        messages = fields.integer(ext, "maxMsgNums", most_messages, low=1, high=fields.MAX_INT)
        size_bytes = fields.integer(ext, "maxMsgBytes", most_bytes, low=1, high=fields.MAX_INT)
        return min(messages, most_messages), min(size_bytes, most_bytes)
