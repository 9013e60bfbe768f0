"""Sends to the owner of their message group: stored here, passed on, held while there is none, and never done twice."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from brokerd.placement.rules import Owner, Waiting
from brokerd.proxy.forward import ForwardSettings
from brokerd.proxy.placed import Placed
from brokerd.proxy.protobuf import service
from brokerd.proxy.proxy import GrpcProxy, ProxyOptions
from brokerd.proxy.status import Code
from brokerd.timers.handles import Recallable, encode_handle
from remoting import codes
from remoting.record.codec import decode_record
from remoting.transport.client import RemotingClient
from remoting.transport.server import Place, RemotingServer
from tests.support.timers import timed_messages
from tests.unit.brokerd.proxy.fakes import FakeBroker, MastershipFake
from tests.unit.brokerd.proxy.rawclient import RawClient
from tests.unit.brokerd.proxy.test_methods import sending
from tests.unit.brokerd.proxy.waiting import until

KEY = bytes(range(32))


class Owners:
    """What a broker group knows of placements, and where masters are; set by the test."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[], None]] = []
        self.known: dict[str, Owner | Waiting] = {}
        self.masters: dict[str, str] = {}
        self.groups = {"broker-a", "broker-b"}
        self.refreshed = 0
        self.version = 1

    def version_of(self, _topic: str) -> int:
        return self.version

    def owner(self, _topic: str, message_group: str) -> Owner | Waiting | None:
        return self.known.get(message_group)

    def master_of(self, broker_name: str) -> str:
        return self.masters.get(broker_name, "")

    def has_group(self, broker_name: str) -> bool:
        return broker_name in self.groups

    def refresh_soon(self) -> None:
        self.refreshed += 1

    def change(self, **known: Owner | Waiting) -> None:
        self.known |= known
        self.version += 1
        for listener in self.listeners:
            listener()


class Master(MastershipFake):
    """Of a broker group: both ports over a broker in memory."""

    is_master, is_handing_over, master_address = True, False, ""

    def __init__(self, name: str, settings: ForwardSettings) -> None:
        self.name = name
        self.owners = Owners()
        self.broker = FakeBroker(lambda: [f"127.0.0.1:{self.proxy.endpoint.port}"])
        self.broker.add_topic("Orders", "FIFO")
        self.dialler = RemotingClient()
        services = replace(self.broker.services(), broker_name=name, timed=timed_messages(self.broker.timers, name))
        options = ProxyOptions(forward=settings, placed=Placed(self.owners, self.owners))
        self.proxy = GrpcProxy("127.0.0.1", 0, services, self.dialler, self, options)
        self.server = RemotingServer(
            Place("127.0.0.1", 0), {codes.PROXY_CALL: self.proxy.handle_forwarded}, closed=self.proxy.remoting_closed
        )

    @property
    def held(self) -> int:
        return self.proxy.figures().held_sends

    def stored(self) -> list[tuple[bytes, int]]:
        return [(bytes(decode_record(each.record).body), each.queue_id) for each in self.broker.log]

    async def start(self) -> None:
        await self.proxy.start()
        await self.server.start()

    async def close(self) -> None:
        await self.proxy.close()
        self.dialler.close()
        await self.server.close()


@contextlib.asynccontextmanager
async def next_of(former: Master) -> AsyncIterator[Master]:
    """Who becomes the master of a broker group whose master stepped down."""
    master = Master(former.name, ForwardSettings(hold_ms=60_000))
    await master.start()
    try:
        yield master
    finally:
        await master.close()


@contextlib.asynccontextmanager
async def two(**settings: int) -> AsyncIterator[tuple[Master, Master, RawClient]]:
    """Masters of two broker groups that know one another, and a client of the first."""
    given = ForwardSettings(**{"hold_ms": 60_000, **settings})
    one, other = Master("broker-a", given), Master("broker-b", given)
    for each in (one, other):
        await each.start()
    one.owners.masters["broker-b"] = f"127.0.0.1:{other.server.port}"
    client = await RawClient.connect(one.proxy.endpoint.port)
    try:
        yield one, other, client
    finally:
        await client.close()
        for each in (one, other):
            await each.close()


