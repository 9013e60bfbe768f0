"""The line of waiters: completed by position, each exactly once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brokerd.replication.required_set.ack_queue import AckQueue, Verdict
from brokerd.store.put_status import PutStatus


def late_after(timeout_ms: int) -> Verdict:
    return lambda _, waited_ms: LATE if waited_ms >= timeout_ms else None


OK, LATE, FAILED = PutStatus.PUT_OK, PutStatus.FLUSH_SLAVE_TIMEOUT, PutStatus.SERVICE_NOT_AVAILABLE


def test_completion_by_position_and_deadline() -> None:
    queue, done = AckQueue(10), []
    for position, now in ((10, 0), (20, 50), (30, 60)):
        queue.wait(position, now, lambda status, position=position: done.append((position, status)))
    assert queue.acknowledge(15) == 1
    assert queue.waiting_since_ms == 50
    queue.expire(149, late_after(100))
    assert len(queue) == 2
    queue.expire(150, late_after(100))
    assert len(queue) == 1
    assert queue.acknowledge(12) == 0, "never backwards"
    queue.fail_all(FAILED)
    assert done == [(10, OK), (20, LATE), (30, FAILED)]
    assert queue.ended == {LATE: 1, FAILED: 1}


def test_what_is_acknowledged_already_is_completed_at_once() -> None:
    queue, done = AckQueue(10), []
    queue.acknowledge(50)
    queue.wait(50, 0, done.append)
    assert done == [OK]
    assert len(queue) == 0


def test_a_waiter_for_an_earlier_position_keeps_the_order() -> None:
    queue, done = AckQueue(10), []
    queue.wait(30, 0, lambda _: done.append("a"))
    queue.wait(20, 0, lambda _: done.append("b"))
    queue.acknowledge(29)
    assert done == []
    queue.acknowledge(30)
    assert done == ["a", "b"]


def test_callbacks_may_wait_again_and_fail_the_rest() -> None:
    queue, done = AckQueue(10), []

    def again(status: PutStatus) -> None:
        done.append(("first", status))
        queue.wait(40, 0, lambda status: done.append(("again", status)))
        queue.fail_all(FAILED)

    queue.wait(10, 0, again)
    queue.wait(10, 0, lambda status: done.append(("second", status)))
    queue.acknowledge(10)
    assert done == [("first", OK), ("second", FAILED), ("again", FAILED)]


def test_it_is_bounded() -> None:
    queue = AckQueue(2)
    for _ in range(2):
        assert not queue.is_full
        queue.wait(5, 0, lambda _: None)
    assert queue.is_full


@given(st.lists(st.tuples(st.sampled_from("waft"), st.integers(0, 30)), max_size=60))
def test_every_waiter_is_completed_exactly_once(steps: list[tuple[str, int]]) -> None:
    queue, counts, position, now = AckQueue(1000), [], 0, 0

    def add(at: int) -> None:
        index = len(counts)
        counts.append(0)

        def done(status: PutStatus) -> None:
            counts[index] += 1
            assert (status is OK) <= (queue.acknowledged >= at)

        queue.wait(at, now, done)

    for kind, amount in steps:
        if kind == "w":
            position += amount
            add(position)
        elif kind == "a":
            queue.acknowledge(min(position, queue.acknowledged + amount))
        elif kind == "t":
            now += amount
            queue.expire(now, late_after(50))
        else:
            queue.fail_all(FAILED)
    queue.fail_all(FAILED)
    assert counts == [1] * len(counts)
