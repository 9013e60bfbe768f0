"""Transactions of messages for a moment of their own: nobody sees them before the commit, nor before the moment."""

from __future__ import annotations

import pytest

from brokerd.store.draft import Draft
from brokerd.store.put_status import PutStatus
from brokerd.timers.rules import Clock, to_waiting_draft
from brokerd.transactions import records
from brokerd.transactions.decide import Outcome
from remoting import codes
from remoting.errors import RequestError
from remoting.names import TIMER_TOPIC
from remoting.record.layout import MAX_PROPERTIES_BYTES
from remoting.record.properties import encode_properties
from tests.support.transactions import CLIENT_HOST, TransactionBroker

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


@pytest.mark.parametrize("topic", ["T", "L" * 127])
def test_the_longest_properties_of_a_half_message_leave_room_for_how_it_waits(topic: str) -> None:
    """Also when it was moved up often meanwhile, and is so far ahead that it is appended again on its way."""
    now_ms = 1_800_000_000_000
    asked = {"TRAN_MSG": "true", "PGROUP": "pg", "TIMER_DELIVER_MS": str(now_ms + 30 * 86_400_000)}
    accepted = longest_half(topic, asked)
    moved = accepted.properties + encode_properties(
        {records.CHECK_TIMES: str(records.MAX_CHECK_TIMES), records.FIRST_QUEUE_OFFSET: str(2**62)}
    )
    committed = accepted._replace(topic=topic, properties=moved)
    waiting = to_waiting_draft(committed, Clock(now_ms, now_ms, window_ms=2 * 86_400_000))
    assert waiting.topic == TIMER_TOPIC


def longest_half(topic: str, asked: dict[str, str]) -> Draft:
    """The half message with the longest properties that are accepted."""
    for length in range(MAX_PROPERTIES_BYTES, 0, -1):
        draft = Draft(topic, 0, b"m", encode_properties(asked | {"pad": "x" * length}), 0, CLIENT_HOST)
        try:
            return records.half_draft(draft)
        except RequestError:
            continue
    raise AssertionError("none is accepted")
