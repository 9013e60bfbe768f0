"""The general path of send requests: every rule, one request at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from brokerd.processors.sending.requests import drafts_of_request, limit_of
from brokerd.sending.outcomes import SendOutcome
from brokerd.sending.rules import unique_key
from brokerd.sending.sender import MessageSender
from brokerd.store.draft import Draft
from brokerd.store.put_status import PutStatus
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

    def send(self, connection: RemotingConnection, request: Command) -> None:
        """Append the messages of a request with short field names, and answer when they are acknowledged."""
        try:
            drafts = drafts_of_request(request, connection.packed_peer)
            if drafts[0].topic.startswith(RETRY_PREFIX):
                drafts = [self._sent_again(drafts[0], limit_of(request.ext, "l"), request.version)]
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
            key = unique_key(ready[0][1]) if request.ext.get("m") != "true" else ""

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
            if outcomes[0].recall_handle:
                ext["recallHandle"] = outcomes[0].recall_handle
        connection.respond(request, _RESPONSE_CODES[outcomes[0].status], ext)
