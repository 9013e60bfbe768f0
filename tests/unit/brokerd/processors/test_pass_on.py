"""Administration that reaches a replica: what the master answers, and what happens without one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from brokerd.processors.pass_on import MAX_UNDER_WAY, PassOn
from remoting import codes
from remoting.frame import Command
from remoting.transport.client import RemotingClient, connect
from remoting.transport.connection import Handler, RemotingConnection
from remoting.transport.server import Place, RemotingServer, each
from remoting.transport.tasks import TaskOwner

DELETE = codes.DELETE_TOPIC_IN_BROKER


class Broker:
    """A listener that passes deletions on to the address in `master`."""

    def __init__(self, handler: Handler | None = None) -> None:
        self.master = ""
        self.seen = 0
        self._tasks = TaskOwner("test")
        self._client = RemotingClient()
        pass_on = PassOn(self._client, lambda: self.master, self._tasks)

        def passed(connection: RemotingConnection, requests: Sequence[Command]) -> None:
            self.seen += len(requests)
            for request in requests:
                pass_on(connection, request)

        self._server = RemotingServer(Place("127.0.0.1", 0), {DELETE: handler or passed})

    async def start(self) -> None:
        await self._server.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.port}"

    async def close(self) -> None:
        await self._server.close()
        await self._tasks.close()
        self._client.close()


async def started(*brokers: Broker) -> AsyncIterator[None]:
    for broker in brokers:
        await broker.start()
    yield
    for broker in brokers:
        await broker.close()


async def ask(broker: Broker, body: bytes = b"") -> Command:
    connection = await connect(broker.address)
    answer = await connection.call(DELETE, {"topic": "t"}, body)
    connection.close()
    return answer


@pytest.fixture
async def replica() -> AsyncIterator[Broker]:
    broker = Broker()
    async for _ in started(broker):
        yield broker


async def test_the_masters_answer_goes_back_whole(replica: Broker) -> None:
    def handle(connection: RemotingConnection, request: Command) -> None:
        connection.respond(request, 26, {"saw": request.ext["topic"]}, bytes(request.body), "as the master says")

    master = Broker(each(handle))
    async for _ in started(master):
        replica.master = master.address
        answer = await ask(replica, b"a body")
    assert (answer.code, answer.ext, answer.body, answer.remark) == (26, {"saw": "t"}, b"a body", "as the master says")


async def test_without_a_master_it_is_refused(replica: Broker) -> None:
    assert (await ask(replica)).code == codes.SERVICE_NOT_AVAILABLE
    replica.master = "127.0.0.1:1"
    answer = await ask(replica)
    assert answer.code == codes.SERVICE_NOT_AVAILABLE
    assert "the master at 127.0.0.1:1 did not answer" in (answer.remark or "")


async def test_two_that_take_each_other_for_the_master_come_to_an_end(replica: Broker) -> None:
    other = Broker()
    async for _ in started(other):
        replica.master, other.master = other.address, replica.address
        async with asyncio.timeout(60):
            assert (await ask(replica)).code == codes.SERVICE_NOT_AVAILABLE
    assert replica.seen + other.seen == 2 * MAX_UNDER_WAY + 1
