"""Options, planning, reading from a broker and the meter: everything of the source that needs no Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting import codes
from remoting.errors import ConnectionLost, InvalidParameter, RequestError
from tasks.spark.cluster import Cluster, find_ranges
from tasks.spark.meter import Meter, MeterReceiver, ReadFrom
from tasks.spark.options import Options
from tasks.spark.planning import QueueRange, part, plan
from tasks.spark.reader import DataLoss, read_ranges
from tests.unit.tasks.fake_cluster import FakeBroker
from tests.unit.tasks.patience import patient

BASE = {"controllers": "127.0.0.1:9876", "subscribe": "orders"}


# ---- options


def test_options_have_defaults_and_any_case() -> None:
    options = Options.parse({"CONTROLLERS": "a:1, b:2", "subscribe": "x,y,x", "FailOnDataLoss": "FALSE"})
    assert options.controllers == ("a:1", "b:2")
    assert options.topics == ("x", "y")
    assert options.fail_on_data_loss is False
    assert (options.starting_offset("x", "broker-a", 0), options.ending_offset("x", "broker-a", 0)) == (-2, -1)


def test_offsets_and_assignments_are_read_from_json() -> None:
    options = Options.parse(
        {
            "controllers": "a:1",
            "assign": json.dumps({"orders": {"broker-a": [2, 0, 2]}}),
            "startingOffsets": json.dumps({"orders": {"broker-a": {"0": 5, "2": -1}}}),
            "endingTimestamp": "2026-01-31T12:00:00+01:00",
        }
    )
    assert options.topics == ("orders",)
    assert options.assignment == {"orders": {"broker-a": (0, 2)}}
    assert options.starting_offset("orders", "broker-a", 0) == 5
    assert options.starting_offset("orders", "broker-a", 1) == -2
    assert options.ending_timestamp_ms == 1_769_857_200_000


@pytest.mark.parametrize(
    ("given_options", "told"),
    [
        ({"subscribe": "x"}, "controllers is missing"),
        ({**BASE, "controllers": "nowhere"}, "is not an address"),
        ({"controllers": "a:1"}, "exactly one of subscribe"),
        ({**BASE, "assign": "{}"}, "exactly one of subscribe"),
        ({**BASE, "subscribe": " , "}, "subscribe is empty"),
        ({**BASE, "colour": "blue"}, "has no option colour; it has controllers"),
        ({**BASE, "minPartitions": "0"}, "minPartitions is '0'"),
        ({**BASE, "maxRecordsPerPartition": "many"}, "maxRecordsPerPartition is 'many'"),
        ({**BASE, "failOnDataLoss": "maybe"}, "must be true or false"),
        ({**BASE, "startingTimestamp": "yesterday"}, "must be milliseconds"),
        ({**BASE, "startingTimestamp": "2026-01-31T12:00:00"}, "say the zone"),
        ({**BASE, "startingTimestamp": "1", "startingOffsets": "{}"}, "not both"),
        ({**BASE, "startingOffsets": "latest"}, "always empty"),
        ({**BASE, "startingOffsets": "[1"}, "is not JSON"),
        ({**BASE, "startingOffsets": '{"orders": 5}'}, "must be an object of objects"),
        ({**BASE, "startingOffsets": '{"orders": {"b": {"x": 5}}}'}, "-2 is earliest"),
        ({**BASE, "startingOffsets": '{"orders": {"b": {"0": -3}}}'}, "-2 is earliest"),
        ({**BASE, "endingOffsets": '{"orders": {"b": [1]}}'}, "endingOffsets must be"),
        ({"controllers": "a:1", "assign": '{"orders": {"b": []}}'}, "assign must be"),
        ({"controllers": "a:1", "assign": "{}"}, "it names no queue"),
    ],
)
def test_a_bad_option_is_refused_with_the_rule(given_options: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidParameter) as refusal:
        Options.parse(given_options)
    assert told in str(refusal.value)


# ---- planning

ranges_of_queues = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 300)).map(lambda pair: (pair[0], pair[0] + pair[1])), max_size=8
).map(lambda pairs: [QueueRange("t", "b", index, *pair) for index, pair in enumerate(pairs)])


def messages(parts: list[list[QueueRange]]) -> list[tuple[int, int]]:
    return [(each.queue_id, offset) for part in parts for each in part for offset in range(each.start, each.end)]


@patient
@given(ranges_of_queues, st.integers(1, 12), st.integers(1, 400))
def test_partitions_cover_every_message_once_and_are_bounded(
    ranges: list[QueueRange], min_partitions: int, max_records: int
) -> None:
    parts = plan(ranges, min_partitions, max_records)
    assert sorted(messages(parts)) == sorted(messages([ranges]))
    sizes = [sum(each.size for each in part) for part in parts]
    assert all(0 < size <= max_records for size in sizes)
    total = sum(sizes)
    if total:
        assert len(parts) >= min(min_partitions, -(-total // max_records), total)
        assert max(sizes) - min(sizes[:-1] or sizes) == 0, "all but the last are of one size"


@patient
@given(ranges_of_queues, st.lists(st.integers(1, 200), min_size=1, max_size=40))
def test_parts_in_order_cover_every_message_once_in_order(ranges: list[QueueRange], steps: list[int]) -> None:
    total = sum(each.size for each in ranges)
    found, position = [], 0
    for step in [*steps, total]:
        end = min(position + step, total)
        found.append(part(ranges, position, end))
        position = end
    assert sorted(messages(found)) == sorted(messages([ranges]))
    for queue_id in {each.queue_id for each in ranges}:
        offsets = [offset for queue, offset in messages(found) if queue == queue_id]
        assert offsets == sorted(offsets)


# ---- reading


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as found:
        found.add_topic("orders", 2)
        for index in range(250):
            found.store("orders", index % 2, f"body {index}".encode(), {"KEYS": f"k{index}"}, at_ms=1000 * index)
        yield found


class Waiting:
    """A clock for what waits: each pause moves it, and may change the world."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.after_pause: Any = None

    def pause(self, seconds: float) -> None:
        self.now_s += seconds
        if self.after_pause is not None:
            self.after_pause()


