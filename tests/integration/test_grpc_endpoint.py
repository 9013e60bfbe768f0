"""The gRPC port with the official Python client and with gRPC's own channel, over a broker in memory.

The programs run as processes of their own, as users' programs do, with a home directory that the test can look at.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest

from brokerd.metadata.configs import GroupConfig
from brokerd.proxy.proxy import GrpcProxy, ProxyOptions
from remoting import codes
from remoting.transport.client import RemotingClient
from remoting.transport.server import Place, RemotingServer
from tests import h2spec
from tests.support.cluster import Cluster
from tests.support.workload import call_until
from tests.unit.brokerd.proxy.fakes import FakeBroker, MastershipFake
from tests.unit.brokerd.proxy.waiting import until

pytestmark = pytest.mark.slow


class Node(MastershipFake):
    """One broker of a group: gRPC port, and the remoting port that forwarded calls come to."""

    def __init__(self, nodes: list[Node], broker: FakeBroker) -> None:
        self.nodes = nodes
        self.is_master = self.is_handing_over = False
        self.dialler = RemotingClient()
        self.proxy = GrpcProxy(
            "127.0.0.1",
            0,
            broker.services(),
            self.dialler,
            self,
            ProxyOptions(),
        )
        self.server = RemotingServer(
            Place("127.0.0.1", 0), {codes.PROXY_CALL: self.proxy.handle_forwarded}, closed=self.proxy.remoting_closed
        )

    @property
    def master_address(self) -> str:
        return next((node.remoting for node in self.nodes if node.is_master), "")

    async def start(self) -> None:
        await self.proxy.start()
        await self.server.start()
        self.address = f"127.0.0.1:{self.proxy.endpoint.port}"
        self.remoting = f"127.0.0.1:{self.server.port}"

    async def kill(self) -> None:
        """Go without a word, as a killed process does."""
        for connection in list(self.proxy.endpoint.connections):
            connection.abort("killed")
        for remoting in list(self.server.connections):
            remoting.abort()
        await self.close()

    async def close(self) -> None:
        self.is_master = False
        await self.proxy.close()
        self.dialler.close()
        await self.server.close()


@contextlib.asynccontextmanager
async def serving(count: int = 1) -> AsyncIterator[tuple[FakeBroker, list[Node]]]:
    """`count` brokers that share one log, as replicas of it would, sorted by address; the first is the master."""
    nodes: list[Node] = []
    broker = FakeBroker(lambda: [node.address for node in sorted(nodes, key=lambda node: not node.is_master)])
    broker.add_topic("Orders")
    broker.add_topic("Ordered", "FIFO")
    for _ in range(count):
        node = Node(nodes, broker)
        await node.start()
        nodes.append(node)
    nodes.sort(key=lambda node: node.address)
    nodes[0].is_master = True
    try:
        yield broker, nodes
    finally:
        for node in nodes:
            await node.close()


async def test_send_receive_ack_and_postpone(programs) -> None:
    async with serving() as (broker, (node,)):
        program = await programs(
            """
producer = Producer(configuration, ("Orders",))
producer.startup()
receipts = [producer.send(message(b"%d" % n, tag="even" if n % 2 == 0 else "odd", keys=f"k{n}")) for n in range(50)]
consumer = SimpleConsumer(configuration, "Counters", {"Orders": FilterExpression("even")}, await_duration=2)
consumer.startup()
got = []
while len(got) < 25:
    for one in consumer.receive(32, 15):
        assert not one.corrupted and one.delivery_attempt == 1 and one.tag == "even"
        got.append(int(one.body))
        consumer.ack(one)
empty = len(consumer.receive(32, 15))
producer.send(message(b"again", tag="even"))
(first,) = consumer.receive(1, 15)
handle = first.receipt_handle
consumer.change_invisible_duration(first, 1)
(second,) = consumer.receive(1, 15)
first._Message__receipt_handle = handle
try:
    consumer.ack(first)
    late = "accepted"
except Exception as error:
    late = str(error)
consumer.ack(second)
ids = len({receipt.message_id for receipt in receipts})
say(ids=ids, got=sorted(got), empty=empty, attempt=second.delivery_attempt, late=late)
producer.shutdown()
consumer.shutdown()
""",
            [node.address],
        )
        told = await program.said()
        await program.finished()
        assert told["ids"] == 50
        assert told["got"] == list(range(0, 50, 2))
        assert (told["empty"], told["attempt"]) == (0, 2)
        assert "INVALID_RECEIPT_HANDLE" in told["late"]
        assert len(broker.unregistered) == 2
        assert broker.live == {}


async def test_a_push_consumer_retries_what_its_listener_failed(programs) -> None:
    async with serving() as (broker, (node,)):
        program = await programs(
            """
seen = []
class Listener(MessageListener):
    def consume(self, one):
        seen.append((one.body.decode(), one.delivery_attempt))
        return ConsumeResult.FAILURE if seen[-1] == ("7", 1) else ConsumeResult.SUCCESS

