"""What tools, name servers and other brokers ask about replication: codes 905, 906, 907, 908 and 1007.

Bodies have the original shapes. Some requests mean nothing here, where epochs tell the common end of two logs and the tables are
records of the log; those are refused with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from brokerd.replication.controllers.controller_session import BrokerNames
from brokerd.replication.controllers.fixed_session import FixedRoles
from brokerd.replication.controllers.session import Session
from brokerd.replication.roles.driver import ReplicaEngine
from brokerd.replication.roles.followership import Stage
from remoting import codes
from remoting.errors import RequestError
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


class ToolRequests:
    """The handlers. `peer_of` gives the address of a replication connection; `wall_ms` is for display."""

    def __init__(
        self,
        engine: ReplicaEngine,
        session: Session,
        names: BrokerNames,
        peer_of: Callable[[int], str],
        now_ms: Callable[[], int],
        wall_ms: Callable[[], int],
    ) -> None:
        self._engine = engine
        self._session = session
        self._names = names
        self._peer_of = peer_of
        self._now_ms = now_ms
        self._wall_ms = wall_ms
        self._rates = TransferRates()

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            codes.NOTIFY_MIN_BROKER_ID_CHANGE: each(self._min_id_changed),
            codes.EXCHANGE_BROKER_HA_INFO: each(self._exchange),
            codes.GET_BROKER_HA_STATUS: each(self._ha_status),
            codes.RESET_MASTER_FLUSH_OFFSET: each(self._reset_flush_offset),
            codes.GET_BROKER_EPOCH_CACHE: each(self._epoch_cache),
        }

    def tick(self, now_ms: int) -> None:
        """Sample how far the bytes have come."""
        core = self._engine.core
        if core.leading is not None:
            positions = {peer.connection: peer.next_offset for peer in core.leading.peers}
        else:
            positions = {-1: core.log.end_offset}
        self._rates.look(positions, now_ms)

    def _min_id_changed(self, connection: RemotingConnection, request: Command) -> None:
        """905: the smallest id of the group is another one. Anybody can say that, so it is only a reason to look."""
        if isinstance(self._session, FixedRoles):
            self._session.min_id_changed(self._now_ms())
        else:
            self._session.notified(self._now_ms())
        connection.respond(request)

    def _exchange(self, connection: RemotingConnection, request: Command) -> None:
        """906: without fields a question, which the master answers; with fields somebody tells where the master is."""
        if any(request.ext.get(name) for name in ("masterHaAddress", "masterFlushOffset", "masterAddress")):
            raise RequestError(
                codes.NO_PERMISSION,
                "this broker learns where its master is from its controllers, or from replication.fixed_master; "
                "it cannot be told by request 906",
            )
        core = self._engine.core
        if core.leading is None:
            connection.respond(request)
        elif isinstance(self._session, FixedRoles):
            connection.respond(request, ext=self._session.exchange_fields(core.log.flushed_offset))
        else:
            ext = {
                "masterAddress": self._names.address,
                "masterHaAddress": self._names.ha_address,
                "masterFlushOffset": str(core.log.flushed_offset),
            }
            connection.respond(request, ext=ext)

    def _reset_flush_offset(self, connection: RemotingConnection, request: Command) -> None:
        raise RequestError(
            codes.ILLEGAL_OPERATION,
            "there is no master flush offset to reset: a replica finds where its log and its master's differ by their epochs",
        )

    def _epoch_cache(self, connection: RemotingConnection, request: Command) -> None:
        core = self._engine.core
        entries = core.epochs.entries
        ends = [entry.start_offset for entry in entries[1:]] + [core.log.end_offset]
        body = {
            "clusterName": self._names.cluster,
            "brokerName": self._names.broker_name,
            "brokerId": core.broker_id,
            "epochList": [
                {"epoch": entry.epoch, "startOffset": entry.start_offset, "endOffset": end}
                for entry, end in zip(entries, ends, strict=True)
            ],
            "maxOffset": core.log.end_offset,
        }
        connection.respond(request, body=orjson.dumps(body))

    def _ha_status(self, connection: RemotingConnection, request: Command) -> None:
        connection.respond(request, body=orjson.dumps(self.ha_status()))

    def ha_status(self) -> dict[str, Any]:
        """HARuntimeInfo. Connections that have not proven themselves are none yet."""
        core = self._engine.core
        body: dict[str, Any] = {
            "master": core.leading is not None,
            "masterCommitLogMaxOffset": core.log.end_offset if core.leading is not None else 0,
            "inSyncSlaveNums": 0,
            "haConnectionInfo": [],
        }
        if core.leading is not None:
            members = core.leading.sync.local
            body["inSyncSlaveNums"] = len(members) - 1
            body["haConnectionInfo"] = [
                {
                    "addr": peer.address or self._peer_of(peer.connection),
                    "slaveAckOffset": peer.ack_offset,
                    "diff": core.log.end_offset - peer.ack_offset,
                    "inSync": peer.broker_id in members,
                    "transferredByteInSecond": self._rates.rate(peer.connection),
                    "transferFromWhere": peer.next_offset,
                }
                for peer in core.leading.peers
                if peer.ack_offset >= 0
            ]
        elif core.following is not None:
            following = core.following
            since_wall_ms = self._wall_ms() - self._now_ms()
            activated = following.stage is Stage.TRANSFER
            body["haClientRuntimeInfo"] = {
                "masterAddr": following.address,
                "transferredByteInSecond": self._rates.rate(-1),
                "maxOffset": core.log.end_offset,
                "lastReadTimestamp": since_wall_ms + following.received_ms,
                "lastWriteTimestamp": since_wall_ms + following.sent_ms,
                "masterFlushOffset": max(0, following.master_confirm_offset),
                "isActivated": activated,
                "activated": activated,
            }
        return body
