"""Requests for old messages in a line: one in a turn of the loop, in turns between connections, and nobody else is put off."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import pytest

from brokerd.loop.cold_line import MOST_STANDING, Clocks, ColdLine, Others
from brokerd.processors.pulling.cold_line import ColdRequests
from remoting import codes
from remoting.errors import LogboomError
from remoting.frame import Command
from remoting.transport.client import connect
from remoting.transport.connection import RemotingConnection
from remoting.transport.limits import ConnectionLimits
from remoting.transport.server import Place, RemotingServer, ServerLimits
from tests.support.turns import Turns

FILES_FROM: Final = 100
LARGE: Final = 1_000_000


class Reader:
    """A connection, and which of its requests were handled."""

    def __init__(self) -> None:
        self.is_open, self.is_slow = True, False
        self.handled: list[int] = []
        self.taken_back: list[int] = []
        self.refused: list[tuple[int, int, str]] = []

    def respond_error(self, request: Command, error: LogboomError) -> None:
        self.refused.append((request.opaque, error.code, str(error)))

    def take_back(self, request: Command) -> None:
        self.taken_back.append(request.opaque)


def is_cold(topic: str, queue_id: int, queue_offset: int) -> bool:
    return topic == "Orders" and queue_id == 0 and queue_offset < FILES_FROM


def note(connection: Any, requests: Sequence[Command]) -> None:
    connection.handled += [request.opaque for request in requests]


def ask(opaque: int, offset: object, topic: str = "Orders") -> Command:
    ext = {"topic": topic, "queueId": "0", "queueOffset": str(offset)}
    return Command(codes.PULL_MESSAGE, opaque, ext, b"body")


def line_of(scheduler: Any) -> ColdLine:
    return ColdLine(scheduler, Clocks(scheduler.time, scheduler.time), lambda: 0.2)


class Line:
    def __init__(self) -> None:
        self.turns = Turns()
        self.line = line_of(self.turns)
        self._handle: Any = ColdRequests(self.line, is_cold, 5000).in_line(note)

    def ask(self, reader: Reader, *requests: Command) -> None:
        self._handle(reader, requests)

    def turn(self) -> None:
        """One turn of the loop: what is due now, and nothing that it asks for."""
        done: list[bool] = []
        self.turns.call_soon(done.append, True)
        while not done:
            self.turns.run_one()


def test_one_is_handled_in_a_turn_and_in_the_order_of_asking() -> None:
    line, one, other = Line(), Reader(), Reader()
    line.ask(one, ask(1, 0), ask(2, 5))
    line.ask(other, ask(3, 0))
    assert (one.handled, other.handled) == ([1], [])
    line.turn()
    assert (one.handled, other.handled) == ([1, 2], [])
    line.turn()
    assert (one.handled, other.handled) == ([1, 2], [3])
    line.turns.run()
    line.ask(one, ask(4, 0))
    assert one.handled == [1, 2, 4], "who is alone waits for nobody"


def test_turns_go_round_between_connections_and_each_is_answered_in_its_order() -> None:
    line, one, other = Line(), Reader(), Reader()
    line.ask(one, ask(1, 0), ask(2, 0), ask(3, 0), ask(4, 0))
    line.turn()
    line.ask(other, ask(5, 0), ask(6, 0))
    assert (one.handled, other.handled) == ([1, 2], [])
    line.turn()
    line.turn()
    assert (one.handled, other.handled) == ([1, 2, 3], [5])
    line.turns.run()
    assert (one.handled, other.handled) == ([1, 2, 3, 4], [5, 6])


@pytest.mark.parametrize("offset", [FILES_FROM, FILES_FROM + 7, 1 << 62, "", "none", "9" * 5000])
def test_what_is_not_cold_and_what_is_no_offset_goes_to_its_handler_at_once(offset: object) -> None:
    line, one, other = Line(), Reader(), Reader()
    line.ask(one, ask(1, 0), ask(2, 0))
    line.ask(other, ask(3, offset), ask(4, 0, topic="Others"))
    assert (one.handled, other.handled) == ([1], [3, 4])


def test_without_a_tier_there_is_no_line() -> None:
    assert ColdRequests(None, is_cold, 5000).in_line(note) is note


def test_who_stood_there_for_too_long_is_refused_and_takes_nobodys_turn() -> None:
    line, one, other = Line(), Reader(), Reader()
    line.line.others = Others(lambda: round(line.turns.time() * 1000), lambda _: None)
    line.turns.run(1)
    line.line.charge(1000)
    line.ask(one, ask(1, 0))
    line.turns.pass_s(5.1)
    line.ask(other, ask(2, 0))
    line.turns.run(100)
    assert (one.handled, other.handled) == ([], [2])
    ((opaque, code, sentence),) = one.refused
    assert (opaque, code) == (1, codes.SYSTEM_BUSY)
    assert "flow.pull_wait_ms" in sentence


def test_when_too_many_stand_there_whoever_comes_is_refused() -> None:
    line, one, other = Line(), Reader(), Reader()
    line.ask(one, *(ask(number, 0) for number in range(MOST_STANDING + 1)))
    line.ask(other, ask(-1, 0), ask(-2, FILES_FROM))
    assert (one.handled, other.handled) == ([0], [-2])
    ((opaque, code, _),) = other.refused
    assert (opaque, code, one.refused) == (-1, codes.SYSTEM_BUSY, [])


def test_a_connection_that_closed_takes_nobodys_turn() -> None:
    line, one, other = Line(), Reader(), Reader()
    line.ask(one, ask(1, 0), ask(2, 0), ask(3, 0))
    line.ask(other, ask(4, 0))
    one.is_open = False
    line.turn()
    assert (one.handled, other.handled) == ([1], [4])


def test_who_does_not_read_his_answers_has_his_requests_back() -> None:
    line, one, other = Line(), Reader(), Reader()
    line.ask(one, ask(1, 0), ask(2, 0))
    line.ask(other, ask(3, 0))
    one.is_slow = True
    line.turn()
    assert (one.handled, one.taken_back, other.handled) == ([1], [2], [3])


async def test_a_client_that_asks_for_much_at_once_is_answered_all_of_it_as_fast_as_it_reads() -> None:
    unsent: list[int] = []

    def large(connection: RemotingConnection, requests: Sequence[Command]) -> None:
        for request in requests:
            assert not connection.is_slow, "what it did not read is bounded by one answer"
            unsent.append(request.opaque)
            connection.respond(request, codes.SUCCESS, {}, bytes(LARGE))

    loop: Any = asyncio.get_running_loop()
    handlers = {codes.PULL_MESSAGE: ColdRequests(line_of(loop), lambda *_: True, 5000).in_line(large)}
    server = RemotingServer(Place("127.0.0.1", 0), handlers, limits=ServerLimits(ConnectionLimits(1 << 22, 64)))
    await server.start()
    try:
        client = await connect(f"127.0.0.1:{server.port}", timeout_ms=60_000)
        fields = {"topic": "Orders", "queueId": "0", "queueOffset": "0"}
        answers = await asyncio.gather(*(client.call(codes.PULL_MESSAGE, fields, timeout_ms=60_000) for _ in range(40)))
        assert [len(answer.body) for answer in answers] == [LARGE] * 40
        assert len(unsent) == 40
        client.close()
    finally:
        await server.close()