def order(body: bytes = b"x", group: str = "blue"):
    return sending(body, topic="Orders", message_group=group)


async def send(client: RawClient, request=None) -> int:
    answer = await client.call("SendMessage", request or order(), service.SendMessageResponse)
    assert len(answer.entries) in (0, len((request or order()).messages))
    return answer.status.code


async def told(client: RawClient, stream_id: int) -> int:
    found, _ = await client.answer(stream_id, service.SendMessageResponse)
    return found[0].status.code


async def test_the_owner_here_has_the_queue_that_the_placement_says() -> None:
    async with two() as (one, _, client):
        one.owners.known["blue"] = "broker-a", 3
        assert await send(client) == Code.OK
        assert one.stored() == [(b"x", 3)]


async def test_another_owner_is_passed_the_call() -> None:
    async with two() as (one, other, client):
        one.owners.known["blue"] = other.owners.known["blue"] = "broker-b", 2
        assert [await send(client), await send(client)] == [Code.OK, Code.OK]
        assert (one.stored(), other.stored()) == ([], [(b"x", 2)] * 2)


async def test_it_is_held_while_nobody_owns_it_and_stored_when_somebody_does() -> None:
    async with two() as (one, other, client):
        one.owners.known["blue"] = Waiting.MOVES
        first, second = client.start("SendMessage", order(b"1")), client.start("SendMessage", order(b"2"))
        await until("the call is held", lambda: one.held == 2)
        other.owners.known["blue"] = "broker-b", 0
        one.owners.change(blue=("broker-b", 0))
        assert [await told(client, first), await told(client, second)] == [Code.OK, Code.OK]
        one.owners.known["blue"] = Waiting.MOVES
        third = client.start("SendMessage", order(b"3"))
        await until("the call is held", lambda: one.held == 1)
        one.owners.change(blue=("broker-a", 1))
        assert await told(client, third) == Code.OK
        assert (other.stored(), one.stored()) == ([(b"1", 0), (b"2", 0)], [(b"3", 1)])


async def test_what_is_held_too_long_is_refused() -> None:
    async with two(hold_ms=100) as (one, _, client):
        one.owners.known |= {"blue": Waiting.UNKNOWN, "red": ("broker-c", 0)}
        for group in ("blue", "red"):
            answer = await client.call("SendMessage", order(group=group), service.SendMessageResponse)
            assert answer.status.code == Code.HA_NOT_AVAILABLE
            assert "try again" in answer.status.message
        assert one.owners.refreshed, "where the master of broker-c is was asked for"
        assert not one.stored()


async def test_only_so_much_is_held() -> None:
    async with two(max_held=1) as (one, _, client):
        one.owners.known["blue"] = Waiting.MOVES
        first = client.start("SendMessage", order())
        await until("the call is held", lambda: one.held == 1)
        assert await send(client) == Code.TOO_MANY_REQUESTS
        one.owners.change(blue=("broker-a", 0))
        assert await told(client, first) == Code.OK


async def test_who_knows_an_older_placement_is_given_its_call_back() -> None:
    async with two() as (one, other, client):
        one.owners.known["blue"] = "broker-b", 0
        other.owners.known["blue"] = "broker-a", 0
        stream = client.start("SendMessage", order())
        await until("the call is held", lambda: one.held == 1)
        one.owners.change(blue=("broker-a", 2))
        assert await told(client, stream) == Code.OK
        assert (one.stored(), other.stored()) == ([(b"x", 2)], [])


async def test_who_knows_a_newer_placement_is_not_given_its_calls_back_and_keeps_their_order() -> None:
    """What the owner gave back would come behind what was passed on meanwhile."""
    async with two() as (one, other, client):
        one.owners.known["blue"], other.owners.known["blue"] = ("broker-b", 0), Waiting.MOVES
        streams = [client.start("SendMessage", order(body)) for body in (b"1", b"2")]
        await until("the owner holds them", lambda: other.held == 2)
        assert one.held == 0
        other.owners.known["blue"] = "broker-b", 2
        streams.append(client.start("SendMessage", order(b"3")))
        await until("the owner holds the third behind them", lambda: other.held == 3)
        other.owners.change()
        assert {await told(client, stream) for stream in streams} == {Code.OK}
        assert other.stored() == [(b"1", 2), (b"2", 2), (b"3", 2)]


