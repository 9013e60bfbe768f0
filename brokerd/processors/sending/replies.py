"""Answers to requests that were sent as messages: codes 324 and 325, passed on to who asked with code 326.

The requester is a producer, found by its client id among the connections of this broker. Whoever answers learns whether the
requester got it. The answer is stored as well, unless a setting says otherwise, so that it can be looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from brokerd.members.registry import ClientRegistry
from brokerd.processors.sending.requests import drafts_of_request
from brokerd.sending.outcomes import SendOutcome
from brokerd.sending.reading import short_names
from brokerd.sending.sender import MessageSender
from brokerd.store.draft import Draft
from brokerd.store.put_status import PutStatus
from remoting import codes
from remoting.errors import LogboomError, RequestError
from remoting.frame import Command
from remoting.record.hosts import offset_message_id, unpack_host
from remoting.record.properties import decode_properties, encode_properties
from remoting.transport.connection import RemotingConnection

PUSH_TIMEOUT_MS: Final = 10_000
MAX_PUSHES: Final = 10_000
MAX_PUSHED_BYTES: Final = 64 << 20

_REQUESTER: Final = "REPLY_TO_CLIENT"
# Put statuses of messages that are stored
_STORED: Final = (PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT, PutStatus.FLUSH_SLAVE_TIMEOUT)


@dataclass(slots=True, eq=False)
class ReplyProcessor:
    """The handlers. `store_host` is this broker's packed address."""

    sender: MessageSender
    requesters: ClientRegistry
    store_host: bytes
    wall_ms: Callable[[], int]
    stores: bool = True
    pushes: int = 0  # that were not answered yet
    pushed_bytes: int = 0  # of these

    def handle_long_names(self, connection: RemotingConnection, request: Command) -> None:
        """Code 324."""
        request.ext = short_names(request.ext)
        self.handle(connection, request)

    def handle(self, connection: RemotingConnection, request: Command) -> None:
        """Code 325. Nothing is passed on that could not be stored."""
        drafts = drafts_of_request(request, connection.packed_peer)
        if request.ext.get("m") == "true":
            raise RequestError(codes.MESSAGE_ILLEGAL, "an answer is one message; send those of a batch one by one")
        [outcome], ready = self.sender.prepare(drafts)
        if outcome.error is not None:
            connection.respond_error(request, outcome.error)
            return
        draft = drafts[0]._replace(queue_id=outcome.queue_id)
        size = len(ready[0].draft.body)
        if self.pushes >= MAX_PUSHES or self.pushed_bytes + size > MAX_PUSHED_BYTES:
            raise RequestError(codes.SYSTEM_BUSY, "too many answers wait for their requesters; try again")
        self.pushes += 1
        self.pushed_bytes += size

        def pushed(failure: str | None) -> None:
            self.pushes -= 1
            self.pushed_bytes -= size
            self._finish(connection, request, draft, failure)

        self._push(request, draft, pushed)

    # ---- inside

    def _push(self, request: Command, draft: Draft, done: Callable[[str | None], None]) -> None:
        """Pass the answer on; `done` gets the reason when the requester did not take it."""
        properties = decode_properties(draft.properties)
        client_id = properties.get(_REQUESTER, "")
        if not client_id:
            done(f"the answer does not say who asked: its property {_REQUESTER} is missing")
            return
        requester = self.requesters.producer_connection(client_id)
        if requester is None:
            done(f"push reply message fail, channel of <{client_id}> not found: the requester is not connected here")
            return
        properties["PUSH_REPLY_TIME"] = str(self.wall_ms())

        def answered(result: Command | LogboomError) -> None:
            if isinstance(result, LogboomError):
                done(f"push reply message to {client_id} failed: {result}")
            elif result.code != codes.SUCCESS:
                done(f"push reply message to {client_id} failed: the requester answered {result.code}, {result.remark}")
            else:
                done(None)

        ext = self._push_fields(request.ext, draft, encode_properties(properties).decode("utf-8", "replace"))
        requester.request(codes.PUSH_REPLY_MESSAGE_TO_CLIENT, ext, draft.body, PUSH_TIMEOUT_MS, answered)

    def _push_fields(self, ext: Mapping[str, str], draft: Draft, properties: str) -> dict[str, str]:
        return {
            "producerGroup": ext.get("a", ""),
            "topic": draft.topic,
            "defaultTopic": ext.get("c", ""),
            "defaultTopicQueueNums": ext.get("d", "0"),
            "queueId": str(draft.queue_id),
            "sysFlag": str(draft.sys_flag),
            "bornTimestamp": str(draft.born_timestamp_ms),
            "flag": str(draft.flag),
            "properties": properties,
            "reconsumeTimes": str(draft.reconsume_times),
            "unitMode": ext.get("k", "false"),
            "bornHost": _host_text(draft.born_host),
            "storeHost": _host_text(self.store_host),
            "storeTimestamp": str(self.wall_ms()),
        }

    def _finish(self, connection: RemotingConnection, request: Command, draft: Draft, failure: str | None) -> None:
        """Store the answer and tell who gave it. What becomes of the stored copy changes nothing of that."""
        answer = partial(self._answer, connection, request, draft.queue_id, failure)
        if self.stores:
            self.sender.send([draft], answer)
        else:
            answer(())

    def _answer(
        self,
        connection: RemotingConnection,
        request: Command,
        queue_id: int,
        failure: str | None,
        stored: Sequence[SendOutcome],
    ) -> None:
        if failure is not None:
            connection.respond(request, codes.SYSTEM_ERROR, remark=failure)
            return
        ext = {"msgId": "0", "queueId": str(queue_id), "queueOffset": "0"}
        for outcome in stored:
            if outcome.error is None and outcome.status in _STORED:
                ext["msgId"] = offset_message_id(self.store_host, outcome.physical_offset)
                ext["queueOffset"] = str(outcome.queue_offset)
        connection.respond(request, ext=ext | {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"})


def _host_text(packed: bytes) -> str:
    host, port = unpack_host(packed)
    return f"{host}:{port}"
