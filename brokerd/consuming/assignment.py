"""Which queues a client of a group gets when the broker assigns them (pure): what the original's strategies give.

Every client asks for itself, so the answer depends on nothing but the sorted queues and the sorted client ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

ANY_QUEUE: Final = -1


class Queue(NamedTuple):
    """A queue of the cluster. Sorted by topic, broker, id."""

    topic: str
    broker_name: str
    queue_id: int


Strategy = Callable[[int, Sequence[Queue], int], list[Queue]]


def average(index: int, queues: Sequence[Queue], clients: int) -> list[Queue]:
    """Neighbouring queues; the first clients get one more when it does not divide evenly."""
    share, rest = divmod(len(queues), clients)
    start = index * share + min(index, rest)
    return list(queues[start : start + share + (index < rest)])


def average_by_circle(index: int, queues: Sequence[Queue], clients: int) -> list[Queue]:
    """One queue to each client in turn."""
    return list(queues[index::clients])


STRATEGIES: Final[dict[str, Strategy]] = {"AVG": average, "AVG_BY_CIRCLE": average_by_circle}


def assign(strategy: Strategy, queues: Sequence[Queue], client_ids: Sequence[str], client_id: str) -> list[Queue]:
    """The client's own queues; none when it is not among the clients."""
    ids = sorted(client_ids)
    return strategy(ids.index(client_id), sorted(queues), len(ids)) if client_id in ids else []


def assign_pops(
    strategy: Strategy, queues: Sequence[Queue], client_ids: Sequence[str], client_id: str, share: int
) -> list[Queue]:
    """The same for clients that pop, where `share` others may take from a client's queues too.

    With 0 or less, or when all others would share, every client pops any queue of each broker.
    """
    ids, ordered = sorted(client_ids), sorted(queues)
    if share <= 0 or share >= len(ids) - 1:
        return list(dict.fromkeys(queue._replace(queue_id=ANY_QUEUE) for queue in ordered))
    if client_id not in ids or not ordered:
        return []
    index = ids.index(client_id)
    if len(ids) > len(ordered):
        return [ordered[index % len(ordered)]]
    owners = [(index + step) % len(ids) for step in range(share + 1)]
    return list(dict.fromkeys(queue for owner in owners for queue in strategy(owner, ordered, len(ids))))
