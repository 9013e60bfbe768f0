"""EndTransaction: what a producer decided, by itself or because it was asked.

The id says where the half message is and proves that the producer was told of it; everything else in the request must fit that
message. What does not is INVALID_TRANSACTION_ID, and so is what was ended the other way: asking again is in vain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from brokerd.proxy.calls import Call, Handler
from brokerd.proxy.methods.base import each
from brokerd.proxy.names import topic_name
from brokerd.proxy.protobuf import definition, service
from brokerd.proxy.status import OK, Code, Refusal, refusal_of
from brokerd.transactions.decide import EndTransaction, Outcome, WrongTransaction
from brokerd.transactions.ids import parse_transaction_id
from brokerd.transactions.service import TransactionService
from remoting.errors import RequestError
from remoting.record.codec import Record

_OUTCOMES: Final = {
    definition.TransactionResolution.Value("COMMIT"): Outcome.COMMIT,
    definition.TransactionResolution.Value("ROLLBACK"): Outcome.ROLLBACK,
}
_SERVER_CHECK: Final = definition.TransactionSource.Value("SOURCE_SERVER_CHECK")


def end_transaction(
    transactions: TransactionService, broker_name: str, may_end: Callable[[Call], Callable[[Record], None]]
) -> Handler:
    """`broker_name` is that of the broker group, which ids name; `may_end`: see `Services`."""

    def handle(call: Call, request: Any) -> None:
        topic = topic_name(request.topic)
        identity = parse_transaction_id(request.transaction_id)
        if identity is None:
            raise Refusal(
                Code.INVALID_TRANSACTION_ID,
                "this is no transaction id of ours" if request.transaction_id else "the transaction id is missing",
            )
        if identity.broker_name != broker_name:
            text = f"the transaction is one of {identity.broker_name[:64]}; this is {broker_name}"
            raise Refusal(Code.INVALID_TRANSACTION_ID, text)
        decision = EndTransaction(
            topic,
            identity.queue_offset,
            identity.physical_offset,
            _OUTCOMES.get(request.resolution, Outcome.UNKNOWN),
            request.source == _SERVER_CHECK,
            identity.secret,
            request.message_id,
        )
        transactions.end(
            decision, lambda error: call.answer(OK if error is None else _refusal(error).status), may_end(call)
        )

    return each(service.EndTransactionRequest, handle)


def _refusal(error: RequestError) -> Refusal:
    if isinstance(error, WrongTransaction):
        return Refusal(Code.INVALID_TRANSACTION_ID, error.message)
    return refusal_of(error)
