"""Send requests (codes 10, 310, 320): the fast path through the kernel, and the way to the general path for everything else."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter_ns
from typing import Final, Protocol

from brokerd.delay.rules import asks_for_delay
from brokerd.metadata.configs import TopicConfig
from brokerd.processors import fields
from brokerd.sending import kernel
from brokerd.sending.kernel import SendTarget
from brokerd.sending.outcomes import SendOutcome
from brokerd.sending.rules import PERM_WRITE, check_destination, unique_key
from brokerd.sending.sender import ROLE_CHANGED, Acknowledger, Counters, MessageSender
from brokerd.statistics.figures import Durations
from brokerd.store.draft import Draft
from brokerd.store.put_status import PutStatus
from brokerd.store.store import MessageStore
from brokerd.transactions.records import is_half
from remoting import codes
from remoting.errors import LogboomError, RequestError, StorageError, as_request_error
from remoting.frame import Command
from remoting.names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from remoting.record.batch import decode_batch_body
from remoting.record.hosts import pack_host
from remoting.record.layout import SYS_COMPRESSED, SYS_TRANSACTION_MASK
from remoting.transport.connection import RemotingConnection

log = logging.getLogger(__name__)

_HOST: Final = struct.Struct(">II")
_STATUS_CODES: Final = {
    PutStatus.FLUSH_DISK_TIMEOUT: b'{"code":10,',
    PutStatus.FLUSH_SLAVE_TIMEOUT: b'{"code":12,',
}


_NO_TARGETS: Final[Mapping[str, SendTarget]] = {}
_NO_HOST: Final = (0, 0)
_MAX_RUN_BYTES: Final = 4 * 1024 * 1024
_LARGE_BYTES: Final = 4096  # buffers larger than this are gathered by the write itself, smaller ones before it


class MakeTopic(Protocol):
    """Makes a topic after a template; returns why not."""

    def __call__(self, name: str, template: str, queues: int, *, is_unit: bool = False) -> RequestError | None: ...


class SendProcessor:
    """The handler of send frames."""

    def __init__(
        self,
        store: MessageStore,
        acknowledger: Acknowledger,
        sender: MessageSender,
        topics: Callable[[], Mapping[str, TopicConfig]],
        store_host: tuple[str, int],
        counters: Counters,
        call_soon: Callable[[Callable[[], None]], object],
        sent_again: Callable[[Draft, int | None, int], Draft],
        make_topic: MakeTopic | None = None,
        when_known: Callable[[Callable[[], None]], None] = lambda done: done(),
    ) -> None:
        """`sent_again(draft, limit, client version)` says where a message goes that is sent to a retry topic. `make_topic` makes
        topics that somebody sends to; without it they are refused. `when_known` calls back when name servers know the topics."""
        self._waiting: list[tuple[RemotingConnection, Sequence[Command]]] = []
        self._call_soon = call_soon
        self._sent_again = sent_again
        self._make_topic = make_topic
        self._when_known = when_known
        self._store = store
        self._log = store.commitlog
        self._acknowledger = acknowledger
        self._sender = sender
        self._topics = topics
        packed = pack_host(*store_host)
        self._id_prefix = packed.hex().upper()
        # The kernel lays out records with IPv4 hosts and without a checksum over the whole; all others take the general path.
        self._kernel_fits = len(packed) == _HOST.size and not store.adds_checksums
        self._store_host = _HOST.unpack(packed) if self._kernel_fits else _NO_HOST
        self._counters = counters
        self._targets: dict[str, SendTarget] = {}

    def topics_changed(self, names: Iterable[str] | None = None) -> None:
        """Topics of these names, or any, were created, changed or deleted: prepare the fast path's table."""
        if not self._kernel_fits:
            return
        if names is None:
            names = {**self._targets, **self._topics()}
        for name in names:
            config = self._sender.topic(name)
            if config is None or not _takes_fast_path(config):
                self._targets.pop(name, None)
            elif (target := self._targets.get(name)) is not None:
                target.write_queue_nums = config.write_queue_nums
            else:
                self._targets[name] = SendTarget(name, config.write_queue_nums)

    def handle(self, connection: RemotingConnection, requests: Sequence[Command]) -> None:
        """Take send requests with short field names (codes 310 and 320): what all connections sent in this turn of the loop is
        appended together in the next."""
        self._waiting.append((connection, requests))
        if len(self._waiting) == 1:
            self._call_soon(self._process)

    def handle_long_names(self, connection: RemotingConnection, requests: Sequence[Command]) -> None:
        """Handle send requests with long field names (code 10)."""
        for request in requests:
            request.ext = short_names(request.ext)
        self.handle(connection, requests)

    def _process(self) -> None:
        waiting, self._waiting = self._waiting, []
        error = self._acknowledger.refusal()
        if error is not None:
            for connection, requests in waiting:
                self._counters.refuse(error, len(requests))
                for request in requests:
                    connection.respond_error(request, error)
            return
        run = _Run(self._log.end_offset, self._counters.puts)
        for connection, requests in waiting:
            run = self._lay_out(run, connection, requests)
        self._append(run)

    def _lay_out(self, run: _Run, connection: RemotingConnection, requests: Sequence[Command]) -> _Run:
        """Lay out the requests behind what the run holds; append it and begin another where something else must come first."""
        born_host = _born_host(connection)
        index = 0
        while index < len(requests):
            before = len(run.out.answers), len(run.out.answered)
            kernel.encode_sends(
                run.out,
                requests,
                index,
                self._targets if born_host is not None else _NO_TARGETS,
                self._store.queue_offsets.table,
                self._log.end_offset + self._log.segment_remaining() - 8,
                self._store.next_timestamp(),
                born_host or _NO_HOST,
                self._store_host,
            )
            reached, is_slow = run.out.next_index, run.out.is_slow
            if reached > index:
                run.parts.append((connection, requests[index:reached], *before))
            if reached == len(requests) and run.total < _MAX_RUN_BYTES:
                return run
            was_empty = not run.out.records
            self._append(run)
            if is_slow:
                self._send_request(connection, requests[reached])
                reached += 1
            elif was_empty and reached < len(requests):
                reached = self._roll(connection, requests, reached)
            run = _Run(self._log.end_offset, self._counters.puts)
            index = reached
        return run

    def _roll(self, connection: RemotingConnection, requests: Sequence[Command], first: int) -> int:
        """The request has no room in this file: begin the next one; the general path refuses what no file has room for."""
        if self._log.segment_remaining() == self._log.segment_size_bytes:
            self._send_request(connection, requests[first])
            return first + 1
        try:
            self._log.roll()
        except StorageError as failure:
            self._store.note_append_error(failure)
            connection.respond_error(requests[first], as_request_error(failure, codes.SERVICE_NOT_AVAILABLE))
            return first + 1
        return first

    def _append(self, run: _Run) -> None:
        """Append what the run holds in one write, and have its answers sent when it is acknowledged."""
        out = run.out
        if not out.records:
            return
        try:
            is_large = run.total > _LARGE_BYTES * len(out.records)
            self._log.append(out.records if is_large else b"".join(out.records), run.total)
        except StorageError as failure:
            self._store.note_append_error(failure)
            for topic, queue_id, queue_offset, *_ in reversed(out.entries):
                self._store.queue_offsets.table[topic, queue_id] = queue_offset
            for connection, requests, _, _ in run.parts:
                for request in requests:
                    connection.respond_error(request, as_request_error(failure, codes.SERVICE_NOT_AVAILABLE))
            return
        self._store.dispatcher.offer(run.start, out.entries, out.end_offset)
        self._counters.in_messages += out.message_count
        self._counters.in_bytes += run.total
        self._counters.statistics.stored(out.entries, out.message_count, run.total)
        self._acknowledger.appended(out.end_offset)
        if out.answered:
            run.appended_ns = perf_counter_ns()
            self._acknowledger.wait(out.end_offset, run.answer)

    def _send_request(self, connection: RemotingConnection, request: Command) -> None:
        """The general path of one request."""
        try:
            drafts = drafts_of_request(request, connection.packed_peer)
            if drafts[0].topic.startswith(RETRY_PREFIX):
                drafts = [self._sent_again(drafts[0], limit_of_request(request), request.version)]
        except LogboomError as error:
            connection.respond_error(request, error)
            return
        is_new = self._sender.topic(request.ext["b"]) is None
        refusal = self._make_missing_topic(request.ext)
        if refusal is not None:
            connection.respond_error(request, refusal)
            return
        if len(drafts) > 1 and drafts[0].queue_id < 0:  # a batch stays together
            topic = self._sender.topic(drafts[0].topic)
            queue_id = self._sender.turn_of(drafts[0].topic)(max(1, topic.write_queue_nums) if topic else 1)
            drafts = [draft._replace(queue_id=queue_id) for draft in drafts]
        outcomes, ready = self._sender.prepare(drafts)
        if len(ready) < len(drafts):  # all of a batch or nothing
            self._answer(connection, request, outcomes)
        else:
            key = unique_key(ready[0][1]) if len(ready) == 1 else ""

            def answer(final: Sequence[SendOutcome]) -> None:
                if is_new:
                    self._when_known(lambda: self._answer(connection, request, final, key))
                else:
                    self._answer(connection, request, final, key)

            self._sender.append(outcomes, ready, answer)

    def _make_missing_topic(self, ext: Mapping[str, str]) -> RequestError | None:
        """In development, a topic is made when somebody sends to it; the reason if that failed."""
        name = ext["b"]
        if (
            self._make_topic is None
            or self._sender.topic(name) is not None
            or name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))
        ):
            return None
        queues = ext.get("d", "")
        if not (queues.isascii() and queues.isdigit() and len(queues) < 10):
            return RequestError(codes.INVALID_PARAMETER, "defaultTopicQueueNums is no number")
        return self._make_topic(name, ext.get("c", ""), int(queues), is_unit=ext.get("k") == "true")

    def _answer(
        self, connection: RemotingConnection, request: Command, outcomes: Sequence[SendOutcome], key: str = ""
    ) -> None:
        error = next((outcome.error for outcome in outcomes if outcome.error is not None), None)
        if error is not None:
            connection.respond_error(request, error)
            return
        prefix = self._id_prefix
        ext = {
            "msgId": ",".join(f"{prefix}{outcome.physical_offset:016X}" for outcome in outcomes),
            "queueId": str(outcomes[0].queue_id),
            "queueOffset": str(outcomes[0].queue_offset),
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        }
        if key:
            ext["transactionId"] = key
        connection.respond(request, _RESPONSE_CODES[outcomes[0].status], ext)


