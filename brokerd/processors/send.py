"""Send requests (codes 10, 310, 320): the fast path through the kernel, and the way to the general path for everything else."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from brokerd import kernel
from brokerd.kernel import SendTarget
from brokerd.send import ROLE_CHANGED, Acknowledger, Counters, MessageSender, as_request_error
from brokerd.send_rules import PERM_WRITE, check_destination
from brokerd.services import Draft, PutStatus, SendOutcome, TopicConfig
from brokerd.store.store import MessageStore
from remoting import codes
from remoting.errors import LogboomError, RequestError, StorageError
from remoting.frame import Command
from remoting.message import SYS_COMPRESSED, decode_batch_body, pack_host
from remoting.transport.connection import RemotingConnection

log = logging.getLogger(__name__)

_HOST: Final = struct.Struct(">II")
_STATUS_CODES: Final = {
    PutStatus.FLUSH_DISK_TIMEOUT: b'{"code":10,',
    PutStatus.FLUSH_SLAVE_TIMEOUT: b'{"code":12,',
}


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
    ) -> None:
        self._store = store
        self._log = store.commitlog
        self._acknowledger = acknowledger
        self._sender = sender
        self._topics = topics
        self._store_host = _HOST.unpack(pack_host(*store_host))
        self._counters = counters
        self._targets: dict[str, SendTarget] = {}

    def topics_changed(self) -> None:
        """Topics were created, changed or deleted: prepare the fast path's table anew."""
        targets = {}
        for name, config in self._topics().items():
            try:
                check_destination(name)
            except RequestError:
                continue
            if config.perm & PERM_WRITE and config.write_queue_nums > 0 and len(name) <= 127:
                targets[name] = self._targets.get(name) or SendTarget(name, config.write_queue_nums)
                targets[name].write_queue_nums = config.write_queue_nums
        self._targets = targets

    def handle(self, connection: RemotingConnection, requests: Sequence[Command]) -> None:
        """Handle send requests with short field names (codes 310 and 320) of one read event."""
        error = self._acknowledger.refusal()
        if error is not None:
            for request in requests:
                connection.respond_error(request, error)
            return
        try:
            born_host = _HOST.unpack(pack_host(connection.peer_host, connection.peer_port))
        except struct.error:  # an IPv6 peer: the general path encodes its records
            born_host = None
        index = 0
        while index < len(requests):
            if born_host is None:
                self._send_request(connection, requests[index])
                index += 1
                continue
            index = self._append_run(connection, requests, index, born_host)

    def handle_long_names(self, connection: RemotingConnection, requests: Sequence[Command]) -> None:
        """Handle send requests with long field names (code 10)."""
        for request in requests:
            ext = request.ext
            request.ext = {short: ext[long] for short, long in _LONG_NAMES.items() if long in ext}
        self.handle(connection, requests)

    def _append_run(
        self, connection: RemotingConnection, requests: Sequence[Command], first: int, born_host: tuple[int, int]
    ) -> int:
        """Append as many requests as go in one write; returns the index of the first that is still to do."""
        start = self._log.end_offset
        out = kernel.encode_sends(
            requests,
            first,
            self._targets,
            self._store.queue_offsets.table,
            start,
            start + self._log.segment_remaining() - 8,
            self._store.next_timestamp(),
            born_host,
            self._store_host,
        )
        if out.records and not self._append(connection, requests[first : out.next_index], start, out):
            return out.next_index
        if out.is_slow:
            self._send_request(connection, requests[out.next_index])
            return out.next_index + 1
        if out.next_index == first:
            return self._roll(connection, requests, first)
        return out.next_index

    def _roll(self, connection: RemotingConnection, requests: Sequence[Command], first: int) -> int:
        """The request has no room in this file: begin the next one; the general path refuses what no file has room for."""
        if self._log.segment_remaining() == self._log.segment_size_bytes:
            self._send_request(connection, requests[first])
            return first + 1
        try:
            self._log.roll()
        except StorageError as failure:
            self._store.note_append_error(failure)
            connection.respond_error(requests[first], as_request_error(failure))
            return first + 1
        return first

    def _append(
        self, connection: RemotingConnection, requests: Sequence[Command], start: int, out: kernel.Encoded
    ) -> bool:
        total = out.end_offset - start
        try:
            self._log.append(b"".join(out.records), total)
        except StorageError as failure:
            self._store.note_append_error(failure)
            for topic, queue_id, queue_offset, *_ in reversed(out.entries):
                self._store.queue_offsets.table[topic, queue_id] = queue_offset
            for request in requests:
                connection.respond_error(request, as_request_error(failure))
            return False
        self._store.dispatcher.offer(start, out.entries, out.end_offset)
        self._counters.in_messages += len(out.entries)
        self._counters.in_bytes += total
        self._acknowledger.appended(out.end_offset)
        if out.answered:
            self._acknowledger.wait(out.end_offset, _Answer(connection, out))
        return True

    def _send_request(self, connection: RemotingConnection, request: Command) -> None:
        """The general path of one request."""
        try:
            drafts = drafts_of_request(request, pack_host(connection.peer_host, connection.peer_port))
        except LogboomError as error:
            connection.respond_error(request, error)
            return
        if len(drafts) > 1 and drafts[0].queue_id < 0:  # a batch stays together
            topic = self._topics().get(drafts[0].topic)
            queue_id = self._sender.turn_of(drafts[0].topic)(max(1, topic.write_queue_nums) if topic else 1)
            drafts = [replace(draft, queue_id=queue_id) for draft in drafts]
        outcomes, ready = self._sender.prepare(drafts)
        if len(ready) < len(drafts):  # all of a batch or nothing
            self._answer(connection, request, outcomes)
        else:
            self._sender.append(outcomes, ready, lambda final: self._answer(connection, request, final))

    def _answer(self, connection: RemotingConnection, request: Command, outcomes: Sequence[SendOutcome]) -> None:
        error = next((outcome.error for outcome in outcomes if outcome.error is not None), None)
        if error is not None:
            connection.respond_error(request, error)
            return
        prefix = "{:08X}{:08X}".format(*self._store_host)
        ext = {
            "msgId": ",".join(f"{prefix}{outcome.physical_offset:016X}" for outcome in outcomes),
            "queueId": str(outcomes[0].queue_id),
            "queueOffset": str(outcomes[0].queue_offset),
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        }
        connection.respond(request, _RESPONSE_CODES[outcomes[0].status], ext)


class _Answer:
    """The answers of one append, sent when it is acknowledged or failed."""

    __slots__ = ("_connection", "_out")

    def __init__(self, connection: RemotingConnection, out: kernel.Encoded) -> None:
        self._connection = connection
        self._out = out

    def __call__(self, status: PutStatus) -> None:
        out = self._out
        if status is PutStatus.PUT_OK:
            self._connection.respond_encoded(b"".join(out.answers), len(out.answered))
        elif status in _STATUS_CODES:
            answers = b"".join(out.answers).replace(kernel.ANSWER_OK, _STATUS_CODES[status])
            self._connection.respond_encoded(answers, len(out.answered))
        else:
            for request in out.answered:
                self._connection.respond(request, codes.SERVICE_NOT_AVAILABLE, remark=ROLE_CHANGED)


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
    if topic.startswith("%RETRY%"):
        raise RequestError(codes.MESSAGE_ILLEGAL, "a batch cannot go to a retry topic; send its messages one by one")
    items = decode_batch_body(request.body)
    if not items:
        raise RequestError(codes.MESSAGE_ILLEGAL, "the batch is empty")
    return [
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
