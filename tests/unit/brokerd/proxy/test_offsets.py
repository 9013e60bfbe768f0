"""QueryOffset, UpdateOffset and GetOffset."""

from __future__ import annotations

import dataclasses

import pytest

from brokerd.metadata.configs import TopicConfig
from brokerd.proxy.methods.table import build_methods
from brokerd.proxy.protobuf import definition, service
from brokerd.proxy.status import Code
from tests.support.memory_log import MemoryRecordLog, draft
from tests.unit.brokerd.proxy.calls import FakeCall

BEGINNING, END, TIMESTAMP = range(3)


def resource(name):
    return definition.Resource(name=name)


def queue(topic="Normal", number=2, broker=""):
    return definition.MessageQueue(topic=resource(topic), id=number, broker=definition.Broker(name=broker))


def get(bench, named, group="G"):
    request = service.GetOffsetRequest(group=resource(group), message_queue=named)
    response = bench.call("GetOffset", request, service.GetOffsetResponse)
    return response.offset if response.status.code == Code.OK else response.status.code


def update(bench, named, offset, group="G"):
    request = service.UpdateOffsetRequest(group=resource(group), message_queue=named, offset=offset)
    return bench.call("UpdateOffset", request, service.UpdateOffsetResponse).status.code


def query(bench, named, policy, at_ms=None):
    request = service.QueryOffsetRequest(message_queue=named, query_offset_policy=policy)
    if at_ms is not None:
        request.timestamp.FromMilliseconds(at_ms)
    response = bench.call("QueryOffset", request, service.QueryOffsetResponse)
    return response.offset if response.status.code == Code.OK else response.status.code


def test_an_offset_is_kept_and_may_go_back(bench) -> None:
    assert get(bench, queue()) == Code.OFFSET_NOT_FOUND
    for offset in (42, 7, 0):
        assert update(bench, queue(), offset) == Code.OK
        assert get(bench, queue()) == offset
    assert get(bench, queue(), "Other") == Code.OFFSET_NOT_FOUND
    assert update(bench, queue(), -1) == Code.ILLEGAL_OFFSET
    assert get(bench, queue()) == 0


def test_a_group_that_pops_has_an_offset_too(bench) -> None:
    bench.broker.popped["G", "Normal", 2] = 5
    assert get(bench, queue()) == 5


def test_the_first_offset_makes_the_group_where_groups_may_be_made(bench) -> None:
    assert update(bench, queue(), 1, "New") == Code.OK
    assert "New" in bench.broker.group_table
    strict = build_methods(
        bench.broker.services(),
        scheduler=bench.turns,
        monotonic_ms=lambda: 0,
        wall_ms=lambda: 0,
        auto_create_groups=False,
    )
    call = FakeCall(service.UpdateOffsetRequest(group=resource("Newer"), message_queue=queue(), offset=1))
    strict.handlers["UpdateOffset"]([call])
    assert call.response(service.UpdateOffsetResponse).status.code == Code.CONSUMER_GROUP_NOT_FOUND
    assert ("Newer", "Normal", 2) not in bench.broker.offsets


@pytest.mark.parametrize("name", ["", "broker-a", "broker-a@127.0.0.1:8081"])
def test_a_queue_is_known_by_every_name_that_a_route_gives_its_broker(bench, name) -> None:
    assert update(bench, queue(broker=name), 3) == Code.OK
    assert get(bench, queue(broker=name)) == 3
    assert query(bench, queue(broker=name), END) == 0


def test_a_queue_of_another_broker_group_is_not_taken_for_one_of_this(bench) -> None:
    for name in ("broker-b", "broker-b@127.0.0.1:8081"):
        named = queue(broker=name)
        assert update(bench, named, 3) == get(bench, named) == query(bench, named, END) == Code.BAD_REQUEST
    assert bench.broker.offsets == {}


def test_queues_that_there_are_not(bench) -> None:
    bench.broker.topic_table["Shrinking"] = TopicConfig("Shrinking", 1, 3)
    bench.broker.add_topic("Closed", perm=2)
    for named, code in (
        (queue(number=4), Code.BAD_REQUEST),
        (queue(number=-1), Code.BAD_REQUEST),
        (queue("Unknown"), Code.TOPIC_NOT_FOUND),
        (queue("a b"), Code.ILLEGAL_TOPIC),
    ):
        assert update(bench, named, 3) == get(bench, named) == query(bench, named, END) == code
    assert query(bench, queue("Shrinking"), END) == 0, "somebody writes to it"
    assert update(bench, queue("Shrinking"), 3) == Code.BAD_REQUEST, "nobody reads it"
    assert update(bench, queue("Closed"), 3) == Code.FORBIDDEN


def test_where_a_queue_begins_and_ends_and_what_was_stored_when(bench) -> None:
    log = MemoryRecordLog(lambda: now_ms)
    for number in range(5):
        now_ms = 1000 * (1 + number)
        log.append_messages([draft("Normal", b"x", 2)])
    log.expire("Normal", 2, 1)
    services = dataclasses.replace(bench.broker.services(), reads=log)
    bench.methods = build_methods(services, scheduler=bench.turns, monotonic_ms=lambda: 0, wall_ms=lambda: 0)
    assert query(bench, queue(), BEGINNING) == 1
    assert query(bench, queue(), END) == 5
    assert [query(bench, queue(), TIMESTAMP, at) for at in (0, 2999, 3000, 3001, 99_000)] == [1, 2, 2, 3, 5]
    assert query(bench, queue(number=3), END) == query(bench, queue(number=3), BEGINNING) == 0
    assert query(bench, queue(), TIMESTAMP) == Code.BAD_REQUEST
    assert query(bench, queue(), 7) == Code.BAD_REQUEST