def _takes_fast_path(config: TopicConfig) -> bool:
    """Whether ordinary messages of the topic need no rule beside what the kernel knows."""
    try:
        check_destination(config.name)
    except RequestError:
        return False
    is_open = config.perm & PERM_WRITE and config.write_queue_nums > 0
    return bool(is_open) and len(config.name) <= 127 and not config.name.startswith(RETRY_PREFIX)


class _Run:
    """What is appended in one write: the kernel's output, and which part of it came from which connection.

    A part is (connection, its requests, index of its first answer, index of its first answered request).
    """

    __slots__ = ("appended_ns", "durations", "out", "parts", "start")

    def __init__(self, start: int, durations: Durations) -> None:
        self.start = start
        self.durations = durations
        self.appended_ns = 0
        self.out = kernel.Encoded(start)
        self.parts: list[tuple[RemotingConnection, Sequence[Command], int, int]] = []

    @property
    def total(self) -> int:
        return self.out.end_offset - self.start

    def answer(self, status: PutStatus) -> None:
        """The append was acknowledged, or failed: tell everybody."""
        out = self.out
        self.durations.add((perf_counter_ns() - self.appended_ns) / 1e6, len(out.entries))
        end, answered_end = len(out.answers), len(out.answered)
        for connection, _, first, first_answered in reversed(self.parts):
            count = answered_end - first_answered
            if status is PutStatus.PUT_OK:
                connection.respond_encoded(b"".join(out.answers[first:end]), count)
            elif status in _STATUS_CODES:
                answers = b"".join(out.answers[first:end]).replace(kernel.ANSWER_OK, _STATUS_CODES[status])
                connection.respond_encoded(answers, count)
            else:
                for request in out.answered[first_answered:answered_end]:
                    connection.respond(request, codes.SERVICE_NOT_AVAILABLE, remark=ROLE_CHANGED)
            end, answered_end = first, first_answered