def connect(broker: FakeBroker, waiting: Waiting | None = None) -> Cluster:
    clock = waiting or Waiting()
    return Cluster([broker.address], timeout_ms=5000, retry_for_ms=3000, now_s=lambda: clock.now_s, pause=clock.pause)


def options(broker: FakeBroker, **more: str) -> Options:
    return Options.parse({"controllers": broker.address, "subscribe": "orders", **more})


def bodies(cluster: Cluster, ranges: list[QueueRange], **more: Any) -> list[str]:
    batches = read_ranges(cluster, ranges, ("body",), **more)
    return [row["body"].decode() for batch in batches for row in batch.to_pylist()]


def test_everything_is_read_once_in_the_order_of_each_queue(broker: FakeBroker) -> None:
    with connect(broker) as cluster:
        ranges = find_ranges(cluster, options(broker))
        assert [(each.queue_id, each.start, each.end) for each in ranges] == [(0, 0, 125), (1, 0, 125)]
        expected = [f"body {index}" for index in range(0, 250, 2)] + [f"body {index}" for index in range(1, 250, 2)]
        assert bodies(cluster, ranges) == expected
        assert broker.pulls >= 250 / broker.answer_most


def test_times_and_offsets_cut_the_ranges(broker: FakeBroker) -> None:
    with connect(broker) as cluster:
        timed = find_ranges(cluster, options(broker, startingTimestamp="100000", endingTimestamp="104000"))
        assert bodies(cluster, timed) == ["body 100", "body 102", "body 101", "body 103"]
        offsets = json.dumps({"orders": {"broker-a": {"0": 3}}})
        ends = json.dumps({"orders": {"broker-a": {"0": 5, "1": -2}}})
        cut = find_ranges(cluster, options(broker, startingOffsets=offsets, endingOffsets=ends))
        assert bodies(cluster, cut) == ["body 6", "body 8"]


def test_assigned_queues_are_read_and_missing_ones_named(broker: FakeBroker) -> None:
    with connect(broker) as cluster:
        assign = json.dumps({"orders": {"broker-a": [1]}})
        chosen = find_ranges(cluster, Options.parse({"controllers": broker.address, "assign": assign}))
        assert {each.queue_id for each in chosen} == {1}
        assign = json.dumps({"orders": {"broker-a": [7]}})
        with pytest.raises(RequestError, match="has no queue 7 at broker-a; it is at broker-a with 2 queues"):
            find_ranges(cluster, Options.parse({"controllers": broker.address, "assign": assign}))


