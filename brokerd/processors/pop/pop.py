"""POP on remoting: codes 200050 (pop), 200051 and 200151 (ack), 200053 (change the invisible time), and what only looks at what a
pop would get: 200052 (peek), 200054 (tell me when there is something), 200055 (how many wait).

The same service as gRPC's, so clients of both protocols share a group's messages. Handles that are no longer good get an error
code, which clients log: the message will come again, and nobody should believe otherwise.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from brokerd.loop.scheduler import Scheduler
from brokerd.metadata.service import MetadataService
from brokerd.metadata.start_offsets import InitMode
from brokerd.pop.admission import check_changed_time
from brokerd.pop.batch import MAX_BATCH
from brokerd.pop.copies import base_topic
from brokerd.pop.handles import (
    FLAG_RETRY_V2,
    ReceiptHandle,
    decode_handle,
)
from brokerd.pop.looking import Notice
from brokerd.pop.requests import (
    MAX_ATTEMPT_ID,
    AckStatus,
    InvisibleTimeOutcome,
    Parked,
    PopOutcome,
    PopRequest,
    PopStatus,
)
from brokerd.pop.service import PopService
from brokerd.processors import bodies, fields
from brokerd.processors.parked import ParkedRequests
from brokerd.processors.pop.answers import pop_body, pop_header
from brokerd.processors.pop.request_age import RequestAges
from brokerd.store.store_reads import StoreReads
from remoting import codes
from remoting.errors import InvalidParameter, RequestError
from remoting.frame import Command
from remoting.transport.connection import RemotingConnection

_MAX_POLL_MS: Final = 60_000
_MARGIN_MS: Final = 50  # answer a little before the client's own deadline
_TOO_OLD_MS: Final = 500
_MAX_BATCHES: Final = 4096
_MAX_BITS_BYTES: Final = 1024
_MAX_ACKS: Final = 4096  # looked at in one turn of the loop

_CODES: Final = {PopStatus.NOTHING: codes.POLLING_TIMEOUT, PopStatus.POLLING_FULL: codes.POLLING_FULL}


@dataclass(slots=True, eq=False)
class PopProcessor:
    popper: PopService
    metadata: MetadataService
    ranges: StoreReads
    broker_name: str
    scheduler: Scheduler
    ages: dict[object, RequestAges] = field(default_factory=dict)
    parked: ParkedRequests = field(default_factory=ParkedRequests)

    def connection_closed(self, connection: object) -> None:
        """Whoever waits on it gets no messages any more."""
        self.ages.pop(connection, None)
        self.parked.cancel_all(connection)

    # ---- pop

    def pop(self, connection: RemotingConnection, request: Command) -> None:
        """Code 200050."""
        ext = request.ext
        deadline_ms = self._deadline_ms(connection, ext)
        if deadline_ms is None:
            outcome = PopOutcome(PopStatus.NOTHING)
            connection.respond(
                request, codes.POLLING_TIMEOUT, pop_header(outcome, ordered=False), remark="the request is too old"
            )
            return
        group, is_ordered = self._group(ext)
        pop = PopRequest(
            group=group,
            topic=fields.text(ext, "topic"),
            queue_id=fields.integer(ext, "queueId", low=-1, high=fields.MAX_INT),
            max_count=fields.integer(ext, "maxMsgNums", high=fields.MAX_INT),
            invisible_time_ms=fields.integer(ext, "invisibleTime"),
            deadline_ms=deadline_ms,
            init_mode=_init_mode(ext, 0),
            expression_type=ext.get("expType") or "TAG",
            expression=ext.get("exp") or "*",
            fifo=is_ordered,
            attempt_id=(ext.get("attemptId") or "")[:MAX_ATTEMPT_ID],
            client_id=connection.peer,
            has_tag=False,
        )
        tickets: list[int] = []

        def done(outcome: PopOutcome) -> None:
            self._answered(connection, tickets)
            self._popped(connection, request, outcome, ordered=is_ordered)

        self._hold(connection, request, self.popper.pop(pop, done), tickets)

    def _popped(self, connection: RemotingConnection, request: Command, outcome: PopOutcome, *, ordered: bool) -> None:
        if outcome.error is not None:
            connection.respond_error(request, outcome.error)
            return
        header = pop_header(outcome, ordered=ordered)
        if outcome.status != PopStatus.FOUND:
            connection.respond(request, _CODES[outcome.status], header)
            return
        body = pop_body(outcome.messages)
        connection.respond(request, codes.SUCCESS, header, body)

    # ---- ack

    def ack(self, connection: RemotingConnection, request: Command) -> None:
        """Code 200051: one message."""
        group, topic, handle = self._named(request)

        def done(statuses: Sequence[AckStatus]) -> None:
            self._respond_one(connection, request, statuses[0])

        self.popper.ack(group, topic, [handle.encode()], done)

    def batch_ack(self, connection: RemotingConnection, request: Command) -> None:
        """Code 200151: many messages, named by bits; those that cannot be acked any more are skipped."""
        document = bodies.decode_object(request.body, "a batch of acks")
        entries = bodies.objects(document, "acks", _MAX_BATCHES)
        calls: dict[tuple[str, str], list[str]] = {}
        total = 0
        for entry in entries:
            group, topic, handles = self._batch(entry)
            total += len(handles)
            if total > _MAX_ACKS:
                raise InvalidParameter(f"a batch acks at most {_MAX_ACKS} messages; send several")
            calls.setdefault((group, topic), []).extend(handles)
        if not total:
            raise RequestError(codes.NO_MESSAGE, "the batch names no message")
        waiting = len(calls)
        failed = False

        def done(statuses: Sequence[AckStatus]) -> None:
            nonlocal waiting, failed
            waiting -= 1
            failed |= AckStatus.FAILED in statuses
            if not waiting:
                _respond_status(connection, request, AckStatus.FAILED if failed else AckStatus.OK)

        for (group, topic), handles in calls.items():
            self.popper.ack(group, topic, handles, done)

    def _batch(self, entry: dict[str, Any]) -> tuple[str, str, list[str]]:
        """(group, asked topic, handles) of one entry; field names are short or long."""

        def text(short: str, long: str) -> str:
            return bodies.text(entry, short) or bodies.text(entry, long)

        def number(short: str, long: str) -> int:
            return bodies.integer(entry, short if short in entry else long)

        group = text("c", "consumerGroup")
        flag_text = text("r", "retry") or "0"
        if flag_text not in ("0", "1", "2"):
            raise InvalidParameter("the retry flag of an ack is 0, 1 or 2")
        topic = text("t", "topic")
        if flag_text != "0":
            topic = base_topic(group, topic)
        try:
            bits = base64.b64decode(text("b", "bitSet"), validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidParameter(f"the bit set of an ack is not base64: {error}") from error
        if len(bits) > _MAX_BITS_BYTES:
            raise InvalidParameter(f"the bit set of an ack has at most {_MAX_BITS_BYTES} bytes")
        start = number("so", "startOffset")
        handle = ReceiptHandle(
            start,
            number("pt", "popTime"),
            number("it", "invisibleTime"),
            number("rq", "reviveQueueId"),
            int(flag_text),
            self.broker_name,
            number("q", "queueId"),
            start,
        )
        mask = int.from_bytes(bits, "little")
        if mask.bit_count() > MAX_BATCH:
            raise InvalidParameter(f"one pop gives at most {MAX_BATCH} messages of a queue; split the ack")
        handles = [
            handle._replace(queue_offset=start + bit).encode() for bit in range(mask.bit_length()) if mask >> bit & 1
        ]
        return group, topic, handles

    # ---- change the invisible time

    def change_invisible_time(self, connection: RemotingConnection, request: Command) -> None:
        """Code 200053."""
        group, topic, handle = self._named(request)
        invisible_ms = fields.integer(request.ext, "invisibleTime")
        check_changed_time(group, invisible_ms, self.metadata, self.popper.settings)

        def done(outcome: InvisibleTimeOutcome) -> None:
            if outcome.status != AckStatus.OK:
                self._respond_one(connection, request, outcome.status)
                return
            ext = {
                "popTime": str(outcome.pop_time_ms),
                "invisibleTime": str(outcome.invisible_time_ms),
                "reviveQid": str(outcome.revive_queue_id),
            }
            connection.respond(request, ext=ext)

        self.popper.change_invisible_time(group, topic, handle.encode(), invisible_ms, done)

    # ---- looking

    def peek(self, connection: RemotingConnection, request: Command) -> None:
        """Code 200052: the stored records, without handles: nothing is taken, so there is nothing to ack."""
        asked = self._asked(request, fields.integer(request.ext, "maxMsgNums", high=fields.MAX_INT))
        records, rest_count = self.popper.looking.peek(asked)
        header = pop_header(PopOutcome(PopStatus.NOTHING, rest_count=rest_count), ordered=False)
        if records:
            connection.respond(request, codes.SUCCESS, header, b"".join(records))
        else:
            connection.respond(request, codes.PULL_NOT_FOUND, header)

    def notify(self, connection: RemotingConnection, request: Command) -> None:
        """Code 200054."""
        deadline_ms = self._deadline_ms(connection, request.ext) or 0
        tickets: list[int] = []

        def done(notice: Notice) -> None:
            self._answered(connection, tickets)
            if notice.error is not None:
                connection.respond_error(request, notice.error)
                return
            found, full = (str(each).lower() for each in (notice.has_messages, notice.is_full))
            connection.respond(request, ext={"hasMsg": found, "pollingFull": full})

        asked = self._asked(request, 1, deadline_ms=deadline_ms, client_id=connection.peer)
        self._hold(connection, request, self.popper.looking.notify(asked, done), tickets)

    def polling_info(self, connection: RemotingConnection, request: Command) -> None:
        """Code 200055: how many pops of a group wait for a queue (-1: for any)."""
        count = self.popper.polling_count(self._asked(request, 1))
        connection.respond(request, ext={"pollingNum": str(count)})

    # ---- waiting

    def _deadline_ms(self, connection: RemotingConnection, ext: Mapping[str, str]) -> int | None:
        """Until when a request may be held, now for not at all; None when it came too late to be answered in time."""
        now_ms = int(self.scheduler.time() * 1000)
        poll_ms = fields.integer(ext, "pollTime", low=-_MAX_POLL_MS, high=fields.MAX_LONG)
        born_ms = fields.integer(ext, "bornTime", 0)
        age_ms = self.ages.setdefault(connection, RequestAges()).age_ms(born_ms, now_ms) if born_ms else 0
        if age_ms - poll_ms > _TOO_OLD_MS:
            return None
        return now_ms + (min(poll_ms - age_ms - _MARGIN_MS, _MAX_POLL_MS) if poll_ms > 0 else 0)

    def _hold(
        self, connection: RemotingConnection, request: Command, waiting: Parked | None, tickets: list[int]
    ) -> None:
        """Keep a request that waits until it is answered, or its connection closes."""
        if waiting is not None:
            request.drop_content()
            tickets.append(self.parked.add(connection, waiting))

    def _answered(self, connection: RemotingConnection, tickets: list[int]) -> None:
        if tickets:
            self.parked.forget(connection, tickets.pop())

    # ---- inside

    def _group(self, ext: Mapping[str, str]) -> tuple[str, bool]:
        """The group, and whether it gets messages in order, by the request or by its own setting."""
        group = fields.text(ext, "consumerGroup")
        config = self.metadata.group(group)
        return group, fields.flag(ext, "order") or (config is not None and config.fifo)

    def _asked(self, request: Command, count: int, *, deadline_ms: int = 0, client_id: str = "") -> PopRequest:
        ext = request.ext
        group, is_ordered = self._group(ext)
        return PopRequest(
            group=group,
            topic=fields.text(ext, "topic"),
            queue_id=fields.integer(ext, "queueId", low=-1, high=fields.MAX_INT),
            max_count=count,
            invisible_time_ms=0,
            deadline_ms=deadline_ms,
            init_mode=_init_mode(ext, 1),
            expression_type=ext.get("expType") or "TAG",
            expression=ext.get("exp") or "*",
            fifo=is_ordered,
            attempt_id=(ext.get("attemptId") or "")[:MAX_ATTEMPT_ID],
            client_id=client_id,
        )

    def _respond_one(self, connection: RemotingConnection, request: Command, status: AckStatus) -> None:
        """The outcome for one message; a place where no message is has its own code."""
        if status == AckStatus.INVALID_HANDLE:
            topic, queue_id = request.ext["topic"], int(request.ext["queueId"])
            low, high = self.ranges.min_offset(topic, queue_id), self.ranges.max_offset(topic, queue_id)
            if not low <= int(request.ext["offset"]) < high:
                remark = f"queue {queue_id} of {topic} has messages from {low} on, below {high}"
                connection.respond(request, codes.NO_MESSAGE, remark=remark)
                return
        _respond_status(connection, request, status)

    def _named(self, request: Command) -> tuple[str, str, ReceiptHandle]:
        """(group, asked topic, handle) of a request that names one message. The request names the topic that holds it."""
        ext = request.ext
        group = fields.text(ext, "consumerGroup")
        stored = fields.text(ext, "topic")
        queue_id = fields.integer(ext, "queueId", high=fields.MAX_INT)
        offset = fields.integer(ext, "offset")
        handle = decode_handle(fields.text(ext, "extraInfo"))
        if handle is None:
            raise RequestError(codes.MESSAGE_ILLEGAL, "extraInfo is no receipt handle")
        if self.metadata.topic(stored) is None:
            raise RequestError(codes.TOPIC_NOT_EXIST, f"topic {stored} does not exist")
        if queue_id != handle.queue_id:  # which may be one that is not read any more
            raise RequestError(codes.MESSAGE_ILLEGAL, f"queue {queue_id} of {stored} is not the one of the handle")
        if handle.queue_offset != offset:
            handle = handle._replace(queue_offset=offset, proof="")
        topic = base_topic(group, stored) if 0 < handle.retry_flag <= FLAG_RETRY_V2 else stored
        return group, topic, handle


def _init_mode(ext: Mapping[str, str], default: int) -> InitMode:
    return InitMode.MIN if fields.integer(ext, "initMode", default, high=1) == 0 else InitMode.MAX


def _respond_status(connection: RemotingConnection, request: Command, status: AckStatus) -> None:
    if status == AckStatus.OK:
        connection.respond(request)
    elif status == AckStatus.INVALID_HANDLE:
        connection.respond(
            request, codes.MESSAGE_ILLEGAL, remark="the receipt handle is expired, replaced, or was never given out"
        )
    else:
        connection.respond(request, codes.SYSTEM_ERROR, remark="the ack could not be stored; send it again")