async def test_what_moved_on_is_given_back_to_who_passed_it_on() -> None:
    async with two() as (one, other, client):
        one.owners.known["blue"], other.owners.known["blue"] = ("broker-b", 0), Waiting.MOVES
        first = client.start("SendMessage", order(b"1"))
        await until("the owner holds it", lambda: other.held == 1)
        one.owners.change(blue=("broker-a", 1))
        second = client.start("SendMessage", order(b"2"))
        await until("the second waits, as the first may come back", lambda: one.held == 1)
        other.owners.change(blue=("broker-a", 1))
        assert [await told(client, first), await told(client, second)] == [Code.OK, Code.OK]
        assert (one.stored(), other.stored()) == ([(b"1", 1), (b"2", 1)], [])


async def test_nobody_overtakes_what_is_held() -> None:
    async with two() as (one, _, client):
        one.owners.known["blue"] = Waiting.MOVES
        first = client.start("SendMessage", order(b"1"))
        await until("the call is held", lambda: one.held == 1)
        one.owners.known |= {"blue": ("broker-a", 1), "red": ("broker-a", 1)}
        second = client.start("SendMessage", order(b"2"))
        await until("the second waits behind it", lambda: one.held == 2)
        assert await send(client, order(b"of another", "red")) == Code.OK
        one.owners.change()
        assert [await told(client, first), await told(client, second)] == [Code.OK, Code.OK]
        assert one.stored() == [(b"of another", 1), (b"1", 1), (b"2", 1)]


async def test_a_request_of_which_a_part_moves_waits_and_is_decided_then() -> None:
    async with two() as (one, _, client):
        one.owners.known |= {"blue": ("broker-a", 1), "red": Waiting.MOVES}
        request = order(b"1")
        request.messages.append(order(b"2", "red").messages[0])
        stream = client.start("SendMessage", request)
        await until("the call is held", lambda: one.held == 1)
        later = client.start("SendMessage", order(b"3"))
        await until("what comes for either waits", lambda: one.held == 2)
        one.owners.change(red=("broker-a", 2))
        assert [await told(client, stream), await told(client, later)] == [Code.OK, Code.OK]
        assert one.stored() == [(b"1", 1), (b"2", 2), (b"3", 1)]


async def test_who_is_given_back_again_and_again_is_refused_in_the_end() -> None:
    async with two(hold_ms=300) as (one, other, client):
        one.owners.known["blue"], other.owners.known["blue"] = ("broker-b", 0), ("broker-a", 0)
        assert await send(client) == Code.HA_NOT_AVAILABLE


async def test_a_call_whose_outcome_is_unknown_is_not_repeated() -> None:
    async with two() as (one, other, client):
        one.owners.known["blue"] = other.owners.known["blue"] = "broker-b", 0
        assert await send(client) == Code.OK

        def die(*_: object) -> None:
            for connection in list(other.server.connections):
                connection.abort()

        other.broker.send = die  # type: ignore[method-assign]
        answer = await client.call("SendMessage", order(), service.SendMessageResponse)
        assert (answer.status.code, answer.status.message[-11:]) == (Code.HA_NOT_AVAILABLE, " is unknown")
        assert not one.held


async def test_an_owner_that_does_not_answer_is_asked_only_so_much() -> None:
    async with two(max_in_flight_bytes=len(order().SerializeToString())) as (one, other, client):
        one.owners.known["blue"] = other.owners.known["blue"] = "broker-b", 0
        assert await send(client) == Code.OK
        send_on = other.broker.send
        asked: list[object] = []
        other.broker.send = lambda *each: asked.append(each)  # type: ignore[method-assign]
        first = client.start("SendMessage", order())
        await until("the owner has the call", lambda: asked)
        assert await send(client) == Code.TOO_MANY_REQUESTS
        other.broker.send = send_on  # type: ignore[method-assign]
        for connection in list(other.server.connections):
            connection.abort()
        assert await told(client, first) == Code.HA_NOT_AVAILABLE
        assert await send(client) == Code.OK


