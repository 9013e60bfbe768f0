"""Assigned queues: what the original's strategies give, and that together they are complete."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.consuming.assignment import STRATEGIES, Queue, assign, assign_pops, average, average_by_circle


def queues(*counts: int) -> list[Queue]:
    return [Queue("t", f"b{broker}", each) for broker, count in enumerate(counts) for each in range(count)]


def ids(found: list[Queue]) -> list[int]:
    return [queue.queue_id for queue in found]


@pytest.mark.parametrize(
    ("count", "clients", "expected"),
    [
        (8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (8, 2, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (2, 3, [[0], [1], []]),
        (7, 3, [[0, 1, 2], [3, 4], [5, 6]]),
    ],
)
def test_average(count: int, clients: int, expected: list[list[int]]) -> None:
    assert [ids(average(index, queues(count), clients)) for index in range(clients)] == expected


def test_average_by_circle() -> None:
    assert [ids(average_by_circle(index, queues(5), 3)) for index in range(3)] == [[0, 3], [1, 4], [2]]


@given(
    st.sampled_from(sorted(STRATEGIES)),
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.sets(st.text(), min_size=1),
)
def test_every_queue_has_one_owner(name: str, counts: list[int], clients: set[str]) -> None:
    every = queues(*counts)
    found = [queue for client in clients for queue in assign(STRATEGIES[name], every[::-1], list(clients), client)]
    assert sorted(found) == sorted(every)


def test_a_stranger_gets_nothing() -> None:
    assert assign(average, queues(4), ["a", "b"], "c") == []
    assert assign_pops(average, queues(4), ["a", "b", "d"], "c", 1) == []


@pytest.mark.parametrize("share", [-1, 0, 2, 9])
def test_all_pop_everything_of_each_broker(share: int) -> None:
    found = assign_pops(average, queues(4, 2), ["a", "b", "c"], "b", share)
    assert found == [Queue("t", "b0", -1), Queue("t", "b1", -1)]


def test_neighbours_share_a_clients_queues() -> None:
    clients = ["a", "b", "c", "d"]
    shared = {client: ids(assign_pops(average, queues(8), clients, client, 1)) for client in clients}
    assert shared == {"a": [0, 1, 2, 3], "b": [2, 3, 4, 5], "c": [4, 5, 6, 7], "d": [6, 7, 0, 1]}


def test_with_more_clients_than_queues_each_gets_one() -> None:
    clients = list("abcde")
    assert [ids(assign_pops(average, queues(2), clients, client, 1)) for client in clients] == [[0], [1], [0], [1], [0]]


@given(st.integers(1, 12), st.sets(st.text(), min_size=3), st.integers(1, 3))
def test_shared_queues_leave_none_alone(count: int, clients: set[str], share: int) -> None:
    found = {queue for client in clients for queue in assign_pops(average, queues(count), list(clients), client, share)}
    covered = {queue.queue_id for queue in found}
    assert covered in ({-1}, set(range(count)))
