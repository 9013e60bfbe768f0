"""SendMessage: all calls of one read event become one append.

A request is stored whole or refused whole: its messages are checked before any of them is given to the log. What went wrong is
said in the overall status too, because some clients look at nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from brokerd.metadata.configs import Metadata
from brokerd.proxy.calls import Call, Handler
from brokerd.proxy.mapping import check_same_topic, to_draft
from brokerd.proxy.methods.base import attempt, parse
from brokerd.proxy.protobuf import service
from brokerd.proxy.status import OK, Code, Refusal, encode_length, refusal_of, status_field
from brokerd.sending.outcomes import Sender, SendOutcome
from brokerd.store.draft import Draft
from brokerd.store.put_status import PutStatus

MAX_MESSAGES: Final = 1024

_CODES: Final = {
    PutStatus.PUT_OK: Code.OK,
    PutStatus.FLUSH_DISK_TIMEOUT: Code.MASTER_PERSISTENCE_TIMEOUT,
    PutStatus.FLUSH_SLAVE_TIMEOUT: Code.SLAVE_PERSISTENCE_TIMEOUT,
    PutStatus.SERVICE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
    PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH: Code.HA_NOT_AVAILABLE,
    PutStatus.MESSAGE_ILLEGAL: Code.BAD_REQUEST,
}
_TEXTS: Final = {
    PutStatus.FLUSH_DISK_TIMEOUT: "the message is stored, but it was not on disk in time",
    PutStatus.FLUSH_SLAVE_TIMEOUT: "the message is stored here, but not yet on every replica that must have it",
    PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH: "too few replicas are in sync; nothing was stored",
}


def send_message(sender: Sender, metadata: Metadata, wall_ms: Callable[[], int]) -> Handler:
    def handler(calls: Sequence[Call]) -> None:
        now_ms = wall_ms()
        drafts: list[Draft] = []
        accepted: list[tuple[Call, list[str]]] = []
        for call in calls:
            request = parse(call, service.SendMessageRequest, refuse)
            if request is not None:
                attempt(call, request, refuse, accept, call, request, now_ms, drafts, accepted)
        if drafts:
            sender.send(drafts, lambda outcomes: _answer(accepted, outcomes))

    def accept(
        call: Call, request: Any, now_ms: int, drafts: list[Draft], accepted: list[tuple[Call, list[str]]]
    ) -> None:
        messages = request.messages
        if len(messages) > MAX_MESSAGES:
            raise Refusal(Code.BAD_REQUEST, f"{len(messages)} messages in one request; at most {MAX_MESSAGES}")
        topic = check_same_topic(messages)
        config = metadata.topic(topic)
        born_host = call.peer.packed_host
        own = [to_draft(message, topic, config, born_host, now_ms) for message in messages]
        drafts += own
        accepted.append((call, [message.system_properties.message_id for message in messages]))

    return handler


def _answer(accepted: Sequence[tuple[Call, list[str]]], outcomes: Sequence[SendOutcome]) -> None:
    start = 0
    for call, message_ids in accepted:
        end = start + len(message_ids)
        call.answer(encode_response(message_ids, outcomes[start:end]))
        start = end


def encode_response(message_ids: Sequence[str], outcomes: Sequence[SendOutcome]) -> bytes:
    """SendMessageResponse{status 1, entries 2 of {status 1, message_id 2, offset 4}}."""
    entries = []
    statuses: set[bytes] = set()
    for message_id, outcome in zip(message_ids, outcomes, strict=True):
        status = OK if outcome.status is PutStatus.PUT_OK else _status_of(outcome)
        statuses.add(status)
        identity = message_id.encode()
        entry = status + b"\x12" + encode_length(len(identity)) + identity
        if outcome.queue_offset > 0:
            entry += b"\x20" + encode_length(outcome.queue_offset)
        entries.append(b"\x12" + encode_length(len(entry)) + entry)
    overall = statuses.pop() if len(statuses) == 1 else status_field(Code.MULTIPLE_RESULTS, "see the entries")
    return overall + b"".join(entries)


def _status_of(outcome: SendOutcome) -> bytes:
    # Too few replicas has no code of its own in the other protocol: its refusal would look like a fault of ours.
    if outcome.error is not None and outcome.status is not PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH:
        return refusal_of(outcome.error).status
    return status_field(_CODES[outcome.status], _TEXTS.get(outcome.status, outcome.status.name))


def refuse(call: Call, request: Any, refusal: Refusal) -> None:
    """Refuse the whole request: overall and once per message, since some clients count the entries."""
    status = refusal.status
    entry = b"\x12" + encode_length(len(status)) + status
    count = 0 if request is None else min(len(request.messages), MAX_MESSAGES)
    call.answer(status + entry * count)