consumer = PushConsumer(configuration, "Pushed", Listener(), {"Orders": FilterExpression()})
consumer.startup()
producer = Producer(configuration, ("Orders",))
producer.startup()
for n in range(20):
    producer.send(message(b"%d" % n))
deadline = time.monotonic() + 30
while len(seen) < 21 and time.monotonic() < deadline:
    time.sleep(0.05)
say(seen=sorted(seen))
hear()
consumer.shutdown()
producer.shutdown()
""",
            [node.address],
        )
        told = await program.said()
        expected = sorted([[str(number), 1] for number in range(20)] + [["7", 2]])
        assert told["seen"] == expected
        await until("every message to be acked", lambda: all("Pushed" in stored.finished for stored in broker.log))
        program.tell("stop")
        await program.finished()


async def test_lite_clients_are_told_at_once_that_there_are_no_lite_topics(programs) -> None:
    """Both kinds of consumers, and a producer: none waits until it gives up, and the reason comes from the broker."""
    async with serving() as (broker, (node,)):
        program = await programs(
            """
from rocketmq import LitePushConsumer, LiteSimpleConsumer

class Listener(MessageListener):
    def consume(self, one):
        say(got=one.body.decode())
        return ConsumeResult.SUCCESS

def refusal(action):
    try:
        return repr(action())
    except Exception as error:
        return f"{type(error).__name__}: {error}"

producer = Producer(configuration, ("Orders",))
producer.startup()
producer.send(message(b"not for a lite consumer"))
begun = time.monotonic()
push = LitePushConsumer(configuration, "Lite", "Orders", Listener())
push.startup()
pushed = refusal(lambda: push.subscribe_lite("news"))
simple = LiteSimpleConsumer("Orders", configuration, "Lite", await_duration=2)
simple.startup()
deadline = time.monotonic() + 10
while "quota: 0" in (asked := refusal(lambda: simple.subscribe_lite("news"))) and time.monotonic() < deadline:
    time.sleep(0.05)  # it does not wait for its settings
received = refusal(lambda: simple.receive(1, 15))
say(pushed=pushed, asked=asked, received=received, took=time.monotonic() - begun)
hear()
push.shutdown()
simple.shutdown()
producer.shutdown()
""",
            [node.address],
        )
        told = await program.said()
        for refused in (told["pushed"], told["asked"], told["received"]):
            assert refused.startswith("UnsupportedException: 50500, this version does not have lite topics"), told
        assert told["took"] < 8
        await until("its question for queues", lambda: node.proxy.figures().calls["QueryAssignment"])
        assert broker.pops == []
        assert broker.members("Lite") == []
        program.tell("stop")
        await program.finished()


async def test_a_priority_is_sent_and_received(programs) -> None:
    async with serving() as (broker, (node,)):
        broker.add_topic("Urgent", "PRIORITY")
        program = await programs(
            """
producer = Producer(configuration, ("Urgent",))
producer.startup()
for priority in (0, 3, 9):
    producer.send(message(b"%d" % priority, topic="Urgent", priority=priority))
consumer = SimpleConsumer(configuration, "Sorters", {"Urgent": FilterExpression()}, await_duration=2)
consumer.startup()
got = {}
while len(got) < 3:
    for one in consumer.receive(32, 15):
        got[one.body.decode()] = one.priority
        consumer.ack(one)
say(got=got)
producer.shutdown()
consumer.shutdown()
""",
            [node.address],
        )
        assert (await program.said())["got"] == {"0": 0, "3": 3, "9": 9}
        await program.finished()
        assert [stored.queue_id for stored in broker.log] == [0, 3, 3]


async def test_an_ordered_group_is_told_so_and_gets_every_queue(programs) -> None:
    async with serving() as (broker, (node,)):
        broker.group_table["InOrder"] = GroupConfig("InOrder", fifo=True)
        program = await programs(
            """
seen = []
class Listener(MessageListener):
    def consume(self, one):
        seen.append((one.message_group, one.body.decode()))
        return ConsumeResult.SUCCESS

producer = Producer(configuration, ("Ordered",))
producer.startup()
for n in range(12):
    producer.send(message(b"%d" % n, topic="Ordered", message_group=f"g{n % 3}"))
consumer = PushConsumer(configuration, "InOrder", Listener(), {"Ordered": FilterExpression()})
consumer.startup()
deadline = time.monotonic() + 30
while len(seen) < 12 and time.monotonic() < deadline:
    time.sleep(0.05)
say(seen=seen)
consumer.shutdown()
producer.shutdown()
""",
            [node.address],
        )
        told = await program.said()
        await program.finished()
        by_group = {group: [int(body) for name, body in told["seen"] if name == group] for group in ("g0", "g1", "g2")}
        assert by_group == {f"g{number}": list(range(number, 12, 3)) for number in range(3)}
        assert all(pop.fifo for pop in broker.pops)
        queues = {(stored.queue_id, stored.record.count(b"__SHARDINGKEY\x01g0")) for stored in broker.log}
        assert len({queue for queue, has in queues if has}) == 1  # one message group, one queue


async def test_a_producer_is_told_why_its_message_is_refused(programs) -> None:
    async with serving() as (_, (node,)):
        program = await programs(
            """
