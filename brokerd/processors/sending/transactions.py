"""Decisions about transactions: codes 37 (a producer ends one) and 323 (somebody has one checked anew)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from brokerd.processors import fields
from brokerd.processors.answers import when_done
from brokerd.transactions.decide import EndTransaction, Outcome
from brokerd.transactions.service import TransactionService
from remoting.errors import InvalidParameter
from remoting.frame import Command
from remoting.record.hosts import decode_offset_message_id
from remoting.transport.connection import RemotingConnection

_OUTCOMES: Final = {int(outcome) for outcome in Outcome}


@dataclass(frozen=True, slots=True)
class TransactionProcessor:
    """The handlers. Clients send code 37 one-way, but whoever wants an answer gets one, when the decision is acknowledged."""

    transactions: TransactionService

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
        self.transactions.end(decision, when_done(connection, request))

    def resume(self, connection: RemotingConnection, request: Command) -> None:
        """Code 323."""
        _, _, physical_offset = decode_offset_message_id(fields.text(request.ext, "msgId"))
        self.transactions.resume(physical_offset, when_done(connection, request))