def _born_host(connection: RemotingConnection) -> tuple[int, int] | None:
    """The peer's address as the kernel wants it; None for an IPv6 peer, whose records the general path encodes."""
    packed = connection.packed_peer
    return _HOST.unpack(packed) if len(packed) == _HOST.size else None


_RESPONSE_CODES: Final = {
    PutStatus.PUT_OK: codes.SUCCESS,
    PutStatus.FLUSH_DISK_TIMEOUT: codes.FLUSH_DISK_TIMEOUT,
    PutStatus.FLUSH_SLAVE_TIMEOUT: codes.FLUSH_SLAVE_TIMEOUT,
    PutStatus.SERVICE_NOT_AVAILABLE: codes.SERVICE_NOT_AVAILABLE,
    PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH: codes.SYSTEM_ERROR,
    PutStatus.MESSAGE_ILLEGAL: codes.MESSAGE_ILLEGAL,
}

_LONG_NAMES: Final = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
    "l": "maxReconsumeTimes",
    "m": "batch",
}


def short_names(ext: Mapping[str, str]) -> dict[str, str]:
    """The fields of a send header with long names under their short ones."""
    return {short: ext[long] for short, long in _LONG_NAMES.items() if long in ext}


def limit_of_request(request: Command) -> int | None:
    """How often a consumer wants to get a message again; None when it does not say. Raises InvalidParameter."""
    if not request.ext.get("l"):
        return None
    return fields.integer(request.ext, "l", low=-(1 << 31), high=fields.MAX_INT)


