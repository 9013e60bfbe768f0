"""Who has much to do in a turn of the loop has what was sent in it taken before."""

from __future__ import annotations

from tests.unit.brokerd.sending.test_send import Broker, Connection, request


def test_what_came_is_taken_at_once_and_its_own_turn_finds_nothing() -> None:
    broker, connection = Broker(), Connection()
    broker.processor.handle(connection, [request(1)])
    assert broker.processor.goes_first
    broker.processor.take_now()
    assert not broker.processor.goes_first
    assert len(broker.acknowledger.waiting) == 1
    end_offset = broker.store.commitlog.end_offset
    broker.next_turn()  # in which it would have been taken
    broker.processor.take_now()
    assert broker.store.commitlog.end_offset == end_offset
    assert not broker.turn
    broker.handle(connection, [request(2)])
    broker.acknowledger.complete()
    assert [(answer.code, answer.opaque) for answer in connection.answers] == [(0, 1), (0, 2)]
    broker.store.close()
