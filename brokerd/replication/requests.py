"""What controllers, tools, name servers and other brokers ask about replication.

Bodies have the original shapes. Some requests mean nothing here, where epochs tell the common end of two logs and the tables are
records of the log; those are refused with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from brokerd.replication.controllers.controller_link import ControllerLink
from brokerd.replication.controllers.session import BrokerNames, Session
from brokerd.replication.roles.followership import CopyStage
from brokerd.replication.sockets.hub import Hub
from remoting import codes
from remoting.errors import InvalidParameter, RequestError
from remoting.frame import Command
from remoting.transport.connection import Handler, RemotingConnection
from remoting.transport.server import each

_RATE_MS: Final = 1000


class TransferRates:
    """Bytes in the last second, of anything that has a growing position (pure)."""

    def __init__(self) -> None:
        self._positions: Mapping[int, int] = {}
        self._rates: dict[int, int] = {}
        self._looked_ms: int | None = None

    def look(self, positions: Mapping[int, int], now_ms: int) -> None:
        """Take a sample, if the last one is a second old."""
        if self._looked_ms is not None:
            passed_ms = now_ms - self._looked_ms
            if passed_ms < _RATE_MS:
                return
            self._rates = {
                key: max(0, position - self._positions[key]) * 1000 // passed_ms
                for key, position in positions.items()
                if key in self._positions
            }
        self._positions, self._looked_ms = dict(positions), now_ms

    def rate(self, key: int) -> int:
        return self._rates.get(key, 0)


class ReplicationRequests:
    """The handlers. `wall_ms` is for display."""

    def __init__(
        self, hub: Hub, session: Session, link: ControllerLink, names: BrokerNames, wall_ms: Callable[[], int]
    ) -> None:
        self._hub = hub
        self._session = session
        self._link = link
        self._names = names
        self._wall_ms = wall_ms
        self._rates = TransferRates()

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            codes.NOTIFY_BROKER_ROLE_CHANGED: each(self._role_changed),
            codes.HAND_OVER_MASTER: each(self._hand_over),
            codes.NOTIFY_MIN_BROKER_ID_CHANGE: each(self._min_id_changed),
            codes.EXCHANGE_BROKER_HA_INFO: each(self._exchange),
            codes.GET_BROKER_HA_STATUS: each(self._ha_status),
            codes.RESET_MASTER_FLUSH_OFFSET: each(self._reset_flush_offset),
            codes.GET_BROKER_EPOCH_CACHE: each(self._epoch_cache),
        }

    def tick(self, now_ms: int) -> None:
        """Sample how far the bytes have come."""
        machine = self._hub.driver.machine
        if machine.mastership is not None:
            positions = {follower.connection: follower.next_offset for follower in machine.mastership.followers}
        else:
            positions = {-1: machine.log.end_offset}
        self._rates.look(positions, now_ms)

    # Of controllers

    def _role_changed(self, connection: RemotingConnection, request: Command) -> None:
        """1008: perhaps another broker is master."""
        self._hub.tell(self._session.notified)
        self._link.step()
        connection.respond(request)

    def _hand_over(self, connection: RemotingConnection, request: Command) -> None:
        """This master's part of a planned switch."""
        successor, epoch, wait_ms, hold_ms = (
            _number(request, name) for name in ("brokerId", "masterEpoch", "waitMs", "holdMs")
        )

        def told(reason: str, end_offset: int) -> None:
            code = codes.SERVICE_NOT_AVAILABLE if reason else codes.SUCCESS
            connection.respond(request, code, {"maxOffset": str(end_offset)}, remark=reason or None)

        self._hub.tell(self._hub.driver.hand_over, successor, epoch, wait_ms, hold_ms, told)

    # Of name servers, brokers and tools

    def _min_id_changed(self, connection: RemotingConnection, request: Command) -> None:
        """905: the smallest id of the group is another one. Anybody can say that, so it is only a reason to look."""
        self._hub.tell(self._session.min_id_changed)
        connection.respond(request)

    def _exchange(self, connection: RemotingConnection, request: Command) -> None:
        """906: without fields a question, which the master answers; with fields somebody tells where the master is."""
        if any(request.ext.get(name) for name in ("masterHaAddress", "masterFlushOffset", "masterAddress")):
            raise RequestError(
                codes.NO_PERMISSION,
                "this broker learns where its master is from its controllers, or from replication.fixed_master; "
                "it cannot be told by request 906",
            )
        machine = self._hub.driver.machine
        ext = None
        if machine.mastership is not None:
            ext = {
                "masterAddress": self._names.address,
                "masterHaAddress": self._names.ha_address,
                "masterFlushOffset": str(machine.log.flushed_offset),
                **self._session.exchange_fields(),
            }
        connection.respond(request, ext=ext)

    def _reset_flush_offset(self, connection: RemotingConnection, request: Command) -> None:
        raise RequestError(
            codes.ILLEGAL_OPERATION,
            "there is no master flush offset to reset: a replica finds where its log and its master's differ by their epochs",
        )

    def _epoch_cache(self, connection: RemotingConnection, request: Command) -> None:
        machine = self._hub.driver.machine
        entries = machine.epochs.entries
        ends = [entry.start_offset for entry in entries[1:]] + [machine.log.end_offset]
        body = {
            "clusterName": self._names.cluster,
            "brokerName": self._names.broker_name,
            "brokerId": machine.broker_id,
            "epochList": [
                {"epoch": entry.epoch, "startOffset": entry.start_offset, "endOffset": end}
                for entry, end in zip(entries, ends, strict=True)
            ],
            "maxOffset": machine.log.end_offset,
        }
        connection.respond(request, body=orjson.dumps(body))

    def _ha_status(self, connection: RemotingConnection, request: Command) -> None:
        """HARuntimeInfo. Connections that have not proven themselves are none yet."""
        machine = self._hub.driver.machine
        body: dict[str, Any] = {
            "master": machine.mastership is not None,
            "masterCommitLogMaxOffset": machine.log.end_offset if machine.mastership is not None else 0,
            "inSyncSlaveNums": 0,
            "haConnectionInfo": [],
        }
        if machine.mastership is not None:
            members = machine.mastership.sync.local
            body["inSyncSlaveNums"] = len(members) - 1
            body["haConnectionInfo"] = [
                {
                    "addr": follower.address or self._hub.peer_of(follower.connection),
                    "slaveAckOffset": follower.ack_offset,
                    "diff": machine.log.end_offset - follower.ack_offset,
                    "inSync": follower.broker_id in members,
                    "transferredByteInSecond": self._rates.rate(follower.connection),
                    "transferFromWhere": follower.next_offset,
                }
                for follower in machine.mastership.followers
                if follower.ack_offset >= 0
            ]
        elif machine.followership is not None:
            followership = machine.followership
            since_wall_ms = self._wall_ms() - self._hub.now_ms()
            activated = followership.stage is CopyStage.TRANSFER
            body["haClientRuntimeInfo"] = {
                "masterAddr": followership.address,
                "transferredByteInSecond": self._rates.rate(-1),
                "maxOffset": machine.log.end_offset,
                "lastReadTimestamp": since_wall_ms + followership.received_ms,
                "lastWriteTimestamp": since_wall_ms + followership.sent_ms,
                "masterFlushOffset": max(0, followership.master_confirm_offset),
                "isActivated": activated,
                "activated": activated,
            }
        connection.respond(request, body=orjson.dumps(body))


def _number(request: Command, name: str) -> int:
    try:
        found = int(request.ext[name])
    except (KeyError, ValueError) as error:
        raise InvalidParameter(f"request {request.code} needs the number {name}") from error
    if found < 0:
        raise InvalidParameter(f"the field {name} of request {request.code} must not be negative")
    return found
