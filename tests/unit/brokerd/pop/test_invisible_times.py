"""A group's own bounds of the time for which its messages are hidden."""

from __future__ import annotations

import pytest

from brokerd.metadata.configs import GroupConfig
from brokerd.pop.requests import PopStatus
from remoting.errors import RequestError
from tests.support.pop_broker import PopBroker

BOUNDED = {"invisible.min.ms": "20000", "invisible.max.ms": "30000"}


@pytest.fixture
def broker() -> PopBroker:
    broker = PopBroker().become_master()
    broker.topic()
    broker.group(attributes=BOUNDED)
    return broker


@pytest.mark.parametrize(
    ("asked_ms", "is_taken"), [(0, False), (19_999, False), (20_000, True), (30_000, True), (30_001, False)]
)
def test_a_receive_keeps_to_its_groups_bounds(broker: PopBroker, asked_ms, is_taken) -> None:
    broker.send("a")
    outcome = broker.receive(invisible_time_ms=asked_ms).outcome
    assert outcome.status is (PopStatus.FOUND if is_taken else PopStatus.REFUSED)
    if outcome.error is not None:
        expected = f"the invisible time of consumer group g is from 20000 to 30000 ms, not {asked_ms}"
        assert outcome.error.message == expected


def test_leases_and_other_groups_are_not_bounded_so(broker: PopBroker) -> None:
    broker.send("a")
    broker.alive.add("c")
    lease = broker.receive(invisible_time_ms=60_000, auto_renew=True, client_id="c").outcome
    assert lease.status is PopStatus.FOUND
    broker.group("other")
    broker.send("b")
    assert broker.receive(group="other", invisible_time_ms=1).outcome.status is PopStatus.FOUND


def test_a_group_with_bounds_that_cannot_be_meant_is_not_changed(broker: PopBroker) -> None:
    refusals: list[RequestError | None] = []
    broker.metadata.put_group(GroupConfig("g", attributes={"invisible.min.ms": "soon"}), refusals.append)
    assert [str(each) for each in refusals] == [
        "invisible.min.ms is a number of milliseconds, at most 31536000000, not 'soon'"
    ]
    group = broker.metadata.group("g")
    assert group is not None
    assert group.attributes == BOUNDED
