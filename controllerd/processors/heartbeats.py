"""BROKER_HEARTBEAT (904): any controller takes it, for its own table; the name server hears that the broker lives.

A heartbeat with a broker id is the controller's; one without is the name server's alone. Owns the numbering of connections, by
which the table tells a broker's present connection from an earlier one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from controllerd.elections import Elections
from controllerd.metrics import Counters
from controllerd.nameserver.handlers import NameServer
from controllerd.processors import fields
from controllerd.processors.serving import Handles
from controllerd.replicas.heartbeat import DEFAULT_TIMEOUT_MS, LOWEST_PRIORITY, Heartbeat, HeartbeatTable
from remoting import codes
from remoting.errors import InvalidParameter, RequestError
from remoting.facts.words import DiskPace
from remoting.frame import Command
from remoting.transport.connection import RemotingConnection

_SAID: Final = {"true": True, "false": False}
_PACES: Final = {each.value: each for each in DiskPace}  # another word is none, as of who does not say
_NAMES: Final = (
    "clusterName",
    "brokerName",
    "brokerId",
    "brokerAddr",
    "heartbeatTimeoutMills",
    "heartbeatIntervalMills",
    "epoch",
    "maxOffset",
    "confirmOffset",
    "electionPriority",
    "incarnation",
    "learner",
    "tailKept",
    "lostConfirmedOffset",
    "hasRoom",
    "lives",
    "disk",
)


MOST_LIVES: Final = 64  # of a directory; brokers keep 16
_MOST_KEPT: Final = 2048  # characters of a connection; a heartbeat has some 200


def _saying(ext: Mapping[str, str]) -> Sequence[str | None]:
    return tuple(map(ext.get, _NAMES))


class HeartbeatProcessor:
    """Feeds the heartbeat table. `now_ms` is monotonic."""

    def __init__(
        self,
        table: HeartbeatTable,
        elections: Elections,
        name_server: NameServer,
        now_ms: Callable[[], int],
        counters: Counters,
    ) -> None:
        self._table = table
        self._elections = elections
        self._name_server = name_server
        self._now_ms = now_ms
        self._counters = counters
        self._numbers: dict[RemotingConnection, int] = {}
        self._next_number = 1
        self._said: dict[RemotingConnection, tuple[Sequence[str | None], Heartbeat]] = {}  # last, and what it came to

    def handles(self) -> Handles:
        return {codes.BROKER_HEARTBEAT: self._heartbeat}

    def connection_closed(self, connection: RemotingConnection) -> None:
        """Who spoke on it is dead until heard again; a dead master is replaced at once."""
        self._said.pop(connection, None)
        number = self._numbers.pop(connection, None)
        if number is not None:
            closed = self._table.connection_closed(number, self._now_ms())
            self._elections.look({broker_name for _, broker_name, _ in closed})

    def _heartbeat(self, connection: RemotingConnection, request: Command) -> None:
        if request.ext.get("brokerId"):
            self._counters.heartbeats += 1
            try:
                beat = self._decode(connection, request)
            except InvalidParameter as error:
                raise RequestError(codes.CONTROLLER_INVALID_REQUEST, error.message) from error
            if self._table.heartbeat(beat, self._now_ms()):
                self._elections.look([request.ext["brokerName"]])
        self._name_server.heartbeat(connection, request)

    def _decode(self, connection: RemotingConnection, request: Command) -> Heartbeat:
        """What it says; mostly the same as the last one."""
        said = _saying(request.ext)
        before = self._said.get(connection)
        if before is not None and before[0] == said:
            return before[1]
        beat = self._decode_anew(connection, request)
        if sum(map(len, filter(None, said))) <= _MOST_KEPT:
            self._said[connection] = said, beat
        return beat

    def _decode_anew(self, connection: RemotingConnection, request: Command) -> Heartbeat:
        number = self._numbers.get(connection)
        if number is None:
            number = self._numbers[connection] = self._next_number
            self._next_number += 1
        return Heartbeat(
            fields.name(request, "clusterName"),
            fields.name(request, "brokerName"),
            fields.number(request, "brokerId"),
            fields.text(request, "brokerAddr"),
            number,
            fields.number(request, "heartbeatTimeoutMills", DEFAULT_TIMEOUT_MS),
            fields.number(request, "heartbeatIntervalMills", 0),
            fields.number(request, "epoch", -1),
            fields.number(request, "maxOffset", -1),
            fields.number(request, "confirmOffset", -1),
            fields.number(request, "electionPriority", LOWEST_PRIORITY),
            fields.number(request, "incarnation", 0),
            fields.flag(request, "learner"),
            request.ext.get("tailKept") == "false",
            lost_confirmed=fields.number(request, "lostConfirmedOffset", -1),
            has_room=_SAID.get(request.ext.get("hasRoom", "")),
            lives=fields.numbers(request, "lives", MOST_LIVES),
            disk=_PACES.get(request.ext.get("disk", "")),
        )
