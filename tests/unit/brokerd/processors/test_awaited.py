"""How far a group or a queue is, asked of a replica: the master's answer, also of one that comes later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

import pytest

from brokerd.processors.offsets.awaited import HOLD_MS, MAX_HELD, AwaitedMaster
from brokerd.processors.registry import on_master
from remoting import codes
from remoting.errors import ConnectionLost, LogboomError
from remoting.frame import Command
from remoting.transport.connection import RemotingConnection
from remoting.transport.tasks import TaskOwner
from tests.support.turns import Turns

MASTER = "10.0.0.1:10911"
QUERY = codes.QUERY_CONSUMER_OFFSET


class Client:
    """Who asks: what it was answered."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, int, dict[str, str]]] = []  # opaque, code, header
        self.is_open = True

    def respond(
        self, request: Command, code: int = 0, ext: Mapping[str, str] | None = None, *_: object, **__: object
    ) -> None:
        self.answers.append((request.opaque, code, dict(ext or {})))

    def respond_error(self, request: Command, error: LogboomError) -> None:
        self.respond(request, error.code)


class Masters:
    """The client of the replica, and all brokers behind it: what each address answers."""

    def __init__(self) -> None:
        self.says: dict[str, Command | LogboomError] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []

    async def connection(self, address: str) -> Masters._Connection:
        return Masters._Connection(self, address)

    class _Connection:
        def __init__(self, masters: Masters, address: str) -> None:
            self._masters, self._address = masters, address

        async def call(self, code: int, ext: dict[str, str], body: bytes, timeout_ms: int) -> Command:
            self._masters.asked.append((self._address, ext))
            answer = self._masters.says.get(self._address, ConnectionLost("nobody is there"))
            if isinstance(answer, LogboomError):
                raise answer
            return answer


class Replica:
    """One broker; its own handler answers 0, as a copy does that has nothing."""

    def __init__(self) -> None:
        self.is_master = False
        self.is_left_alone = False
        self.master_address = ""
        self.turns = Turns()
        self.masters = Masters()
        self.client = Client()
        self.tasks = TaskOwner("test")
        self.awaited = AwaitedMaster(self, self.masters, self.turns, self.tasks)
        self.handlers = on_master({QUERY: self._answer}, lambda: self.is_master, await_master=self.awaited)

    def _answer(self, connection: RemotingConnection, requests: Sequence[Command]) -> None:
        for request in requests:
            connection.respond(request, ext={"offset": "0"})

    async def ask(self, opaque: int = 1, **ext: str) -> None:
        request = Command(QUERY, opaque, {"consumerGroup": "g", "topic": "t", "queueId": "0"} | ext)
        self.handlers[QUERY](self.client, [request])
        await self.settle()

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def pass_ms(self, milliseconds: int) -> None:
        """In steps, so that what is asked of the master is answered in between."""
        for _ in range(0, milliseconds, 50):
            self.turns.run(50)
            await self.settle()


@pytest.fixture
async def replica() -> AsyncIterator[Replica]:
    replica = Replica()
    yield replica
    await replica.tasks.close()


def said(offset: str) -> Command:
    return Command(codes.SUCCESS, 9, {"offset": offset}, flag=codes.FLAG_RESPONSE)


async def test_the_master_is_asked(replica: Replica) -> None:
    replica.master_address = MASTER
    replica.masters.says[MASTER] = said("7")
    await replica.ask(Signature="of the client")
    assert replica.client.answers == [(1, codes.SUCCESS, {"offset": "7"})]
    [(_, ext)] = replica.masters.asked
    assert "Signature" not in ext


async def test_that_the_group_never_consumed_is_the_masters_word(replica: Replica) -> None:
    replica.master_address = MASTER
    replica.masters.says[MASTER] = Command(codes.QUERY_NOT_FOUND, 9, flag=codes.FLAG_RESPONSE)
    await replica.ask()
    assert replica.client.answers == [(1, codes.QUERY_NOT_FOUND, {})]


async def test_nothing_is_made_up_until_a_master_is_known(replica: Replica) -> None:
    await replica.ask()
    await replica.pass_ms(HOLD_MS - 500)
    assert not replica.client.answers
    replica.masters.says[MASTER] = said("7")
    replica.master_address = MASTER
    await replica.pass_ms(100)
    assert replica.client.answers == [(1, codes.SUCCESS, {"offset": "7"})]
    assert not len(replica.awaited)


async def test_who_hears_of_its_election_answers(replica: Replica) -> None:
    await replica.ask()
    assert not replica.client.answers
    replica.is_master = True
    await replica.pass_ms(100)
    assert replica.client.answers == [(1, codes.SUCCESS, {"offset": "0"})]


@pytest.mark.parametrize(
    "answer", [ConnectionLost("it was killed"), Command(codes.SERVICE_NOT_AVAILABLE, 9, flag=codes.FLAG_RESPONSE)]
)
async def test_a_master_that_is_gone_is_followed_by_the_next_one(
    replica: Replica, answer: Command | LogboomError
) -> None:
    replica.master_address = MASTER
    replica.masters.says = {MASTER: answer, "10.0.0.2:10911": said("7")}
    await replica.ask()
    await replica.pass_ms(500)
    assert not replica.client.answers
    replica.master_address = "10.0.0.2:10911"
    await replica.pass_ms(100)
    assert replica.client.answers == [(1, codes.SUCCESS, {"offset": "7"})]


async def test_the_refusal_comes_later_than_clients_wait(replica: Replica) -> None:
    """Clients before version 5 take a refusal for a group that never consumed, and a silence of 5 seconds for what it is."""
    await replica.ask()
    await replica.pass_ms(5500)
    assert not replica.client.answers
    await replica.pass_ms(1000)
    assert replica.client.answers == [(1, codes.SERVICE_NOT_AVAILABLE, {})]


async def test_one_that_is_asked_by_another_broker_asks_nobody(replica: Replica) -> None:
    """Two that take each other for the master."""
    other = Replica()
    replica.master_address, other.master_address = "other", "replica"
    replica.masters.says["other"] = said("7")
    await replica.ask()
    [(_, ext)] = replica.masters.asked
    await other.ask(**ext)
    assert other.client.answers == [(1, codes.SERVICE_NOT_AVAILABLE, {})]
    assert not other.masters.asked


async def test_where_nobody_is_elected_a_replica_serves_readers_itself(replica: Replica) -> None:
    replica.master_address = MASTER
    replica.is_left_alone = True
    await replica.ask()
    assert replica.client.answers == [(1, codes.SUCCESS, {"offset": "0"})]


async def test_many_are_answered_in_portions_and_too_many_are_refused(replica: Replica) -> None:
    for opaque in range(MAX_HELD):
        replica.handlers[QUERY](replica.client, [Command(QUERY, opaque, {})])
    await replica.ask(MAX_HELD)
    assert replica.client.answers == [(MAX_HELD, codes.SYSTEM_BUSY, {})]
    replica.is_master = True
    replica.turns.run(50)
    assert sorted(opaque for opaque, _, _ in replica.client.answers) == list(range(MAX_HELD + 1))


async def test_who_went_away_is_forgotten(replica: Replica) -> None:
    await replica.ask()
    replica.client.is_open = False
    await replica.pass_ms(100)
    assert not len(replica.awaited)
    assert not replica.client.answers
