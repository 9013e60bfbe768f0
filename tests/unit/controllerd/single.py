"""One controller in this process, and brokers that are only what they say: for tests of requests and their answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from controllerd.assembly import Controller
from controllerd.settings import parse
from remoting import codes
from remoting.disk import LocalDisk
from remoting.errors import LogboomError
from remoting.frame import Command
from remoting.transport.client import RemotingClient, connect
from remoting.transport.connection import RemotingConnection
from remoting.transport.server import Place, RemotingServer, each
from tests.support.cluster import free_ports

_TOLD = (codes.NOTIFY_BROKER_ROLE_CHANGED, codes.NOTIFY_MIN_BROKER_ID_CHANGE)
_FAST = ("raft.tick_ms=5", "raft.election_ticks=4", "liveness.grace_ms=100")


class Told:
    """What a broker was told, in order."""

    def __init__(self) -> None:
        self.address = ""
        self._requests: asyncio.Queue[Command] = asyncio.Queue()

    def take(self, connection: RemotingConnection, request: Command) -> None:
        self._requests.put_nowait(Command(request.code, request.opaque, request.ext, bytes(request.body), request.flag))
        connection.respond(request)

    async def next(self) -> Command:
        return await asyncio.wait_for(self._requests.get(), 10)


@dataclass
class Single:
    """A running controller and a client of it."""

    address: str
    metrics_port: int
    client: RemotingClient
    controller: Controller
    brokers: list[RemotingConnection] = field(default_factory=list)

    async def ask(self, code: int, ext: Mapping[str, object] | None = None, body: object = b"") -> Command:
        """Any request; whatever the answer's code."""
        fields = {key: str(value) for key, value in (ext or {}).items()}
        content = body if isinstance(body, bytes) else orjson.dumps(body)
        connection = await self.client.connection(self.address)
        return await connection.call(code, fields, content, 5000)

    async def register(self, broker_id: int, name: str = "broker-a", **more: object) -> Command:
        """Claim an id and register under it."""
        own = {"clusterName": "c", "brokerName": name}
        code = f"127.0.0.1:{1000 + broker_id};7"
        applied = {**own, "appliedBrokerId": broker_id, "registerCheckCode": code}
        answer = await self.ask(codes.CONTROLLER_APPLY_BROKER_ID, applied)
        assert answer.code == codes.SUCCESS, answer.remark
        registered = {**own, "brokerId": broker_id, "brokerAddress": f"127.0.0.1:{1000 + broker_id}", **more}
        answer = await self.ask(codes.CONTROLLER_REGISTER_BROKER, registered)
        assert answer.code == codes.SUCCESS, answer.remark
        return answer

    async def live(self, broker_id: int, name: str = "broker-a", **more: object) -> RemotingConnection:
        """A connection over which a broker's heartbeat was heard; it is dead when the connection closes."""
        connection = await connect(self.address)
        self.brokers.append(connection)
        await self.beat(connection, broker_id, name, **more)
        return connection

    async def beat(
        self, connection: RemotingConnection, broker_id: int, name: str = "broker-a", **more: object
    ) -> None:
        fields = {
            "clusterName": "c",
            "brokerName": name,
            "brokerAddr": f"127.0.0.1:{1000 + broker_id}",
            "brokerId": broker_id,
            "heartbeatTimeoutMills": 60_000,
            "epoch": -1,
            "maxOffset": 100,
            "confirmOffset": 100,
            **more,
        }
        answer = await connection.call(
            codes.BROKER_HEARTBEAT, {key: str(value) for key, value in fields.items()}, b"", 5000
        )
        assert answer.code == codes.SUCCESS, answer.remark

    async def elect(self, broker_id: int = -1, name: str = "broker-a", **more: object) -> Command:
        fields = {"clusterName": "c", "brokerName": name, "brokerId": broker_id, "designateElect": "false", **more}
        return await self.ask(codes.CONTROLLER_ELECT_MASTER, fields)

    async def alter(self, members: Sequence[int], **more: object) -> Command:
        """Change the set as the master that the controller has now; `more` replaces fields."""
        info = await self.info()
        version = more.pop("syncStateSetEpoch", info["syncStateSetEpoch"])
        fields = {
            "brokerName": "broker-a",
            "masterBrokerId": info.get("masterBrokerId", 0),
            "masterEpoch": info["masterEpoch"],
            **more,
        }
        body = {"syncStateSet": list(members), "syncStateSetEpoch": version}
        return await self.ask(codes.CONTROLLER_ALTER_SYNC_STATE_SET, fields, body)

    async def info(self, name: str = "broker-a") -> dict[str, Any]:
        """The group as getSyncStateSet shows it."""
        answer = await self.ask(codes.CONTROLLER_GET_SYNC_STATE_DATA, body=[name])
        found: dict[str, Any] = orjson.loads(answer.body)["replicasInfoTable"][name]
        return found

    async def view(self) -> dict[str, Any]:
        found: dict[str, Any] = orjson.loads((await self.ask(codes.CLUSTER_VIEW)).body)
        return found

    async def group(self) -> dict[str, Any]:
        """The only group, as the console sees it."""
        groups: list[dict[str, Any]] = (await self.view())["groups"]
        return groups[0]

    async def until(
        self,
        condition: Callable[[dict[str, Any]], bool],
        *,
        beating: tuple[RemotingConnection, int, dict[str, object]] | None = None,
    ) -> None:
        """Wait until the only group is so; meanwhile one broker may go on to send heartbeats."""
        async with asyncio.timeout(60):
            while not condition(await self.group()):
                if beating is not None:
                    await self.beat(beating[0], beating[1], **beating[2])
                await asyncio.sleep(0.005)

    async def never_heard_counts(self, broker_id: int) -> bool:
        """Wait until a broker that was never heard counts as dead."""
        group = self.controller._machine.replicas.groups["broker-a"]
        async with asyncio.timeout(60):
            while not self.controller._table.is_dead(group, broker_id, time.monotonic_ns() // 1_000_000):
                await asyncio.sleep(0.005)
        return True

    @asynccontextmanager
    async def broker(self) -> AsyncIterator[Told]:
        """A listener where brokers are told things."""
        told = Told()
        server = RemotingServer(Place("127.0.0.1", 0), {code: each(told.take) for code in _TOLD})
        await server.start()
        told.address = f"127.0.0.1:{server.port}"
        try:
            yield told
        finally:
            await server.close()

    async def scrape(self) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.metrics_port)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return answer.partition(b"\r\n\r\n")[2].decode()


