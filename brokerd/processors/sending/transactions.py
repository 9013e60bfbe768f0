"""Decisions about transactions: codes 37 (a producer ends one) and 323 (somebody has one checked anew)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from brokerd.processors import fields
from brokerd.transactions.decide import EndTransaction, Outcome
from brokerd.transactions.service import TransactionService
from remoting.errors import InvalidParameter, RequestError
from remoting.frame import Command
from remoting.record.hosts import decode_offset_message_id
from remoting.transport.connection import RemotingConnection

Done = Callable[[RequestError | None], None]

_OUTCOMES: Final = {int(outcome) for outcome in Outcome}


class TransactionProcessor:
    """The handlers. Clients send code 37 one-way, but whoever wants an answer gets one, when the decision is acknowledged."""

    def __init__(self, transactions: TransactionService) -> None:
        self._transactions = transactions

    def end(self, connection: RemotingConnection, request: Command) -> None:
        """Code 37."""
        ext = request.ext
        number = fields.integer(ext, "commitOrRollback", low=-fields.MAX_INT)
        if number not in _OUTCOMES:
            raise InvalidParameter(
                f"commitOrRollback must be {Outcome.COMMIT} (commit), {Outcome.ROLLBACK} (rollback) or {Outcome.UNKNOWN} "
                f"(undecided), not {number}"
            )
        decision = EndTransaction(
            fields.text(ext, "producerGroup"),
            fields.integer(ext, "tranStateTableOffset"),
            fields.integer(ext, "commitLogOffset"),
            Outcome(number),
            fields.flag(ext, "fromTransactionCheck"),
        )
        self._transactions.end(decision, lambda error: _answer(connection, request, error))

    def resume(self, connection: RemotingConnection, request: Command) -> None:
        """Code 323."""
        _, _, physical_offset = decode_offset_message_id(fields.text(request.ext, "msgId"))
        self._transactions.resume(physical_offset, lambda error: _answer(connection, request, error))


def _answer(connection: RemotingConnection, request: Command, error: RequestError | None) -> None:
    if error is None:
        connection.respond(request)
    else:
        connection.respond_error(request, error)
