"""The general path of send requests: every rule, one request at a time.

What it stores goes to the same run as what the kernel lays out, unless something else may have to be appended before it: a topic
that is made, what timers need.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from itertools import starmap
from typing import Final, NamedTuple, Protocol

import orjson

from brokerd.processors.sending.requests import drafts_of_request, limit_of
from brokerd.sending.boundary import ANSWER_OK, Taken
from brokerd.sending.outcomes import SendOutcome
from brokerd.sending.rules import unique_key, waits_for_store
from brokerd.sending.sender import MessageSender, Ready
from brokerd.store.draft import Draft
from brokerd.store.put_status import PutStatus
from brokerd.store.run import Run
from remoting import codes
from remoting.errors import LogboomError, RequestError
from remoting.frame import Command
from remoting.names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from remoting.transport.connection import RemotingConnection

_RESPONSE_CODES: Final = {
    PutStatus.PUT_OK: codes.SUCCESS,
    PutStatus.FLUSH_DISK_TIMEOUT: codes.FLUSH_DISK_TIMEOUT,
    PutStatus.FLUSH_SLAVE_TIMEOUT: codes.FLUSH_SLAVE_TIMEOUT,
    PutStatus.SERVICE_NOT_AVAILABLE: codes.SERVICE_NOT_AVAILABLE,
    PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH: codes.SYSTEM_ERROR,
    PutStatus.MESSAGE_ILLEGAL: codes.MESSAGE_ILLEGAL,
}


_TIMERS: Final = "TIMER_"  # which all begin with that is about moments
_HALF: Final = "TRAN_MSG"
_PREFIX: Final = struct.Struct(">iI")


class Prepared(NamedTuple):
    """The messages of a request as they are stored, and the queue that they are for."""

    drafts: Sequence[Draft]
    queue_id: int


class MakeTopic(Protocol):
    """Makes a topic after a template; returns why not."""

    def __call__(self, name: str, template: str, queues: int, *, is_unit: bool = False) -> RequestError | None: ...


class GeneralSends:
    """Sends requests. `store_host` is this broker's packed address, which message ids begin with."""

    def __init__(
        self,
        sender: MessageSender,
        store_host: bytes,
        sent_again: Callable[[Draft, int | None, int], Draft],
        make_topic: MakeTopic | None = None,
        when_known: Callable[[Callable[[], None]], None] = lambda done: done(),
    ) -> None:
        """`sent_again(draft, limit, client version)` says where a message goes that is sent to a retry topic. `make_topic` makes
        topics that somebody sends to; without it they are refused. `when_known` calls back when name servers know the topics."""
        self._sender = sender
        self._id_prefix = store_host.hex().upper()
        self._sent_again = sent_again
        self._make_topic = make_topic
        self._when_known = when_known

    def is_apart(self, request: Command) -> bool:
        """Whether a request with short field names is for `send`, when all before it is in the log, and not for `prepare`."""
        name, properties = request.ext.get("b", ""), request.ext.get("i", "")
        if self._sender.topic(name) is None or _TIMERS in properties or _HALF in properties:
            return True
        if name.startswith(RETRY_PREFIX):
            return self._sender.topic(DEAD_LETTER_PREFIX + name.removeprefix(RETRY_PREFIX)) is None
        return request.ext.get("m") == "true" and _TIMERS.encode() in bytes(request.body)

    def prepare(self, connection: RemotingConnection, request: Command) -> Prepared | None:
        """The messages of a request; None when it was refused, which is answered."""
        drafts = self._drafts(connection, request)
        if not drafts:
            return None
        outcomes, ready = self._sender.prepare(self._together(drafts))
        if len(ready) < len(drafts):  # all of a batch or nothing
            self._answer(connection, request, outcomes)
            return None
        return Prepared([each.draft for each in ready], outcomes[0].queue_id)

    def lay_out(self, run: Run, request: Command, prepared: Prepared) -> Taken | int:
        """Lay out prepared messages; their size when the run has no room for all."""
        drafts = prepared.drafts
        placed = self._sender.lay_out(run, drafts)
        if isinstance(placed, int):
            return placed
        taken = Taken()
        if not request.is_oneway:
            key = unique_key(drafts[0]) if request.ext.get("m") != "true" else ""
            positions = [each.physical_offset for each in placed]
            fields = self._fields(prepared.queue_id, positions, placed[0].queue_offset, key)
            answers, opaques = [_encoded(request.opaque, fields)], [request.opaque]
            if any(waits_for_store(draft.properties) for draft in drafts):
                taken.answers, taken.opaques = answers, opaques
            else:
                taken.add_early(answers, opaques)
        return taken

    def send(self, connection: RemotingConnection, request: Command) -> None:
        """Append the messages of a request with short field names, and answer when they are acknowledged."""
        drafts = self._drafts(connection, request)
        if not drafts:
            return
        is_new = self._sender.topic(request.ext["b"]) is None
        refusal = self._make_missing_topic(request.ext)
        if refusal is not None:
            connection.respond_error(request, refusal)
            return
        outcomes, ready = self._sender.prepare(self._together(drafts))
        if len(ready) < len(drafts):  # all of a batch or nothing
            self._answer(connection, request, outcomes)
        else:
            self._append(connection, request, outcomes, ready, is_new=is_new)

    def append(self, connection: RemotingConnection, request: Command, prepared: Prepared) -> None:
        """Append prepared messages for which no run has room, in as many files as they take, and answer as `send`."""
        outcomes = [SendOutcome(PutStatus.PUT_OK, prepared.queue_id)] * len(prepared.drafts)
        ready = list(starmap(Ready, enumerate(prepared.drafts)))
        self._append(connection, request, outcomes, ready, is_new=False)

    def _append(
        self,
        connection: RemotingConnection,
        request: Command,
        outcomes: list[SendOutcome],
        ready: Sequence[Ready],
        *,
        is_new: bool,
    ) -> None:
        key = unique_key(ready[0].draft) if request.ext.get("m") != "true" else ""

        def answer(final: Sequence[SendOutcome]) -> None:
            if is_new:
                self._when_known(lambda: self._answer(connection, request, final, key))
            else:
                self._answer(connection, request, final, key)

        self._sender.append(outcomes, ready, answer)

    def _drafts(self, connection: RemotingConnection, request: Command) -> Sequence[Draft]:
        """The messages of a request; none when it was refused, which is answered."""
        try:
            drafts = drafts_of_request(request, connection.packed_peer)
            if drafts[0].topic.startswith(RETRY_PREFIX):
                drafts = [self._sent_again(drafts[0], limit_of(request.ext, "l"), request.version)]
        except LogboomError as error:
            connection.respond_error(request, error)
            return ()
        return drafts

    def _together(self, drafts: Sequence[Draft]) -> Sequence[Draft]:
        """A batch stays together, in whichever queue."""
        if len(drafts) == 1 or drafts[0].queue_id >= 0:
            return drafts
        topic = self._sender.topic(drafts[0].topic)
        queue_id = self._sender.turn_of(drafts[0].topic)(max(1, topic.write_queue_nums) if topic else 1)
        return [draft._replace(queue_id=queue_id) for draft in drafts]

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
        first = outcomes[0]
        positions = [outcome.physical_offset for outcome in outcomes]
        ext = self._fields(first.queue_id, positions, first.queue_offset, key)
        if key and first.recall_handle:
            ext["recallHandle"] = first.recall_handle
        connection.respond(request, _RESPONSE_CODES[first.status], ext)

    def _fields(self, queue_id: int, positions: Sequence[int], queue_offset: int, key: str) -> dict[str, str]:
        """What an answer says of messages that are stored, or will be."""
        prefix = self._id_prefix
        ext = {
            "msgId": ",".join(f"{prefix}{position:016X}" for position in positions),
            "queueId": str(queue_id),
            "queueOffset": str(queue_offset),
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        }
        return {**ext, "transactionId": key} if key else ext


def _encoded(opaque: int, fields: Mapping[str, str]) -> bytes:
    """An answer as the kernels write them."""
    rest = {
        "extFields": fields,
        "flag": codes.FLAG_RESPONSE,
        "language": "JAVA",
        "opaque": opaque,
        "version": codes.VERSION,
    }
    header = ANSWER_OK + orjson.dumps(rest)[1:]
    return _PREFIX.pack(4 + len(header), len(header)) + header
