"""SendMessage: all calls of one read event become one append.

A request is stored whole or refused whole: its messages are checked before any of them is given to the log. What went wrong is
said in the overall status too, because some clients look at nothing else. A message that begins a transaction is the only one of
its request, and is answered with the id that ends the transaction.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from brokerd.metadata.configs import Metadata
from brokerd.proxy.calls import Call, Handler
from brokerd.proxy.mapping import TRANSACTION, check_same_topic, to_draft
from brokerd.proxy.methods.base import attempt, parse
from brokerd.proxy.methods.placing import PLACED, Anywhere, Placing, Unplaced, place
from brokerd.proxy.methods.quick_sends import MAX_MESSAGES, Quick, QuickSends
from brokerd.proxy.protobuf import service
from brokerd.proxy.status import OK, Code, Refusal, encode_length, refusal_of, status_field
from brokerd.sending.outcomes import Sender, SendOutcome
from brokerd.store.draft import Draft
from brokerd.store.put_status import PutStatus
from brokerd.transactions.ids import SECRET_BYTES, TransactionId
from remoting.facts.placements import MESSAGE_TYPES

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

_ANYWHERE: Final = Anywhere()


class _Accepted(NamedTuple):
    """A call, the ids of its messages, and the secret of the transaction that it begins, if it does."""

    call: Call
    message_ids: list[str]
    secret: str


def draw_secret() -> str:
    """What the id of one transaction proves; nobody can guess it."""
    return secrets.token_hex(SECRET_BYTES)


def send_message(
    sender: Sender,
    metadata: Metadata,
    broker_name: str,
    max_ahead_ms: Callable[[], int],
    wall_ms: Callable[[], int],
    new_secret: Callable[[], str] = draw_secret,
    quick: Quick | None = None,
    placing: Placing = _ANYWHERE,
) -> Handler:
    """`max_ahead_ms()` says how far ahead of now a message may be delivered; with `quick` what is ordinary takes its way."""
    ordinary = QuickSends(quick, metadata, broker_name, placing, new_secret, _encode_one) if quick is not None else None

    def handler(calls: Sequence[Call]) -> None:
        now_ms = wall_ms()
        if ordinary is not None and not (calls := ordinary.send(calls, now_ms)):
            return
        drafts: list[Draft] = []
        accepted: list[_Accepted] = []
        for call in calls:
            request = parse(call, service.SendMessageRequest, refuse)
            if request is not None:
                attempt(call, request, refuse, accept, call, request, now_ms, drafts, accepted)
        if drafts:
            sender.send(drafts, lambda outcomes: _answer(accepted, outcomes, broker_name))

    def accept(call: Call, request: Any, now_ms: int, drafts: list[Draft], accepted: list[_Accepted]) -> None:
        messages = request.messages
        if len(messages) > MAX_MESSAGES:
            raise Refusal(Code.BAD_REQUEST, f"{len(messages)} messages in one request; at most {MAX_MESSAGES}")
        topic = check_same_topic(messages)
        config = metadata.topic(topic)
        born_host = call.peer.packed_host
        secret = ""
        if any(message.system_properties.message_type == TRANSACTION for message in messages):
            if len(messages) > 1:
                raise Refusal(
                    Code.BAD_REQUEST, "a message that begins a transaction must be the only one of its request"
                )
            secret = new_secret()
        ahead_ms = max_ahead_ms()
        own = [to_draft(message, topic, config, born_host, now_ms, ahead_ms, secret) for message in messages]
        if config is not None and config.message_type in MESSAGE_TYPES:
            where = place(placing, broker_name, messages, own, config)
            if where is not None:
                groups = frozenset(message.system_properties.message_group for message in messages) - {""}
                placing.elsewhere(Unplaced(call, topic, groups, where, broker_name, handler, PLACED, refuse))
                return
        drafts += own
        accepted.append(_Accepted(call, [message.system_properties.message_id for message in messages], secret))

    return handler


def _answer(accepted: Sequence[_Accepted], outcomes: Sequence[SendOutcome], broker_name: str) -> None:
    start = 0
    for call, message_ids, secret in accepted:
        end = start + len(message_ids)
        transaction_id = ""
        if secret and outcomes[start].physical_offset >= 0:
            half = outcomes[start]
            transaction_id = str(TransactionId(half.physical_offset, half.queue_offset, secret, broker_name))
        call.answer(encode_response(message_ids, outcomes[start:end], transaction_id))
        start = end


def _encode_one(message_id: str, outcome: SendOutcome, transaction_id: str) -> bytes:
    return encode_response([message_id], [outcome], transaction_id)


def encode_response(message_ids: Sequence[str], outcomes: Sequence[SendOutcome], transaction_id: str = "") -> bytes:
    """SendMessageResponse{status 1, entries 2 of {status 1, message_id 2, transaction_id 3, offset 4,
    recall_handle 5}}."""
    entries = []
    statuses: set[bytes] = set()
    for message_id, outcome in zip(message_ids, outcomes, strict=True):
        status = OK if outcome.status is PutStatus.PUT_OK else _status_of(outcome)
        statuses.add(status)
        identity = message_id.encode()
        entry = status + b"\x12" + encode_length(len(identity)) + identity
        if transaction_id:
            identity = transaction_id.encode()
            entry += b"\x1a" + encode_length(len(identity)) + identity
        if outcome.queue_offset > 0:
            entry += b"\x20" + encode_length(outcome.queue_offset)
        if outcome.recall_handle:
            identity = outcome.recall_handle.encode()
            entry += b"\x2a" + encode_length(len(identity)) + identity
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
