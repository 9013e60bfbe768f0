"""Messages for a moment of their own on real brokers, by both protocols: never early, recalled, and once each though the master
is killed while they wait."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import orjson
import pytest

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.errors import LogboomError
from remoting.facts.timers import RecallOutcome, RecallRequest, TimerStanding
from remoting.frame import Command
from remoting.record.codec import Record
from remoting.record.properties import encode_properties
from tests.support.cluster import Cluster, eventually
from tests.support.workload import call_until, read_queue

pytestmark = pytest.mark.slow

QUEUES = 2
STORED = (codes.SUCCESS, codes.FLUSH_DISK_TIMEOUT, codes.FLUSH_SLAVE_TIMEOUT)


def make_topic(cluster: Cluster, name: str, message_type: str = "DELAY") -> str:
    call_until(lambda: cluster.admin.create_topic(name, queues=QUEUES, message_type=message_type))
    eventually("the topic's route", lambda: bool(cluster.admin.queue_offsets(name)))
    return name


def ask(cluster: Cluster, code: int, ext: dict[str, str], body: bytes = b"") -> Command:
    """The present master's answer, whatever it is."""

    def answered() -> Command | None:
        address = cluster.broker_addresses[cluster.master()]
        try:
            with SocketConnection(address, identity=cluster.admin._identity) as connection:
                answer = connection.call(code, ext, body, timeout_ms=15_000, accept=range(10_000))
        except LogboomError:
            return None
        return None if answer.code == codes.SERVICE_NOT_AVAILABLE else answer

    return eventually(f"an answer to {code}", answered)


def send(cluster: Cluster, topic: str, key: str, accept: tuple[int, ...] = (), **properties: object) -> Command:
    encoded = encode_properties({"UNIQ_KEY": key, **{name: str(value) for name, value in properties.items()}})
    names = (
        "producerGroup",
        "topic",
        "defaultTopic",
        "defaultTopicQueueNums",
        "queueId",
        "sysFlag",
        "bornTimestamp",
        "flag",
    )
    header = dict(zip(names, ("p", topic, "TBW102", "4", "0", "0", "0", "0"), strict=True))
    answer = ask(cluster, codes.SEND_MESSAGE, header | {"properties": encoded.decode()}, key.encode())
    assert answer.code in (*STORED, *accept), answer.remark
    return answer


def recall(cluster: Cluster, topic: str, handle: str) -> Command:
    return ask(cluster, codes.RECALL_MESSAGE, {"producerGroup": "p", "topic": topic, "recallHandle": handle})


def delivered(cluster: Cluster, topic: str, count: int) -> list[Record]:
    """All messages of the topic, when there are so many."""

    def found() -> list[Record] | None:
        try:
            records = [each for queue in range(QUEUES) for each in read_queue(cluster.admin, topic, queue)]
        except LogboomError:
            return None
        return records if len(records) >= count else None

    return eventually(f"{count} messages in {topic}", found)


def never_early(records: list[Record]) -> bool:
    return all(each.store_timestamp_ms >= int(each.property_map()["TIMER_DELIVER_MS"]) for each in records)


def keys_of(records: list[Record]) -> Counter[str]:
    return Counter(each.property_map()["UNIQ_KEY"] for each in records)


def ahead_ms(milliseconds: int) -> int:
    return time.time_ns() // 1_000_000 + milliseconds


def test_a_remoting_client_sends_ahead_and_recalls(cluster: Cluster) -> None:
    topic = make_topic(cluster, "LaterRemoting", "MIXED")
    due_ms = ahead_ms(6000)
    answers = {key: send(cluster, topic, key, TIMER_DELIVER_MS=due_ms) for key in ("kept", "recalled", "named")}
    assert "recallHandle" not in send(cluster, topic, "now").ext
    taken = recall(cluster, topic, answers["recalled"].ext["recallHandle"])
    assert (taken.code, taken.ext["msgId"]) == (codes.SUCCESS, "recalled")
    again = recall(cluster, topic, answers["recalled"].ext["recallHandle"])
    assert (again.code, "recalled before" in (again.remark or "")) == (codes.ILLEGAL_OPERATION, True)
    # as older brokers and tools recall: a message of its own, which never comes
    marker = send(cluster, topic, "marker", TIMER_DELIVER_MS=due_ms, TIMER_DEL_UNIQKEY=f"{topic}+named")
    assert "recallHandle" not in marker.ext
    send(cluster, topic, "after", TIMER_DELIVER_MS=due_ms + 100)
    records = delivered(cluster, topic, 3)
    assert keys_of(records) == {"now": 1, "kept": 1, "after": 1}
    assert never_early([each for each in records if each.body != b"now"])
    late = recall(cluster, topic, answers["kept"].ext["recallHandle"])
    assert (late.code, "delivered" in (late.remark or "")) == (codes.ILLEGAL_OPERATION, True)
    altered = recall(cluster, topic, answers["kept"].ext["recallHandle"][:-4] + "AAA=")
    assert altered.code == codes.ILLEGAL_OPERATION


def configure(cluster: Cluster, assignment: bytes) -> None:
    """Change a setting of all brokers."""
    for address in cluster.broker_addresses:
        with SocketConnection(address, identity=cluster.admin._identity) as connection:
            connection.call(codes.UPDATE_BROKER_CONFIG, {}, assignment, timeout_ms=15_000)