async def test_a_request_for_different_owners_is_refused() -> None:
    async with two() as (one, other, client):
        one.owners.known |= {"blue": ("broker-a", 0), "red": ("broker-b", 0)}
        request = order()
        request.messages.append(order(group="red").messages[0])
        assert await send(client, request) == Code.BAD_REQUEST
        assert not one.stored()
        assert not other.stored()


async def test_a_queue_that_is_gone_is_waited_for() -> None:
    async with two(hold_ms=50) as (one, _, client):
        one.owners.known["blue"] = "broker-a", 9
        assert await send(client) == Code.HA_NOT_AVAILABLE


async def test_a_queue_that_stays_gone_is_not_waited_for_without_end() -> None:
    """The change that its message groups wait for cannot be made while another broker group is down."""
    async with two(hold_ms=300) as (one, _, client):
        one.owners.known["blue"] = "broker-a", 9
        one.owners.masters["broker-a"] = f"127.0.0.1:{one.server.port}"
        async with asyncio.timeout(5):
            assert await send(client) == Code.HA_NOT_AVAILABLE
        assert not one.server.connections, "a master does not ask itself"


async def test_all_that_waited_becomes_one_append() -> None:
    async with two() as (one, _, client):
        one.owners.known["blue"] = Waiting.MOVES
        streams = [client.start("SendMessage", order(str(number).encode())) for number in range(20)]
        await until("the calls are held", lambda: one.held == 20)
        appends: list[int] = []
        send_on = one.broker.send
        one.broker.send = lambda drafts, done: (appends.append(len(drafts)), send_on(drafts, done))  # type: ignore[method-assign]
        one.owners.change(blue=("broker-a", 1))
        assert {await told(client, stream) for stream in streams} == {Code.OK}
        assert appends == [20]
        assert [body for body, _ in one.stored()] == [str(number).encode() for number in range(20)]


async def test_stopping_refuses_what_is_held_and_gives_back_what_was_passed_on() -> None:
    async with two() as (one, other, client):
        one.owners.known |= {"blue": Waiting.MOVES, "red": ("broker-b", 0)}
        other.owners.known["red"] = Waiting.MOVES
        stream, passed_on = (client.start("SendMessage", order(group=group)) for group in ("blue", "red"))
        await until("the calls are held", lambda: (one.held, other.held) == (1, 1))
        other.proxy._placed_sends.stop()
        await until("it is given back", lambda: one.held == 2)
        one.proxy._placed_sends.stop()
        assert [await told(client, each) for each in (stream, passed_on)] == [Code.HA_NOT_AVAILABLE] * 2


@pytest.mark.parametrize("is_planned", [False, True])
async def test_who_is_not_the_master_any_more_gives_what_it_holds_to_the_next_one(is_planned: bool) -> None:
    async with two() as (one, _, client), next_of(one) as successor:
        one.owners.known["blue"] = Waiting.MOVES
        streams = [client.start("SendMessage", order(body)) for body in (b"1", b"2")]
        await until("the calls are held", lambda: one.held == 2)
        one.is_handing_over, one.is_master = is_planned, is_planned
        streams.append(client.start("SendMessage", order(b"3")))
        await until("nothing is held there", lambda: one.held == 0)
        one.is_master, one.master_address = False, f"127.0.0.1:{successor.server.port}"
        assert {await told(client, stream) for stream in streams} == {Code.OK}
        assert (one.stored(), [body for body, _ in successor.stored()]) == ([], [b"1", b"2", b"3"])


async def test_what_another_broker_group_passed_on_is_passed_on_to_the_next_master() -> None:
    async with two() as (one, other, client), next_of(other) as successor:
        one.owners.known["blue"], other.owners.known["blue"] = ("broker-b", 0), Waiting.MOVES
        streams = [client.start("SendMessage", order(body)) for body in (b"1", b"2")]
        await until("the owner holds them", lambda: other.held == 2)
        other.is_master = False
        await until("they are given back", lambda: one.held == 2)
        one.owners.masters["broker-b"] = f"127.0.0.1:{successor.server.port}"
        assert {await told(client, stream) for stream in streams} == {Code.OK}
        assert [body for body, _ in successor.stored()] == [b"1", b"2"]


