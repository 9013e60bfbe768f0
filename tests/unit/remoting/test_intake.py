"""Connections and the budget for what is unfinished: whatever peers do, and however connections end, nothing of it stays."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest

from remoting import frame
from remoting.frame import Command
from remoting.transport.connection import Intake, RemotingConnection
from remoting.transport.limits import ConnectionLimits
from remoting.transport.unfinished import SMALL_BYTES
from remoting.transport.watch import UnfinishedSettings, Watch

MIB = 1 << 20
ECHO = 900


class Transport(asyncio.Transport):
    """A peer's socket, without one."""

    def __init__(self, host: str) -> None:
        super().__init__({"peername": (host, 1), "sockname": ("127.0.0.1", 2)})
        self.reads = True
        self.is_over = False

    def write(self, data: object) -> None:
        pass

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        assert self.reads
        self.reads = False

    def resume_reading(self) -> None:
        assert not self.reads
        self.reads = True

    def is_closing(self) -> bool:
        return self.is_over

    def close(self) -> None:
        self.is_over = True

    abort = close


class Taker:
    """Takes what begins with a request, some time later."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.offered: list[RemotingConnection] = []

    @property
    def goes_first(self) -> bool:
        return bool(self.offered)

    def offer(self, connection: RemotingConnection, buffer: bytes) -> bool:
        if len(buffer) < frame.PREFIX_BYTES or self._chance.random() < 0.5:
            return False
        self.offered.append(connection)
        return True

    def take(self) -> None:
        offered, self.offered = self.offered, []
        for connection in offered:
            if connection.offered:
                connection.go_on(0, 0, decoding=True)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("asks", [False, True])
async def test_the_budgets_are_empty_after_anything(seed: int, asks: bool) -> None:
    chance = random.Random(seed)
    watch = Watch(UnfinishedSettings(max_bytes=32 * MIB, max_unproven_bytes=24 * MIB))
    taker = Taker(chance)

    def known(head: Command) -> bool:
        return head.ext.get("name") == "ann"

    def echo(connection: RemotingConnection, requests: Sequence[Command]) -> None:
        for request in requests:
            if asks and request.ext.get("name") == "ann":
                connection.prove("ann")
            connection.respond(request)
        if chance.random() < 0.02:
            connection.close()

    coming: dict[RemotingConnection, tuple[Transport, bytes]] = {}

    def begin() -> None:
        intake = Intake(watch, known if asks else None)
        connection = RemotingConnection({ECHO: echo}, ConnectionLimits(), taker=taker, intake=intake)
        transport = Transport(f"10.0.0.{chance.randrange(4)}")
        connection.connection_made(transport)
        coming[connection] = transport, b""

    def come() -> None:
        connection = chance.choice(list(coming))
        transport, data = coming[connection]
        if transport.is_over:
            return lose(connection)
        if not data:
            ext = {"name": chance.choice(["ann", "bob"]), "long": "x" * chance.choice([0, 0, 70_000])}
            sizes = [chance.choice([0, 100, SMALL_BYTES, 100_000, 15 * MIB]) for _ in range(chance.randrange(1, 4))]
            data = b"".join(frame.encode_request(ECHO, 1, ext, bytes(size)) for size in sizes)
            data = b"\xff" * 100 if chance.random() < 0.02 else data
        if transport.reads:
            size = chance.choice([1, 7, 5000, 100_000, 6 * MIB])
            coming[connection] = transport, data[size:]
            connection.data_received(data[:size])
        return None

    def lose(connection: RemotingConnection) -> None:
        del coming[connection]
        connection.connection_lost(None)

    def pass_time() -> None:
        now_ms = int(asyncio.get_running_loop().time() * 1000) + chance.choice([0, 1100, 40_000])
        for budget in (watch.proven, watch.unproven):
            budget.look(now_ms)

    def pause() -> None:
        connection = chance.choice(list(coming))
        connection.pause_writing()
        connection.resume_writing()

    for _ in range(1200):
        if len(coming) < 8:
            begin()
        act: Any = chance.choices([come, taker.take, pass_time, pause, None], [30, 5, 1, 2, 1])[0]
        if act is None:
            lose(chance.choice(list(coming)))
        else:
            act()
        await asyncio.sleep(0)
        live = [connection._incoming._piece for connection in coming if connection._incoming._piece is not None]
        assert len(watch.proven) + len(watch.unproven) == len(live)
        assert not any(piece.is_over for piece in live)
        for connection, (transport, _) in coming.items():
            waits = connection._incoming._piece is not None and connection._incoming._piece.waits
            assert transport.is_over or not (waits and transport.reads), "it waits, and is read all the same"
    for connection in list(coming):
        lose(connection)
    assert (watch.proven.held_bytes, watch.unproven.held_bytes) == (0, 0)
    assert not watch.proven._shares
    assert not watch.unproven._shares
    watch.close()
