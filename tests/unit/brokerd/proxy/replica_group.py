"""A master and replicas with both ports, in one process: who is master is set by the test."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from brokerd.proxy.forward import ForwardSettings
from brokerd.proxy.protobuf import service
from brokerd.proxy.proxy import GrpcProxy, ProxyOptions
from remoting import codes
from remoting.transport.client import RemotingClient
from remoting.transport.server import Place, RemotingServer
from tests.unit.brokerd.proxy.fakes import FakeBroker, MastershipFake
from tests.unit.brokerd.proxy.rawclient import RawClient
from tests.unit.brokerd.proxy.test_methods import sending
from tests.unit.brokerd.proxy.test_receive_message import receiving


class Node(MastershipFake):
    """A broker with both ports; who is master is set by the test."""

    def __init__(self, group: Group, name: str) -> None:
        self.group = group
        self.name = name
        self.is_handing_over = False
        self.broker = FakeBroker(lambda: [f"127.0.0.1:{node.proxy.endpoint.port}" for node in group.nodes])
        self.broker.add_topic("Normal")
        self.dialler = RemotingClient()
        self.proxy = GrpcProxy(
            "127.0.0.1",
            0,
            self.broker.services(),
            self.dialler,
            self,
            ProxyOptions(forward=group.settings),
        )
        self.server = RemotingServer(
            Place("127.0.0.1", 0), {codes.PROXY_CALL: self.proxy.handle_forwarded}, closed=self.proxy.remoting_closed
        )

    @property
    def is_master(self) -> bool:
        return self.group.master is self

    @property
    def master_address(self) -> str:
        return "" if self.group.master is None else self.group.master.address

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    async def start(self) -> None:
        await self.proxy.start()
        await self.server.start()

    async def close(self) -> None:
        await self.proxy.close()
        self.dialler.close()
        await self.server.close()

    def cut(self) -> None:
        """Lose every remoting connection, as a killed process does."""
        for connection in list(self.server.connections):
            connection.abort()


class Group:
    def __init__(self, settings: ForwardSettings) -> None:
        self.settings = settings
        self.nodes: list[Node] = []
        self.master: Node | None = None


@contextlib.asynccontextmanager
async def group_of(count: int = 2, **settings) -> AsyncIterator[Group]:
    group = Group(
        ForwardSettings(**{"hold_ms": 60_000, **settings})
    )  # on a busy machine a test is slower than a client
    group.nodes = [Node(group, f"n{number}") for number in range(count)]
    for node in group.nodes:
        await node.start()
    group.master = group.nodes[0]
    try:
        yield group
    finally:
        for node in group.nodes:
            await node.close()


async def client_of(node: Node) -> RawClient:
    return await RawClient.connect(node.proxy.endpoint.port)


async def send(client: RawClient, body=b"x", **headers) -> int:
    return (await client.call("SendMessage", sending(body), service.SendMessageResponse, **headers)).status.code


async def receive(client: RawClient, stream_id=None):
    if stream_id is None:
        stream_id = client.start("ReceiveMessage", receiving())
    found, fields = await client.answer(stream_id, service.ReceiveMessageResponse)
    assert fields["grpc-status"] == "0"
    assert found[-1].HasField("delivery_timestamp")
    return found[0].status.code, [one.message for one in found[1:-1]]