def test_a_second_takes_no_more_than_its_limit(cluster: Cluster) -> None:
    topic = make_topic(cluster, "LaterLimited")
    due_ms = ahead_ms(86_400_000)
    configure(cluster, b"timers.max_per_slot=2")
    try:
        sent = [send(cluster, topic, f"k{n}", accept=(codes.FLOW_CONTROL,), TIMER_DELIVER_MS=due_ms) for n in range(4)]
        assert [each.code == codes.FLOW_CONTROL for each in sent] == [False, False, True, True]
        assert "timers.max_per_slot" in (sent[-1].remark or "")
        send(cluster, topic, "another second", TIMER_DELIVER_MS=due_ms + 1000)
    finally:
        configure(cluster, b"timers.max_per_slot=0")
    send(cluster, topic, "any number", TIMER_DELIVER_MS=due_ms)


PROGRAM = """
TOPIC = "LaterGrpc"
producer = Producer(configuration, (TOPIC,))
producer.startup()
consumer = SimpleConsumer(configuration, "LaterReaders", {TOPIC: FilterExpression()}, await_duration=2)
consumer.startup()

def refused(handle):
    try:
        producer.recall_message(TOPIC, handle)
        return ""
    except Exception as error:
        return str(error)

due_s = int(time.time()) + 6
receipts = {
    name: producer.send(message(name.encode(), topic=TOPIC, delivery_timestamp=due_s)) for name in ("kept", "recalled")
}
recalled_id = producer.recall_message(TOPIC, receipts["recalled"].recall_handle)
twice = refused(receipts["recalled"].recall_handle)
got, deadline = [], time.monotonic() + 30
while time.monotonic() < deadline and not (got and time.time() > due_s + 1):
    for one in consumer.receive(32, 15):
        got.append([one.body.decode(), time.time() >= due_s, one.message_id == receipts["kept"].message_id])
        consumer.ack(one)
late, far = refused(receipts["kept"].recall_handle), ""
try:
    producer.send(message(b"far", topic=TOPIC, delivery_timestamp=due_s + 400 * 86400))
except Exception as error:
    far = str(error)
say(got=got, same_id=recalled_id == receipts["recalled"].message_id, twice=twice, late=late, far=far)
producer.shutdown()
consumer.shutdown()
"""


async def test_the_official_python_client_sends_ahead_and_recalls(cluster: Cluster, programs) -> None:
    await asyncio.to_thread(make_topic, cluster, "LaterGrpc")
    program = await programs(PROGRAM, cluster.grpc_addresses)
    told = await program.said()
    assert told["got"] == [["kept", True, True]]
    assert told["same_id"]
    assert "recalled before" in told["twice"]
    assert "delivered" in told["late"]
    assert "40012" in told["far"] or "at most" in told["far"]
    await program.finished()


def test_all_come_once_when_the_master_is_killed_while_they_wait(cluster: Cluster) -> None:
    topic = make_topic(cluster, "LaterKill")
    wanted, recalled = [f"K{number:03d}" for number in range(60)], [f"R{number}" for number in range(3)]
    for key in (*recalled, *wanted):
        answer = send(cluster, topic, key, TIMER_DELIVER_MS=ahead_ms(4000))
        if key in recalled:
            assert recall(cluster, topic, answer.ext["recallHandle"]).code == codes.SUCCESS
    delivered(cluster, topic, 5)
    cluster.brokers[cluster.master()].kill()
    send(cluster, topic, "last", TIMER_DELIVER_MS=ahead_ms(300))
    records = delivered(cluster, topic, len(wanted) + 1)
    assert keys_of(records) == dict.fromkeys([*wanted, "last"], 1)
    assert never_early(records)


def test_timers_are_counted_found_and_recalled_by_hand(cluster: Cluster) -> None:
    topic = make_topic(cluster, "LaterByHand")
    moments = {key: ahead_ms(600_000 + number) for number, key in enumerate(("first", "second", "third"))}
    for key, due_ms in reversed(moments.items()):
        send(cluster, topic, key, TIMER_DELIVER_MS=due_ms, KEYS=f"order-{key}")
    group = next(iter(cluster.admin.masters()))

    def counted() -> bool:
        table = orjson.loads(ask(cluster, codes.GET_TIMER_METRICS, {}).body)
        return table["timingCount"].get(topic, {}).get("count") == len(moments)

    eventually("all are counted", counted)
    page = cluster.admin.find_timers(group, topic=topic)
    assert [(each.unique_key, each.due_ms) for each in page.items] == list(moments.items())
    (item,) = cluster.admin.find_timers(group, key="order-second").items
    assert (item.unique_key, item.standing) == ("second", TimerStanding.WAITING)
    wanted = RecallRequest(topic=topic, unique_key="second", place=item.place, due_ms=item.due_ms)
    outcomes = [cluster.admin.recall_timers(group, [wanted], "ann")[0].outcome for _ in range(2)]
    assert outcomes == [RecallOutcome.RECALLED, RecallOutcome.RECALLED_BEFORE]
    marker, target = sorted(cluster.admin.find_timers(group, key="second").items, key=lambda each: -each.offset)
    assert (marker.standing, marker.recalled_by, marker.place) == (TimerStanding.MARKER, "ann", target.offset)
    assert target.standing is TimerStanding.RECALLED
    range_ms = {"from_ms": moments["second"], "to_ms": moments["third"] + 1}
    assert [each.unique_key for each in cluster.admin.find_timers(group, topic=topic, **range_ms).items] == ["third"]
