"""Watches the cluster from the clients' place: what each controller and each broker says, and what linearizable reads answer.

Only changes are kept. Clients ask it for the newest master that any controller named, as they would ask a name server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import orjson

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.errors import LogboomError
from tests.chaos.addresses import node_at
from tests.chaos.daemons import GROUP
from tests.chaos.history import BrokerView, History, Read, View

_INTERVAL_S: Final = 0.1
_TIMEOUT_MS: Final = 500


class Route(NamedTuple):
    """The newest master that was heard of, and when a controller last named it."""

    master_epoch: int = 0
    address: str | None = None
    heard_s: float = 0.0


class Observer:
    """One thread per node that is watched."""

    def __init__(self, history: History, controllers: Sequence[str], brokers: Sequence[str]) -> None:
        self._history = history
        self._controllers = list(controllers)
        self._stopping = threading.Event()
        self._route = Route()
        self._leader: str | None = None
        self._lock = threading.Lock()
        self.listeners: list[Callable[[Route], None]] = []  # are told of each new route, in a thread of this object
        self._threads = [
            *(self._watcher(address, self._look_at_controller) for address in controllers),
            *(self._watcher(address, self._look_at_broker) for address in brokers),
            threading.Thread(target=self._read_repeatedly, name="reader", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive(), f"{thread.name} hangs"

    def current_route(self) -> Route:
        return self._route

    @property
    def leader(self) -> str | None:
        """The address of the controller that last said of itself that it leads."""
        return self._leader

    def _watcher(self, address: str, look: Callable[[str, SocketConnection, Any], Any]) -> threading.Thread:
        return threading.Thread(target=self._watch, args=(address, look), name=f"watch {address}", daemon=True)

    def _watch(self, address: str, look: Callable[[str, SocketConnection, Any], Any]) -> None:
        last: Any = None
        connection: SocketConnection | None = None
        while not self._stopping.wait(_INTERVAL_S):
            try:
                connection = connection or SocketConnection(address, timeout_ms=_TIMEOUT_MS)
                last = look(address, connection, last)
            except LogboomError:
                if last is not None:
                    self._history.silences.append((time.monotonic(), node_at(address)))
                    last = None  # what it says next is news, whatever it is
                if connection is not None:
                    connection.close()
                    connection = None
        if connection is not None:
            connection.close()

    def _look_at_controller(self, address: str, connection: SocketConnection, last: Any) -> Any:
        start_s = time.monotonic()
        view = orjson.loads(connection.call(codes.CLUSTER_VIEW, timeout_ms=_TIMEOUT_MS).body)
        end_s = time.monotonic()
        own = next(each for each in view["controllers"] if each["address"] == address)
        if own["leader"]:
            self._leader = address
        group = next((each for each in view["groups"] if each["brokerName"] == GROUP), None)
        if group is None or group["syncStateSetEpoch"] is None:
            return None  # one whose own log has not told it of the group yet hears of it as a name server
        names = {each["brokerId"]: each["address"] for each in group["replicas"]}
        master = names.get(group.get("masterBrokerId"))
        self._learn_route(Route(group["masterEpoch"], master, end_s))
        seen = (
            bool(own["leader"]),
            own["term"],
            group["masterEpoch"],
            group["syncStateSetEpoch"],
            node_at(master) if master else None,
            tuple(sorted(node_at(names[each]) for each in group["syncStateSet"] if each in names)),
        )
        if seen != last:
            self._history.views.append(View(start_s, end_s, node_at(address), *seen))
        return seen

    def _learn_route(self, route: Route) -> None:
        with self._lock:
            is_new = route.address is not None and route.master_epoch > self._route.master_epoch
            if is_new or (route.master_epoch, route.address) == self._route[:2]:
                self._route = route
        if is_new:
            for listener in self.listeners:
                listener(route)

    def _look_at_broker(self, address: str, connection: SocketConnection, last: Any) -> Any:
        start_s = time.monotonic()
        state = orjson.loads(connection.call(codes.BROKER_STATE, timeout_ms=_TIMEOUT_MS).body)
        end_s = time.monotonic()
        seen = (
            state["role"],
            state["masterEpoch"],
            state["confirmOffset"],
            state["endOffset"],
            tuple(
                (f"{group['name']} {topic['topic']}", queue["queueId"], queue["consumerOffset"])
                for group in state["groups"]
                for topic in group["topics"]
                for queue in topic["queues"]
                if queue["consumerOffset"] is not None
            ),
            tuple(
                (topic["name"], queue["queueId"], queue["maxOffset"])
                for topic in state["topics"]
                for queue in topic["queues"]
            ),
        )
        if seen != last:
            self._history.broker_views.append(BrokerView(start_s, end_s, node_at(address), *seen))
        return seen

    def _read_repeatedly(self) -> None:
        connection: SocketConnection | None = None
        turn = 0
        while not self._stopping.wait(_INTERVAL_S):
            turn += 1
            # Not only the known leader: one that no longer leads must refuse, and is asked for that
            chosen = self._leader if turn % 3 and self._leader else self._controllers[turn % len(self._controllers)]
            if connection is not None and connection.address != chosen:
                connection.close()
                connection = None
            start_s = time.monotonic()
            try:
                connection = connection or SocketConnection(chosen, timeout_ms=_TIMEOUT_MS)
                ext = {"brokerName": GROUP}
                answer = connection.call(codes.CONTROLLER_GET_REPLICA_INFO, ext, timeout_ms=_TIMEOUT_MS)
            except LogboomError:
                if connection is not None:
                    connection.close()
                    connection = None
                continue
            end_s = time.monotonic()
            set_epoch = int(orjson.loads(answer.body)["syncStateSetEpoch"])
            read = Read(start_s, end_s, node_at(chosen), int(answer.ext["masterEpoch"]), set_epoch)
            self._history.reads.append(read)
