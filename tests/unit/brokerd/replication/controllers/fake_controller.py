"""A controller on a real socket: one node, no log, the rules of `group.Controller` without its schedule."""

from __future__ import annotations

from typing import Any

import orjson

from remoting import codes
from remoting.frame import Command
from remoting.transport.connection import RemotingConnection
from remoting.transport.server import Place, RemotingServer, each


class FakeController:
    """Registers, elects (clean, at once when the master's connection closes), alters."""

    def __init__(self) -> None:
        self.registered: dict[int, dict[str, str]] = {}
        self.check_codes: dict[int, str] = {}
        self.beats: dict[int, tuple[RemotingConnection, str]] = {}  # connection and incarnation
        self.master_id: int | None = None
        self.master_incarnation = ""
        self.master_epoch = 0
        self.members: list[int] = []
        self.set_epoch = 0
        self.routes: dict[str, dict[str, str]] = {}
        self.route_bodies: list[Any] = []
        self.elections = 0
        self.hold_alters = False
        self.held: list[tuple[RemotingConnection, Command]] = []
        self.refuse_leadership = False
        self.server = RemotingServer(Place("127.0.0.1", 0), self._handlers(), closed=self._closed)

    async def start(self) -> str:
        await self.server.start()
        return self.address

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def _handlers(self) -> dict[int, Any]:
        return {
            codes.BROKER_HEARTBEAT: each(self._beat),
            codes.CONTROLLER_GET_METADATA_INFO: each(self._metadata),
            codes.CONTROLLER_GET_NEXT_BROKER_ID: each(self._next_id),
            codes.CONTROLLER_APPLY_BROKER_ID: each(self._apply_id),
            codes.CONTROLLER_REGISTER_BROKER: each(self._register),
            codes.CONTROLLER_GET_REPLICA_INFO: each(self._info),
            codes.CONTROLLER_GET_SYNC_STATE_DATA: each(self._sync_state_data),
            codes.CONTROLLER_ELECT_MASTER: each(self._elect),
            codes.CONTROLLER_ALTER_SYNC_STATE_SET: each(self._alter),
            codes.REGISTER_BROKER: each(self._route),
            codes.UNREGISTER_BROKER: each(self._unroute),
        }

    def alive(self) -> list[int]:
        return sorted(broker_id for broker_id, (connection, _) in self.beats.items() if connection.is_open)

    def elect(self, winner: int) -> None:
        assert not self.members or winner in self.members
        self.master_id = winner
        self.master_incarnation = self.beats[winner][1]
        self.master_epoch += 1
        self.members = [winner]
        self.set_epoch += 1
        self.elections += 1

    def _closed(self, connection: RemotingConnection) -> None:
        if self.master_id is not None and self.beats.get(self.master_id, (None,))[0] is connection:
            candidates = [each_id for each_id in self.members if each_id in self.alive()]
            if candidates:
                self.elect(candidates[0])
            else:
                self.master_id = None
                self.master_epoch += 1

    def _beat(self, connection: RemotingConnection, request: Command) -> None:
        self.beats[int(request.ext["brokerId"])] = (connection, request.ext["incarnation"])

    def _metadata(self, connection: RemotingConnection, request: Command) -> None:
        leader = "" if self.refuse_leadership else self.address
        connection.respond(request, ext={"group": "g", "controllerLeaderAddress": leader, "isLeader": "true"})

    def _next_id(self, connection: RemotingConnection, request: Command) -> None:
        connection.respond(request, ext={"nextBrokerId": str(len(self.check_codes) + 1)})

    def _apply_id(self, connection: RemotingConnection, request: Command) -> None:
        broker_id, code = int(request.ext["appliedBrokerId"]), request.ext["registerCheckCode"]
        if self.check_codes.setdefault(broker_id, code) != code:
            connection.respond(request, codes.CONTROLLER_BROKER_ID_INVALID)
        else:
            connection.respond(request)

    def _register(self, connection: RemotingConnection, request: Command) -> None:
        broker_id = int(request.ext["brokerId"])
        if broker_id not in self.check_codes:
            connection.respond(request, codes.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED)
            return
        self.registered[broker_id] = dict(request.ext)
        connection.respond(request, ext={}, body=self._set())

    def _info(self, connection: RemotingConnection, request: Command) -> None:
        connection.respond(request, ext=self._view(), body=self._set())

    def _sync_state_data(self, connection: RemotingConnection, request: Command) -> None:
        (name,) = orjson.loads(request.body)
        replicas = [{"brokerId": broker_id} for broker_id in self.check_codes]
        table = {name: {"inSyncReplicas": [], "notInSyncReplicas": replicas}}
        connection.respond(request, body=orjson.dumps({"replicasInfoTable": table}))

    def _elect(self, connection: RemotingConnection, request: Command) -> None:
        broker_id = int(request.ext["brokerId"])
        restarted = self.master_id == broker_id and self.master_incarnation != request.ext["incarnation"]
        code = codes.SUCCESS
        if self.master_id is None or restarted:
            candidates = [each_id for each_id in self.members or [broker_id] if each_id in self.alive()]
            if candidates:
                self.elect(broker_id if broker_id in candidates else candidates[0])
            else:
                code = codes.CONTROLLER_ELECT_MASTER_FAILED
        else:
            code = codes.CONTROLLER_MASTER_STILL_EXIST
        connection.respond(
            request, code, self._view() if code != codes.CONTROLLER_ELECT_MASTER_FAILED else {}, self._set()
        )

    def _alter(self, connection: RemotingConnection, request: Command) -> None:
        if self.hold_alters:
            self.held.append((connection, request))
            return
        proposed = orjson.loads(request.body)
        members = sorted(proposed["syncStateSet"])
        code = codes.SUCCESS
        if members == self.members:
            code = codes.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
        elif int(request.ext["masterBrokerId"]) != self.master_id:
            code = codes.CONTROLLER_INVALID_MASTER
        elif int(request.ext["masterEpoch"]) != self.master_epoch:
            code = codes.CONTROLLER_FENCED_MASTER_EPOCH
        elif proposed["syncStateSetEpoch"] != self.set_epoch:
            code = codes.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH
        elif not set(members) <= set(self.alive()):
            code = codes.CONTROLLER_BROKER_NOT_ALIVE
        if code != codes.SUCCESS:
            connection.respond(request, code)
            return
        self.members = members
        self.set_epoch += 1
        connection.respond(request, ext={"newSyncStateSetEpoch": str(self.set_epoch)}, body=self._set())

    def _route(self, connection: RemotingConnection, request: Command) -> None:
        self.routes[request.ext["brokerAddr"]] = dict(request.ext)
        self.route_bodies.append(orjson.loads(bytes(request.body)))
        connection.respond(request)

    def _unroute(self, connection: RemotingConnection, request: Command) -> None:
        self.routes.pop(request.ext["brokerAddr"], None)
        connection.respond(request)

    def _view(self) -> dict[str, str]:
        view = {"masterEpoch": str(self.master_epoch), "syncStateSetEpoch": str(self.set_epoch)}
        if self.master_id is not None and self.master_id in self.registered:
            of_master = self.registered[self.master_id]
            view["masterBrokerId"] = str(self.master_id)
            view["masterAddress"] = of_master["brokerAddress"]
            view["masterHaAddress"] = of_master["haAddress"]
            view["masterGrpcAddress"] = of_master["grpcAddress"]
        return view

    def _set(self) -> bytes:
        return orjson.dumps({"syncStateSet": self.members, "syncStateSetEpoch": self.set_epoch})
