"""Locks of queues: one client at a time, for a minute, on the master or who stands in for it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.consuming.queue_locks import LOCK_MS, QueueLocks
from remoting import codes
from tests.support.remoting_broker import RemotingBroker, remoting_master


def body(client: str, *queues: int, topic: str = "t", broker_name: str = "broker-a") -> bytes:
    mq_set = [{"topic": topic, "brokerName": broker_name, "queueId": queue} for queue in queues]
    return orjson.dumps({"consumerGroup": "g", "clientId": client, "onlyThisBroker": False, "mqSet": mq_set})


def lock(broker: RemotingBroker, client: str, *queues: int, **changes: Any) -> list[int]:
    answer = broker.answer(codes.LOCK_BATCH_MQ, body=body(client, *queues, **changes))
    assert answer.code == codes.SUCCESS, answer.remark
    return [each["queueId"] for each in orjson.loads(answer.body)["lockOKMQSet"]]


@pytest.fixture
def broker() -> RemotingBroker:
    return remoting_master()


def test_a_queue_has_one_holder_until_it_gives_it_up_or_stops_asking(broker: RemotingBroker) -> None:
    assert lock(broker, "a", 0) == [0]
    assert lock(broker, "b", 0) == []
    broker.turns.run(LOCK_MS - 1)
    assert lock(broker, "a", 0) == [0]
    broker.turns.run(LOCK_MS - 1)
    assert lock(broker, "b", 0) == []
    broker.turns.run(1)
    assert lock(broker, "b", 0) == [0]
    assert broker.answer(codes.UNLOCK_BATCH_MQ, body=body("a", 0)).code == codes.SUCCESS
    assert lock(broker, "a", 0) == [], "only the holder gives it up"
    assert broker.answer(codes.UNLOCK_BATCH_MQ, body=body("b", 0)).code == codes.SUCCESS
    assert lock(broker, "a", 0) == [0]


def test_a_lock_outlives_its_connection(broker: RemotingBroker) -> None:
    """A consumer that only lost its connection still works on the queue; who is gone loses it in time."""
    assert lock(broker, "a", 0) == [0]
    broker.processors.connection_closed(broker.peer)
    broker.clients.connection_closed(broker.peer)
    assert lock(broker, "b", 0) == []
    broker.turns.run(LOCK_MS)
    assert lock(broker, "b", 0) == [0]


def test_what_is_not_here_is_not_locked(broker: RemotingBroker) -> None:
    assert lock(broker, "a", 0, 1, 99) == [0]
    assert lock(broker, "a", 0, topic="nothing") == []
    assert lock(broker, "a", 0, broker_name="broker-b") == []


def test_the_master_locks_or_who_stands_in_for_it(broker: RemotingBroker) -> None:
    broker.is_master, broker.is_master_known = False, True
    assert broker.answer(codes.LOCK_BATCH_MQ, body=body("a", 0)).code == codes.SERVICE_NOT_AVAILABLE
    broker.is_master_known = False
    assert lock(broker, "a", 0) == [0]


@pytest.mark.parametrize("bad", [b"", b"[]", b"{}", orjson.dumps({"consumerGroup": "g"}), body("c" * 600, 0)])
def test_bad_bodies_are_refused(broker: RemotingBroker, bad: bytes) -> None:
    assert broker.answer(codes.LOCK_BATCH_MQ, body=bad).code == codes.INVALID_PARAMETER


def test_their_number_is_bounded_and_old_ones_make_room() -> None:
    locks = QueueLocks(limit=2)
    assert locks.lock("g", "a", [("t", 0), ("t", 1), ("t", 2)], 0) == [("t", 0), ("t", 1)]
    assert locks.lock("g", "a", [("t", 2)], LOCK_MS - 1) == []
    assert locks.lock("g", "b", [("t", 2), ("t", 3), ("t", 4)], LOCK_MS) == [("t", 2), ("t", 3)]
    assert len(locks) == 2


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(0, LOCK_MS), st.booleans()), max_size=60)
)
def test_two_clients_never_hold_one_queue(steps: list[tuple[str, int, int, bool]]) -> None:
    locks, now_ms = QueueLocks(), 0
    held: dict[int, tuple[str, int]] = {}
    for client, queue_id, passed_ms, gives_up in steps:
        now_ms += passed_ms
        if gives_up:
            locks.unlock("g", client, [("t", queue_id)])
            if held.get(queue_id, ("", 0))[0] == client:
                del held[queue_id]
            continue
        before = held.get(queue_id)
        free = before is None or before[0] == client or now_ms - before[1] >= LOCK_MS
        assert bool(locks.lock("g", client, [("t", queue_id)], now_ms)) == free
        if free:
            held[queue_id] = client, now_ms
