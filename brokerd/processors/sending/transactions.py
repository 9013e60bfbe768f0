"""Decisions about transactions: codes 37 (a producer ends one), 323 (somebody has one checked anew), and those of ours about
half messages that were given up: a list of them, and their end by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from brokerd.processors import fields
from brokerd.processors.answers import when_done
from brokerd.processors.rights import may_use
from brokerd.transactions.decide import EndTransaction, Outcome
from brokerd.transactions.given_up import MAX_LISTED
from brokerd.transactions.ids import parse_transaction_id
from brokerd.transactions.records import MAX_NAME_LENGTH, EndedAs
from brokerd.transactions.service import TransactionService
from remoting.access.model import PUB, UPDATE
from remoting.errors import InvalidParameter
from remoting.facts.codec import encode
from remoting.frame import Command
from remoting.guarding.guard import Guard
from remoting.record.hosts import decode_offset_message_id
from remoting.transport.connection import RemotingConnection

_OUTCOMES: Final = {int(outcome) for outcome in Outcome}


@dataclass(frozen=True, slots=True)
class TransactionProcessor:
    """The handlers. Clients send code 37 one-way, but whoever wants an answer gets one, when the decision is acknowledged."""

    transactions: TransactionService
    guard: Guard

    def end(self, connection: RemotingConnection, request: Command) -> None:
        """Code 37."""
        ext = request.ext
        number = fields.integer(ext, "commitOrRollback", low=-fields.MAX_INT)
        if number not in _OUTCOMES:
            raise InvalidParameter(
                f"commitOrRollback must be {Outcome.COMMIT} (commit), {Outcome.ROLLBACK} (rollback) or {Outcome.UNKNOWN} "
                f"(undecided), not {number}"
            )
        identity = parse_transaction_id(ext.get("transactionId", ""))
        decision = EndTransaction(
            fields.text(ext, "producerGroup"),
            fields.integer(ext, "tranStateTableOffset"),
            fields.integer(ext, "commitLogOffset"),
            Outcome(number),
            fields.flag(ext, "fromTransactionCheck"),
            "" if identity is None else identity.secret,
        )
        self.transactions.end(decision, when_done(connection, request), may_use(self.guard, connection, request, PUB))

    def resume(self, connection: RemotingConnection, request: Command) -> None:
        """Code 323."""
        _, _, physical_offset = decode_offset_message_id(fields.text(request.ext, "msgId"))
        may = may_use(self.guard, connection, request, UPDATE)
        self.transactions.resume(physical_offset, when_done(connection, request), may)

    def given_up(self, connection: RemotingConnection, request: Command) -> None:
        """The newest half messages that were given up, or those before an offset."""
        before = fields.integer(request.ext, "before", -1, low=-1)
        count = fields.integer(request.ext, "count", MAX_LISTED, low=1, high=MAX_LISTED)
        page = self.transactions.given_up.page(None if before < 0 else before, count)
        connection.respond(request, body=encode(page))

    def end_given_up(self, connection: RemotingConnection, request: Command) -> None:
        """Somebody commits one of them, or rolls it back."""
        ext = request.ext
        decision = fields.text(ext, "decision")
        if decision not in (EndedAs.COMMIT, EndedAs.ROLLBACK):
            raise InvalidParameter(f"decision must be {EndedAs.COMMIT} or {EndedAs.ROLLBACK}, not {decision[:32]!r}")
        who = fields.text(ext, "decidedBy")[:MAX_NAME_LENGTH]
        if any(ord(character) < 32 for character in who):
            raise InvalidParameter("decidedBy must not contain control characters")
        offset = fields.integer(ext, "offset")
        self.transactions.end_given_up(offset, EndedAs(decision), who, when_done(connection, request))