def drafts_of_request(request: Command, born_host: bytes) -> list[Draft]:
    """The messages of a send request with short field names. Raises a LogboomError that names what is wrong."""

    ext = request.ext
    try:
        topic = ext["b"]
        queue_id, sys_flag, flag = int(ext["e"]), int(ext["f"]), int(ext["h"])
        born_timestamp, reconsume_times = int(ext["g"]), int(ext.get("j") or 0)
    except (KeyError, ValueError) as error:
        raise RequestError(codes.INVALID_PARAMETER, f"the send header lacks or garbles a field: {error}") from error
    if not (
        0 <= sys_flag < 1 << 31
        and -(1 << 31) <= flag < 1 << 31
        and 0 <= reconsume_times < 1 << 31
        and 0 <= born_timestamp < 1 << 62
        and queue_id < 1 << 31
    ):
        raise RequestError(codes.INVALID_PARAMETER, "a number of the send header is out of range")
    if ext.get("m") != "true":
        return [
            Draft(
                topic,
                queue_id,
                bytes(request.body),
                ext.get("i", "").encode(),
                born_timestamp,
                born_host,
                flag,
                sys_flag,
                reconsume_times,
            )
        ]
    if topic.startswith(RETRY_PREFIX):
        raise RequestError(codes.MESSAGE_ILLEGAL, "a batch cannot go to a retry topic; send its messages one by one")
    items = decode_batch_body(request.body)
    if not items:
        raise RequestError(codes.MESSAGE_ILLEGAL, "the batch is empty")
    if any(
        asks_for_delay(properties) for properties in (ext.get("i", "").encode(), *(item.properties for item in items))
    ):
        raise RequestError(
            codes.MESSAGE_ILLEGAL, "a batch cannot be delayed (property DELAY); send its messages one by one"
        )
    drafts = [
        Draft(
            topic,
            queue_id,
            bytes(item.body),
            item.properties,
            born_timestamp,
            born_host,
            item.flag,
            sys_flag & ~SYS_COMPRESSED,
            reconsume_times,
        )
        for item in items
    ]
    if sys_flag & SYS_TRANSACTION_MASK or any(map(is_half, drafts)):
        raise RequestError(
            codes.MESSAGE_ILLEGAL, "a batch cannot be part of a transaction; send its messages one by one"
        )
    return drafts