def test_a_range_is_trimmed_whatever_the_broker_answers(broker: FakeBroker) -> None:
    broker.answer_most = 1000
    with connect(broker) as cluster:
        assert bodies(cluster, [QueueRange("orders", "broker-a", 0, 10, 12)]) == ["body 20", "body 22"]


def test_a_topic_that_nobody_has_is_said_at_once(broker: FakeBroker) -> None:
    with connect(broker) as cluster, pytest.raises(RequestError) as refusal:
        find_ranges(cluster, options(broker, subscribe="nothing"))
    assert refusal.value.code == codes.TOPIC_NOT_EXIST


def test_a_master_that_is_away_for_a_moment_is_waited_for(broker: FakeBroker) -> None:
    broker.refuse_pulls, broker.drop_pulls = 2, 1
    with connect(broker) as cluster:
        assert len(bodies(cluster, [QueueRange("orders", "broker-a", 0, 0, 125)])) == 125
    broker.refuse_pulls = 10_000
    waiting = Waiting()
    with connect(broker, waiting) as cluster, pytest.raises(RequestError):
        bodies(cluster, [QueueRange("orders", "broker-a", 0, 0, 125)])
    assert waiting.now_s >= 3


def test_waiting_for_a_master_in_vain_says_for_whom_and_how_long(broker: FakeBroker) -> None:
    broker.refuse_pulls = 10_000
    with connect(broker) as cluster, pytest.raises(RequestError) as refusal:
        bodies(cluster, [QueueRange("orders", "broker-a", 0, 0, 125)])
    assert str(refusal.value).startswith(
        "orders could not be read: no master of the broker group broker-a answered for 3 s ("
    )
    assert refusal.value.code == codes.SERVICE_NOT_AVAILABLE


def test_planning_waits_for_a_group_that_is_missing_in_the_routes(broker: FakeBroker) -> None:
    """As long as its only broker starts again, a topic has no route at all: that is not the same as no topic."""
    assign = json.dumps({"orders": {"broker-a": [1]}})
    wanted = Options.parse({"controllers": broker.address, "assign": assign})
    waiting = Waiting()
    broker.masterless_views = 5
    with connect(broker, waiting) as cluster:
        assert [each.end for each in find_ranges(cluster, wanted)] == [125]
    assert 0 < waiting.now_s < 3
    broker.masterless_views = 1000
    with connect(broker, waiting) as cluster, pytest.raises(RequestError, match="a remark"):
        find_ranges(cluster, wanted)


def test_a_master_that_has_not_told_its_topics_yet_is_waited_for(broker: FakeBroker) -> None:
    """It was started again a moment ago: it leads, and the route of its topic is still to come."""
    waiting = Waiting()
    broker.unrouted = 3
    with connect(broker, waiting) as cluster:
        assert [each.end for each in find_ranges(cluster, options(broker, subscribe="orders"))] == [125, 125]
        assert 0 < waiting.now_s < 3
        broker.unrouted, assign = 3, json.dumps({"orders": {"broker-a": [1]}})
        wanted = Options.parse({"controllers": broker.address, "assign": assign})
        assert [each.end for each in find_ranges(cluster, wanted)] == [125]
        broker.drop_pulls, broker.unrouted = 1, 3
        assert len(bodies(cluster, [QueueRange("orders", "broker-a", 0, 0, 125)])) == 125


def test_a_group_that_does_not_come_back_is_named(broker: FakeBroker) -> None:
    waiting = Waiting()
    broker.masterless_views = 3
    with connect(broker, waiting) as cluster:
        assert cluster.wait_for_masters() == ()
        assert waiting.now_s < 3
        broker.masterless_views = 1000
        assert cluster.wait_for_masters() == ("broker-a",)


def test_a_controller_that_just_started_does_not_speak_for_the_others(broker: FakeBroker) -> None:
    with FakeBroker("broker-b") as fresh, Cluster([fresh.address, broker.address]) as cluster:
        assert cluster.queues("orders") == {"broker-a": 2}
        with pytest.raises(RequestError):
            cluster.queues("nothing")


