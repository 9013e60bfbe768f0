"""What others ask is handled behind what a taker takes in the next turn of the loop, and in its order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from remoting import frame
from remoting.frame import Command
from remoting.transport.connection import Intake, RemotingConnection
from remoting.transport.limits import ConnectionLimits
from remoting.transport.watch import UnfinishedSettings, Watch
from tests.unit.remoting.test_intake import Transport

ECHO = 900
TAKEN = b"taken"
QUICK = frame.encode_request(ECHO, 3, {"name": "quick"})
HEAD, REST = frame.encode_request(ECHO, 1, {"name": "first"}), frame.encode_request(ECHO, 2, {"name": "second"})


class Service:
    """Takes all that begins with TAKEN in the next turn, and notes what happens when."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._waiting: list[RemotingConnection] = []
        self._loop = asyncio.get_running_loop()

    @property
    def goes_first(self) -> bool:
        return bool(self._waiting)

    def offer(self, connection: RemotingConnection, buffer: bytes) -> bool:
        if not buffer.startswith(TAKEN):
            return False
        self._waiting.append(connection)
        if len(self._waiting) == 1:
            self._loop.call_soon(self._take)
        return True

    def take(self, _connection: RemotingConnection, buffer: bytes, position: int) -> int:
        """Of those that are shown here what others would decode, each QUICK."""
        if not buffer.startswith(QUICK, position):
            return position
        self.seen.append("quick")
        return position + len(QUICK)

    def connection(self, *, is_quick: bool = False) -> RemotingConnection:
        intake = Intake(Watch(UnfinishedSettings()), quick=self) if is_quick else None
        connection = RemotingConnection({ECHO: self._echo}, ConnectionLimits(), taker=self, intake=intake)
        connection.connection_made(Transport("10.0.0.1"))
        return connection

    def _take(self) -> None:
        waiting, self._waiting = self._waiting, []
        for connection in waiting:
            self.seen.append("taken")
            connection.go_on(len(TAKEN), 0, decoding=False)

    def _echo(self, connection: RemotingConnection, requests: Sequence[Command]) -> None:
        for request in requests:
            self.seen.append(request.ext["name"])
            connection.respond(request)


async def seen(act: Callable[[Service, RemotingConnection], None]) -> list[str]:
    """What happened when somebody offered something first, and another connection then had something else."""
    service = Service()
    sender, other = service.connection(), service.connection()
    sender.data_received(TAKEN)
    act(service, other)
    await asyncio.sleep(0)
    return service.seen


async def test_what_others_ask_is_handled_behind_it() -> None:
    assert await seen(lambda _, other: other.data_received(HEAD)) == ["taken", "first"]


async def test_without_anything_to_take_they_are_handled_at_once() -> None:
    service = Service()
    service.connection().data_received(HEAD)
    assert service.seen == ["first"]


async def test_what_comes_meanwhile_follows_in_order() -> None:
    def come(service: Service, other: RemotingConnection) -> None:
        for piece in (HEAD[:7], HEAD[7:] + REST[:5], REST[5:]):
            other.data_received(piece)
        assert not service.seen

    assert await seen(come) == ["taken", "first", "second"]


async def test_what_came_before_the_end_of_a_connection_is_handled_once() -> None:
    def come_and_go(service: Service, other: RemotingConnection) -> None:
        other.data_received(HEAD)
        other.connection_lost(None)
        assert service.seen == ["first"]

    assert await seen(come_and_go) == ["first", "taken"]


async def test_who_was_offered_in_vain_is_decoded_at_once() -> None:
    """Such a connection sends, in a form that is not taken: behind others' sends its own would go a turn later, and alone."""
    service = Service()
    sender, other = service.connection(), service.connection()
    other.data_received(TAKEN)
    await asyncio.sleep(0)
    other._reads_to_decode = 1
    sender.data_received(TAKEN)
    other.data_received(HEAD)
    assert service.seen == ["taken", "first"]


async def test_who_asks_quickly_is_offered_what_is_to_be_taken_and_waits_behind_it() -> None:
    service = Service()
    sender, other = service.connection(), service.connection(is_quick=True)
    for data in (QUICK, QUICK + QUICK, QUICK + HEAD, QUICK):
        other.data_received(data)
    assert service.seen == ["quick", "quick", "quick", "quick", "first", "quick"]
    service.seen.clear()
    sender.data_received(TAKEN)
    other.data_received(QUICK)
    assert not service.seen
    await asyncio.sleep(0)
    assert service.seen == ["taken", "quick"]
    other.data_received(TAKEN)
    other.data_received(QUICK[:9])
    other.data_received(QUICK[9:])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert service.seen == ["taken", "quick", "taken", "quick"]