def refused(action):
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__} {error}"
    return "accepted"

producer = Producer(configuration, ("Orders",))
producer.startup()
say(
    empty=refused(lambda: producer.send(message(b""))),
    unknown=refused(lambda: producer.send(message(b"x", topic="Unknown"))),
    grouped=refused(lambda: producer.send(message(b"x", message_group="g"))),
)
producer.shutdown()
""",
            [node.address],
        )
        told = await program.said()
        await program.finished()
        assert all(value != "accepted" for value in told.values()), told


STEADY = """
producer = Producer(configuration, ("Orders",))
producer.startup()
consumer = SimpleConsumer(configuration, "Steady", {"Orders": FilterExpression()}, await_duration=2)
consumer.startup()
say(started=True)
def send_until_ok(body):
    failures = 0
    while True:
        try:
            producer.send(message(body))
            return failures
        except Exception as error:
            failures += 1
            assert failures < 300, error
            time.sleep(0.05)
for round in range(2):
    hear()
    began = time.monotonic()
    failures = [send_until_ok(b"%d-%d" % (round, n)) for n in range(20)]
    elapsed = time.monotonic() - began
    got = set()
    while len(got) < 20:
        try:
            for one in consumer.receive(32, 15):
                got.update([one.body] if one.body.startswith(b"%d-" % round) else [])
                consumer.ack(one)
        except Exception as error:
            time.sleep(0.05)
    say(round=round, failures=sum(failures), elapsed=elapsed)
producer.shutdown()
consumer.shutdown()
"""


@pytest.mark.parametrize("promoted", [1, 2])
async def test_a_client_goes_on_when_the_first_address_dies(programs, promoted) -> None:
    """The client tries its addresses in sorted order and stays with the first that answers, be it a replica or not."""
    async with serving(3) as (broker, nodes):
        program = await programs(STEADY, [nodes[0].address])
        # the access point is one address; the route names all three
        assert await program.said() == {"started": True}
        program.tell("go")
        assert (await program.said())["failures"] == 0
        await nodes[0].kill()
        nodes.remove(nodes[0])
        nodes[promoted - 1].is_master = True
        program.tell("go")
        assert (await program.said())["round"] == 1
        assert len(broker.log) == 40
        await program.finished()


@pytest.mark.parametrize("access_points", ["all", "a replica"])
async def test_a_client_of_real_brokers_goes_on_when_the_master_is_killed(programs, tmp_path, access_points) -> None:
    with Cluster(tmp_path / "cluster", controllers=1) as cluster:
        cluster.start()
        call_until(lambda: cluster.admin.create_topic("Orders", queues=4))
        master = cluster.master()
        replica = (master + 1) % 3
        addresses = cluster.grpc_addresses if access_points == "all" else [cluster.grpc_addresses[replica]]
        program = await programs(STEADY, addresses)
        assert await program.said() == {"started": True}
        program.tell("go")
        assert (await program.said())["failures"] == 0
        cluster.brokers[master].kill()
        program.tell("go")
        assert (await program.said())["round"] == 1
        await program.finished()
        assert cluster.master() != master
        stored = sum(each.max_offset for each in cluster.admin.queue_offsets("Orders"))
        assert stored >= 40


CHANNEL = """
import asyncio, json, os, sys
import grpc
from rocketmq.grpc_protocol import service_pb2, service_pb2_grpc

async def main():
    target = "ipv4:" + os.environ["ENDPOINTS"].replace(";", ",")
    options = [("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(target, options) as channel:
        stub = service_pb2_grpc.MessagingServiceStub(channel)
        for line in sys.stdin:
            failures = 0
            while True:
                try:
                    metadata = (("x-mq-client-id", "channel"),)
                    answer = await stub.Heartbeat(service_pb2.HeartbeatRequest(), metadata=metadata, timeout=3)
                    break
                except grpc.aio.AioRpcError as error:
                    failures += 1
                    assert failures < 100, error
            print(json.dumps({"code": answer.status.code, "failures": failures}), flush=True)

asyncio.run(main())
"""


async def test_a_channel_with_several_addresses_moves_to_the_next(programs) -> None:
    async with serving(2) as (broker, nodes):
        program = await programs(CHANNEL, [node.address for node in nodes], prelude="")
        program.tell("once")
        assert (await program.said())["code"] == 20000
        first = nodes[0]
        assert len(first.proxy.endpoint.connections) == 1
        await first.kill()
        nodes[1].is_master = True
        program.tell("again")
        assert (await program.said())["code"] == 20000
        assert len(nodes[1].proxy.endpoint.connections) == 1
        assert "channel" in broker.live


async def test_h2spec() -> None:
    try:
        program = await h2spec.find_h2spec()
    except h2spec.Unavailable as reason:
        pytest.skip(str(reason))
    output, counts = await h2spec.run_h2spec(program)
    assert h2spec.verdict(counts) is None, output
