"""Transactions of messages for a moment of their own: nobody sees them before the commit, nor before the moment."""

from __future__ import annotations

from brokerd.store.put_status import PutStatus
from brokerd.transactions.decide import Outcome
from remoting import codes
from tests.support.transactions import TransactionBroker

DELAY_MS = 60_000


def half(broker: TransactionBroker, **properties: object):
    return broker.half(body=b"later", properties=properties)


def test_a_relative_time_counts_from_the_commit() -> None:
    broker = TransactionBroker().topic()
    begun = half(broker, TIMER_DELAY_MS=DELAY_MS)
    assert begun.recall_handle == ""
    broker.turns.run(DELAY_MS // 2)
    assert broker.end(begun) is None
    broker.turns.run(DELAY_MS - 5)
    assert broker.bodies() == []
    broker.turns.run(1000)
    assert broker.bodies() == [b"later"]


def test_an_absolute_time_that_passed_before_the_commit_is_at_once() -> None:
    broker = TransactionBroker().topic()
    begun = half(broker, TIMER_DELIVER_MS=broker.turns.wall_ms() + 100)
    broker.turns.run(200)
    assert broker.bodies() == []
    assert broker.end(begun) is None
    assert broker.bodies() == [b"later"]


def test_what_is_rolled_back_never_comes() -> None:
    broker = TransactionBroker().topic()
    begun = half(broker, TIMER_DELAY_MS=100)
    assert broker.end(begun, Outcome.ROLLBACK) is None
    broker.turns.run(5000)
    assert broker.bodies() == []


def test_a_time_that_cannot_be_kept_is_refused_before_the_transaction_begins() -> None:
    broker = TransactionBroker().topic()
    outcome = broker.try_half(properties={"TIMER_DELAY_SEC": 41 * 86_400})
    assert outcome.status is PutStatus.MESSAGE_ILLEGAL
    assert outcome.error is not None
    assert outcome.error.code == codes.MESSAGE_ILLEGAL