async def test_what_a_replica_forwarded_is_forwarded_to_the_next_master() -> None:
    async with two() as (one, other, client), next_of(other) as successor:
        one.is_master, one.master_address = False, f"127.0.0.1:{other.server.port}"
        other.owners.known["blue"] = Waiting.MOVES
        streams = [client.start("SendMessage", order(body)) for body in (b"1", b"2")]
        await until("the master holds them", lambda: other.held == 2)
        other.is_master = False
        await until("nothing is held there", lambda: other.held == 0)
        one.master_address = f"127.0.0.1:{successor.server.port}"
        assert {await told(client, stream) for stream in streams} == {Code.OK}
        assert [body for body, _ in successor.stored()] == [b"1", b"2"]


async def test_what_comes_back_while_it_is_carried_out_is_not_overtaken_by_what_left_with_it() -> None:
    async with two() as (one, _, client):
        one.owners.known |= {"blue": ("broker-a", 0), "red": Waiting.MOVES}
        both = order(b"1")
        both.messages.append(order(b"1", "red").messages[0])
        streams = [client.start("SendMessage", both), client.start("SendMessage", order(b"2"))]
        await until("the calls are held", lambda: one.held == 2)
        carried_out = []
        carry_out = one.proxy._placed_sends.carry_out
        one.proxy._placed_sends.carry_out = lambda: carried_out.append(carry_out())
        one.owners.change(red=("broker-a", 9))
        await until("they were tried", lambda: carried_out)
        one.owners.change(red=("broker-a", 1))
        assert {await told(client, stream) for stream in streams} == {Code.OK}
        assert [body for body, _ in one.stored()] == [b"1", b"1", b"2"]


# ---- recalls, which belong to the broker group that their handle names


async def recall(client: RawClient, handle: str):
    request = service.RecallMessageRequest(topic={"name": "Later"}, recall_handle=handle)
    return await client.call("RecallMessage", request, service.RecallMessageResponse)


def handle_of(broker_name: str, key: bytes) -> str:
    return encode_handle(Recallable("Later", broker_name, 1_700_000_000_000, "U", 7), key)


async def test_the_group_that_gave_a_handle_is_passed_the_recall() -> None:
    async with two() as (one, other, client):
        one.broker.add_topic("Later", "DELAY")
        other.broker.add_topic("Later", "DELAY")
        handle = handle_of("broker-b", KEY)
        answer = await recall(client, handle)
        assert (answer.status.code, answer.message_id) == (Code.OK, "U")
        assert [each.place for each in other.broker.timers.recalled] == [7]
        assert not one.broker.timers.recalled
        again = await recall(client, handle)
        assert (again.status.code, again.message_id) == (Code.BAD_REQUEST, "")


async def test_a_recall_waits_for_a_group_without_a_master_and_no_longer_than_others() -> None:
    async with two(hold_ms=200) as (one, other, client):
        other.broker.add_topic("Later", "DELAY")
        address = one.owners.masters.pop("broker-b")
        first = client.start(
            "RecallMessage",
            service.RecallMessageRequest(topic={"name": "Later"}, recall_handle=handle_of("broker-b", KEY)),
        )
        await until("the recall is held", lambda: one.held == 1)
        found, _ = await client.answer(first, service.RecallMessageResponse)
        assert found[0].status.code == Code.HA_NOT_AVAILABLE
        one.owners.masters["broker-b"] = address
        assert (await recall(client, handle_of("broker-b", KEY))).status.code == Code.OK


async def test_a_handle_of_a_group_that_the_cluster_does_not_have_is_refused_at_once() -> None:
    async with two() as (one, _, client):
        answer = await recall(client, handle_of("broker-z", KEY))
        assert answer.status.code == Code.BAD_REQUEST
        assert "broker-z" in answer.status.message
        assert one.held == 0


async def test_nobody_passes_a_recall_on_twice() -> None:
    """A broker group that is thought to be another one gives the recall back, and it is held like any other."""
    async with two(hold_ms=100) as (one, other, client):
        one.owners.masters["broker-c"] = one.owners.masters["broker-b"]
        one.owners.groups.add("broker-c")
        answer = await recall(client, handle_of("broker-c", KEY))
        assert answer.status.code == Code.HA_NOT_AVAILABLE
        assert not other.broker.timers.recalled
