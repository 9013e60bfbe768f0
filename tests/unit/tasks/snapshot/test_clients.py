"""What clients measured, as the collector adds it up."""

from __future__ import annotations

from remoting.facts.broker_state import ClientTimesState
from tasks.snapshot.build import build
from tasks.snapshot.inputs import Memory
from tests.unit.tasks.snapshot.cluster import look, state


def test_what_clients_measured_is_of_all_brokers_together() -> None:
    def times(*counts: int, metric: str = "send", bounds_ms: tuple[int, ...] = (10, 100)) -> ClientTimesState:
        return ClientTimesState(metric=metric, topic="orders", language="JAVA", bounds_ms=bounds_ms, counts=counts)

    master = state(1, "master", client_times=(times(40, 9, 0), times(0, 0, 5, metric="span_send")))
    replica = state(
        2, client_times=(times(50, 1, 0), times(1, 1), times(0, 0, 0, metric="await"), times(1, bounds_ms=()))
    )
    snapshot, _ = build(look(states={1: master, 2: replica}), Memory())
    told = {each.metric: (each.count, each.half_ms, each.most_ms, each.limit_ms) for each in snapshot.client_times}
    assert told == {"send": (100, 5.6, 91.0, 100), "span_send": (5, None, None, 100)}
