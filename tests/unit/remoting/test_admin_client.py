"""Asking the controllers one after the other: who is asked, and what is said when some are down, slow or without a leader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import orjson
import pytest

from remoting import codes
from remoting.client import blocking
from remoting.client.blocking import AdminClient
from remoting.errors import ConnectionLost, RequestError, RequestTimeout
from remoting.facts.cluster_view import ClusterView, ControllerView
from remoting.facts.codec import encode
from remoting.facts.words import ControllerRole
from remoting.frame import Command
from remoting.transport.connection import RemotingConnection
from remoting.transport.server import Place, RemotingServer, each
from tests.support.cluster import free_ports

ADDRESSES = [f"127.0.0.1:{port}" for port in free_ports(4)]
A, B, C, D = ADDRESSES
GIVEN = [A, B, C]  # what the client was given; D joined later


class Controller:
    """Says who leads, and what the leader says; `asked` are the codes of the requests that it got."""

    def __init__(self, address: str, leader: str | None) -> None:
        self.address = address
        self.leader = leader
        self.asked: list[int] = []
        self.is_silent = False
        self.refusal: tuple[int, str] | None = None
        self.on_refusing: Callable[[], object] = lambda: None
        self.on_asked_in_vain: Callable[[], object] = lambda: None

    def answer(self, connection: RemotingConnection, request: Command) -> None:
        self.asked.append(request.code)
        if self.is_silent:
            return
        if request.code == codes.CONTROLLER_GET_METADATA_INFO:
            connection.respond(request, ext={"controllerLeaderAddress": self.leader} if self.leader else {})
            if self.leader is None:
                self.on_asked_in_vain()
        elif request.code == codes.CLUSTER_VIEW:
            connection.respond(request, body=encode(self._view()))
        elif self.refusal is not None and request.code != codes.CONTROLLER_MEMBERS:
            connection.respond(request, self.refusal[0], remark=self.refusal[1])
            self.on_refusing()
        else:
            listing = {"isLeader": self.leader == self.address, "commitIndex": len(self.address), "by": self.address}
            connection.respond(request, body=orjson.dumps(listing))

    def _view(self) -> ClusterView:
        known = dict.fromkeys((self.address, self.leader or self.address))
        return ClusterView(
            as_of_ms=1,
            leader_id=self.address,  # in these tests: who said it
            controllers=tuple(
                ControllerView(id=each, address=each, role=ControllerRole.FOLLOWER, leader=each == self.leader)
                for each in known
            ),
        )


@asynccontextmanager
async def controllers(*leaders: str | None) -> AsyncIterator[list[Controller]]:
    """As many as are told who leads."""
    found = [Controller(address, leader) for address, leader in zip(ADDRESSES, leaders, strict=False)]
    async with AsyncExitStack() as stack:
        for one in found:
            await start(stack, one)
        yield found


async def start(stack: AsyncExitStack, one: Controller) -> None:
    wanted = (
        codes.CONTROLLER_GET_METADATA_INFO,
        codes.CLUSTER_VIEW,
        codes.CONTROLLER_MEMBERS,
        codes.CHANGE_CONTROLLER_MEMBERS,
    )
    server = RemotingServer(
        Place("127.0.0.1", int(one.address.rpartition(":")[2])), dict.fromkeys(wanted, each(one.answer))
    )
    await server.start()
    stack.push_async_callback(server.close)


async def ask(question: Callable[[AdminClient], Any], *, timeout_ms: int = 2000) -> Any:
    return await asyncio.to_thread(question, AdminClient(GIVEN, timeout_ms=timeout_ms))


def change(client: AdminClient) -> Any:
    return client.promote_controller("n3")


async def test_the_leader_is_asked_whoever_names_it() -> None:
    async with controllers(B, B, B) as (first, second, third):
        assert (await ask(change))["by"] == B
        assert codes.CHANGE_CONTROLLER_MEMBERS in second.asked
        assert first.asked == [codes.CONTROLLER_GET_METADATA_INFO]
        assert third.asked == []


async def test_who_is_down_or_slow_is_passed_over_and_so_is_a_leader_of_yesterday() -> None:
    async with controllers(D, C, C) as (_, second, third):  # nobody is at D
        assert (await ask(change))["by"] == C
        second.is_silent = True
        assert (await ask(change, timeout_ms=100))["by"] == C
        assert third.asked[-2:] == [codes.CONTROLLER_GET_METADATA_INFO, codes.CHANGE_CONTROLLER_MEMBERS]
    async with AsyncExitStack() as stack:
        await start(stack, Controller(C, C))
        assert (await ask(change))["by"] == C


async def test_a_refusal_is_the_leader_s_and_nobody_else_is_asked() -> None:
    async with controllers(A, A, A) as (first, *others):
        first.refusal = (codes.CONTROLLER_INVALID_REQUEST, "it is not a learner")
        with pytest.raises(RequestError, match="it is not a learner"):
            await ask(change)
        assert not any(one.asked for one in others)


async def test_a_leader_that_stepped_down_between_two_questions_is_followed() -> None:
    async with controllers(A, A, A) as (first, second, third):
        first.refusal = (codes.CONTROLLER_NOT_LEADER, "not any more")
        first.on_refusing = lambda: [setattr(one, "leader", None) for one in (first, second, third)]
        first.on_asked_in_vain = lambda: [setattr(one, "leader", B) for one in (first, second, third)]
        assert (await ask(change))["by"] == B
        assert second.asked.count(codes.CHANGE_CONTROLLER_MEMBERS) == 1


async def test_a_leader_that_does_not_serve_yet_is_asked_again() -> None:
    async with controllers(A, A, A) as (first, *_):
        first.refusal = (codes.CONTROLLER_NOT_LEADER, "not yet")
        first.on_refusing = lambda: setattr(first, "refusal", None)
        assert (await ask(change))["by"] == A
        assert first.asked.count(codes.CHANGE_CONTROLLER_MEMBERS) == 2


async def test_who_is_named_and_never_leads_is_not_asked_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "_LEADERSHIP_MOVES_S", 0.2)
    async with controllers(A, A, A) as (first, *_):
        first.refusal = (codes.CONTROLLER_NOT_LEADER, "not any more")
        with pytest.raises(RequestError, match="not any more") as caught:
            await ask(change)
        assert (caught.value.code, caught.value.retriable) == (codes.CONTROLLER_NOT_LEADER, True)
        assert first.asked.count(codes.CHANGE_CONTROLLER_MEMBERS) > 1


@pytest.mark.parametrize("there", [1, 2, 3])
async def test_without_a_leader_that_is_what_is_said_and_not_who_is_down(there: int) -> None:
    async with controllers(*[None] * there):
        with pytest.raises(RequestError, match="no leader at the moment") as caught:
            await ask(change)
        assert caught.value.code == codes.CONTROLLER_NOT_LEADER
        assert (await ask(AdminClient.controller_members))["by"] == A, "they tell all the same who belongs to them"


async def test_when_nobody_answers_that_is_said() -> None:
    for question in (change, AdminClient.cluster_view, AdminClient.controller_members, AdminClient.masters):
        with pytest.raises(ConnectionLost, match=f"cannot connect to {C}"):
            await ask(question)
    with pytest.raises(ConnectionLost, match="set the controllers' addresses"):
        AdminClient([]).cluster_view()


async def test_an_answer_that_does_not_come_leaves_the_outcome_unknown() -> None:
    async with controllers(B, B) as (_, second):
        second.is_silent = True
        with pytest.raises(RequestTimeout):
            await ask(lambda client: client.ask_leader(codes.CHANGE_CONTROLLER_MEMBERS, timeout_ms=100))
        assert second.asked == [codes.CHANGE_CONTROLLER_MEMBERS], "once: it may have been made"


async def test_of_the_cluster_the_leader_tells_even_one_that_joined_later() -> None:
    async with controllers(B, B, B):
        assert (await ask(AdminClient.cluster_view)).leader_id == B
    async with controllers(D, D, D, D) as found:
        assert (await ask(AdminClient.cluster_view)).leader_id == D
        assert [len(one.asked) for one in found] == [1, 1, 1, 1]
    async with controllers(D, C, None):  # nobody is at D, and C does not say that it leads
        assert (await ask(AdminClient.cluster_view)).leader_id == A
