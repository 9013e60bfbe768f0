"""A broker as controllers see it: it takes an id, registers, sends heartbeats to each controller, and hears roles."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import orjson

from remoting import codes
from remoting.disk import Bytes
from remoting.errors import ConnectionLost, LogboomError
from remoting.frame import Command
from remoting.transport.client import RemotingClient, connect
from remoting.transport.connection import RemotingConnection
from remoting.transport.server import Place, RemotingServer, each
from remoting.transport.tasks import TaskOwner

CLUSTER = "DefaultCluster"
NAME = "broker-a"


async def eventually(what: str, condition: Any, timeout_s: float = 60) -> Any:
    """Await until the condition (a coroutine function) gives something true and return it."""
    last: BaseException | None = None
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    if result := await condition():
                        return result
                except LogboomError as error:
                    last = error
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not within {timeout_s} s: {what}; last error: {last}") from None


class FakeBroker:
    """One replica. `max_offset` and `epoch` are what its heartbeats say."""

    def __init__(self, controllers: Sequence[str], *, timeout_ms: int = 1000, incarnation: int = 1) -> None:
        self.controllers = list(controllers)
        self.broker_id = 0
        self.epoch = -1
        self.max_offset = 0
        self.incarnation = incarnation
        self.roles: list[dict[str, str]] = []
        self.is_silent = False
        self._timeout_ms = timeout_ms
        self._server = RemotingServer(Place("127.0.0.1", 0), {codes.NOTIFY_BROKER_ROLE_CHANGED: each(self._told)})
        self._client = RemotingClient()
        self._beating: dict[str, RemotingConnection] = {}
        self._tasks = TaskOwner("fake broker")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.port}"

    async def start(self) -> None:
        """Listen."""
        await self._server.start()

    async def join(self) -> Command:
        """Take an id, register, and begin to send heartbeats; returns the answer to the registration."""
        names = {"clusterName": CLUSTER, "brokerName": NAME}
        answer = await self.ask(codes.CONTROLLER_GET_NEXT_BROKER_ID, names)
        self.broker_id = int(answer.ext["nextBrokerId"])
        applied = {"appliedBrokerId": str(self.broker_id), "registerCheckCode": f"{self.address};1"}
        await self.ask(codes.CONTROLLER_APPLY_BROKER_ID, names | applied)
        registered = await self.register()
        self.beat()
        return registered

    async def register(self) -> Command:
        """Register under the id it has."""
        fields = {
            "clusterName": CLUSTER,
            "brokerName": NAME,
            "brokerId": str(self.broker_id),
            "brokerAddress": self.address,
            "haAddress": "127.0.0.1:1",
            "grpcAddress": "127.0.0.1:2",
        }
        return await self.ask(codes.CONTROLLER_REGISTER_BROKER, fields)

    def beat(self) -> None:
        """Begin to send heartbeats to all controllers."""
        for address in self.controllers:
            self._tasks.spawn(self._beat(address), f"heartbeats to {address}")

    async def elect(self, wanted: int | None = None, *, accept: tuple[int, ...] = (codes.SUCCESS,)) -> Command:
        """Ask for a master; `wanted` designates one as an administrator does."""
        fields = {
            "clusterName": CLUSTER,
            "brokerName": NAME,
            "brokerId": str(wanted or self.broker_id),
            "designateElect": str(wanted is not None).lower(),
        }
        return await self.ask(codes.CONTROLLER_ELECT_MASTER, fields, accept=accept)

    async def alter(self, members: Sequence[int], set_epoch: int, master_epoch: int) -> Command:
        """Propose a sync-state set as the master."""
        fields = {
            "brokerName": NAME,
            "masterBrokerId": str(self.broker_id),
            "masterEpoch": str(master_epoch),
        }
        body = orjson.dumps({"syncStateSet": list(members), "syncStateSetEpoch": set_epoch})
        return await self.ask(codes.CONTROLLER_ALTER_SYNC_STATE_SET, fields, body)

    async def replica_info(self) -> dict[str, str]:
        """What the leader says of the group."""
        return (await self.ask(codes.CONTROLLER_GET_REPLICA_INFO, {"brokerName": NAME})).ext

    async def ask(
        self,
        code: int,
        ext: dict[str, str] | None = None,
        body: Bytes = b"",
        *,
        accept: tuple[int, ...] = (codes.SUCCESS,),
    ) -> Command:
        """Ask the serving leader, whoever that is by now."""

        async def asked() -> Command | None:
            for address in self.controllers:
                try:
                    answer = await self._client.call(
                        address, code, ext, body, accept=(*accept, codes.CONTROLLER_NOT_LEADER)
                    )
                except ConnectionLost:
                    continue
                if answer.code != codes.CONTROLLER_NOT_LEADER:
                    return answer
            return None

        answer: Command = await eventually(f"an answer to request {code}", asked)
        return answer

    def fall_silent(self) -> None:
        """Keep the connections and say nothing more, as a frozen process does."""
        self.is_silent = True

    async def die(self) -> None:
        """Close everything, as a killed process does."""
        await self._tasks.close()
        for connection in self._beating.values():
            connection.abort()
        self._client.close()
        await self._server.close()
        await asyncio.sleep(0)  # the loop closes the sockets

    async def _beat(self, address: str) -> None:
        while True:
            connection = self._beating.get(address)
            if connection is None or not connection.is_open:
                try:
                    connection = self._beating[address] = await connect(address)
                except ConnectionLost:
                    await asyncio.sleep(0.05)
                    continue
            if not self.is_silent:
                connection.notify(codes.BROKER_HEARTBEAT, self._heartbeat())
            await asyncio.sleep(0.1)

    def _heartbeat(self) -> dict[str, str]:
        return {
            "clusterName": CLUSTER,
            "brokerName": NAME,
            "brokerAddr": self.address,
            "brokerId": str(self.broker_id),
            "epoch": str(self.epoch),
            "maxOffset": str(self.max_offset),
            "confirmOffset": str(self.max_offset),
            "heartbeatTimeoutMills": str(self._timeout_ms),
            "incarnation": str(self.incarnation),
        }

    def _told(self, connection: RemotingConnection, request: Command) -> None:
        self.roles.append(dict(request.ext) | {"body": bytes(request.body).decode()})
        connection.respond(request)