def test_a_tail_that_a_new_master_does_not_show_yet_is_waited_for(broker: FakeBroker) -> None:
    waiting = Waiting()
    with connect(broker, waiting) as cluster:
        broker.visible_end = 100

        def confirm() -> None:
            broker.visible_end = None

        waiting.after_pause = confirm
        assert len(bodies(cluster, [QueueRange("orders", "broker-a", 0, 0, 125)])) == 125
        waiting.after_pause, broker.visible_end = None, 100
        with pytest.raises(DataLoss, match="ends at 100, but messages up to 125"):
            bodies(cluster, [QueueRange("orders", "broker-a", 0, 0, 125)])
        assert len(bodies(cluster, [QueueRange("orders", "broker-a", 0, 0, 125)], fail_on_data_loss=False)) == 100


def test_messages_removed_meanwhile_fail_the_read_unless_told_to_skip(broker: FakeBroker) -> None:
    wanted = [QueueRange("orders", "broker-a", 0, 0, 125)]
    with connect(broker) as cluster:
        broker.min_offset = 50
        with pytest.raises(DataLoss, match="messages 0 to 50 of orders, broker-a, queue 0 were removed"):
            bodies(cluster, wanted)
        assert bodies(cluster, wanted, fail_on_data_loss=False)[0] == "body 100"
        offsets = json.dumps({"orders": {"broker-a": {"0": 3}}})
        with pytest.raises(RequestError, match="messages 3 to 50 of orders, broker-a, queue 0 are gone"):
            find_ranges(cluster, options(broker, startingOffsets=offsets))
        ranges = find_ranges(cluster, options(broker, startingOffsets=offsets, failOnDataLoss="false"))
        assert ranges[0].start == 50


def test_no_controller_is_said_with_its_address() -> None:
    with Cluster(["127.0.0.1:1"]) as cluster, pytest.raises(ConnectionLost, match=r"no controller of 127\.0\.0\.1:1"):
        cluster.queues("orders")


def test_system_topics_are_not_the_users(broker: FakeBroker) -> None:
    broker.add_topic("rmq_sys_x", 1, system=True)
    broker.add_topic("invoices", 1)
    with connect(broker) as cluster:
        assert cluster.user_topics() == ["invoices", "orders"]


# ---- the meter


def test_rows_are_told_while_reading_and_attempts_count_once(broker: FakeBroker) -> None:
    with MeterReceiver() as receiver, connect(broker) as cluster:
        for _ in range(2):
            meter = Meter(receiver.address, receiver.token, "0:orders")
            bodies(cluster, [QueueRange("orders", "broker-a", 0, 0, 125)], meter=meter)
            assert meter.rows == 125
            meter.finish()
    receiver.take(json.dumps([receiver.token, "0:orders", meter.rows, meter.bytes, [125, 0, 0]]).encode())
    receiver.take(
        json.dumps([receiver.token, "0:orders", 5, 5, [0, 5, 0]]).encode()
    )  # of a later attempt, at its beginning
    assert receiver.totals() == (125, meter.bytes)
    assert [receiver.rows_from(each) for each in ReadFrom] == [125, 0, 0]


@pytest.mark.parametrize(
    "datagram",
    [
        *(b"", b"{", b"[1]", b'["wrong", "p", 5, 5, [5, 0, 0]]', b'[1, "p", 5, 5, [5, 0, 0]]'),
        *(b'["TOKEN", 1, 5, 5, [5, 0, 0]]', b'["TOKEN", "p", "x", 5, [5, 0, 0]]', b'["TOKEN", "p", 5, 5]'),
        *(b'["TOKEN", "p", 5, 5, 5]', b'["TOKEN", "p", 5, 5, [5]]', b'["TOKEN", "p", 5, 5, ["5", 0, 0]]'),
    ],
)
def test_datagrams_of_others_are_nothing(datagram: bytes) -> None:
    receiver = MeterReceiver()
    with receiver:
        receiver.take(datagram.replace(b"TOKEN", receiver.token.encode()))
        assert receiver.totals() == (0, 0)


def test_reading_goes_on_when_nobody_listens(broker: FakeBroker) -> None:
    with MeterReceiver() as receiver:
        address = receiver.address
    for each in (address, "no address", "localhost:99999", None):
        meter = Meter(each, "x", "0")
        meter.add(1, 1)
        meter.add(1, 1)
        meter.finish()
        assert meter.rows == 2