@asynccontextmanager
async def single(directory: Path, *assignments: str, leads: bool = True) -> AsyncIterator[Single]:
    """Run a controller until the block ends; it leads when the block begins, or it never does as its only peer is not there."""
    port, metrics_port, nobody = free_ports(3)
    peers = f"n0=127.0.0.1:{port}" + ("" if leads else f",n1=127.0.0.1:{nobody}")
    words = [*_FAST, f"metrics.port={metrics_port}", *assignments]
    settings = parse(["--data", str(directory), "--peers", peers, *(w for each in words for w in ("--set", each))])
    disk = LocalDisk(directory)
    controller = Controller(settings, disk)
    running = asyncio.ensure_future(controller.run())
    one = Single(settings.address, metrics_port, RemotingClient(), controller)
    try:
        async with asyncio.timeout(60):
            while not await _is_ready(one, running, leads):
                await asyncio.sleep(0.005)
        yield one
    finally:
        one.client.close()
        for broker in one.brokers:
            broker.close()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        disk.close()


async def _is_ready(one: Single, running: asyncio.Future[None], leads: bool) -> bool:
    if running.done():
        await running
    try:
        return (await one.ask(codes.CONTROLLER_GET_METADATA_INFO)).ext["isLeader"] == str(leads).lower()
    except OSError:
        return False
    except LogboomError:
        return False
