"""Asking a cluster where queues are and how far they go; one connection per address, kept for the life of the object.

Blocking, for Spark's Python workers and the report worker. Not for use by two threads at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import orjson

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.errors import ConnectionLost, LogboomError, RequestError, RequestTimeout
from remoting.facts.broker_state import BrokerState
from remoting.facts.cluster_view import ClusterView, GroupView
from remoting.facts.codec import decode
from tasks.spark.options import EARLIEST, LATEST, Assignment, Options
from tasks.spark.planning import QueueRange

T = TypeVar("T")

_RETRY_EVERY_S = 0.25
_MASTER = "0"  # its number in a route
# A group is without a master for some seconds after a death; a broker that is started again is there within half a minute.
RETRY_FOR_MS = 40_000


class Patience:
    """A deadline for things that pass by waiting."""

    def __init__(self, deadline_s: float, now_s: Callable[[], float], pause: Callable[[float], None]) -> None:
        self._deadline_s = deadline_s
        self._now_s = now_s
        self._pause = pause

    def wait(self) -> bool:
        """Wait a moment; False when the time is over."""
        if self._now_s() >= self._deadline_s:
            return False
        self._pause(_RETRY_EVERY_S)
        return True


class Cluster:
    """The brokers of one cluster, found through its controllers and asked again when a master moved."""

    def __init__(
        self,
        controllers: Sequence[str],
        *,
        timeout_ms: int = 10_000,
        retry_for_ms: int = RETRY_FOR_MS,
        now_s: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._controllers = list(controllers)
        self._timeout_ms = timeout_ms
        self._retry_for_s = retry_for_ms / 1000
        self._now_s = now_s
        self._pause = pause
        self._connections: dict[str, SocketConnection] = {}
        self._masters: dict[str, str] = {}
        self._replicas: dict[str, list[str]] = {}
        self._clusters: dict[str, str] = {}
        self._avoided: set[str] = set()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def queues(self, topic: str) -> dict[str, int]:
        """Broker group -> number of queues of the topic there. Raises RequestError TOPIC_NOT_EXIST when nobody has it."""
        route = self._route(topic)
        self._learn(route)
        return {each["brokerName"]: int(each["readQueueNums"]) for each in route["queueDatas"]}

    def ask_master(self, topic: str, broker_name: str, ask: Callable[[SocketConnection], T]) -> T:
        """Ask the master of a group, wherever it is; while there is none, wait for one as long as allowed.

        A refusal that does not pass by waiting is raised as it is; waiting in vain is a RequestError SERVICE_NOT_AVAILABLE.
        """
        patience = self.patience()
        while True:
            try:
                return ask(self._connect(self._master(topic, broker_name)))
            except (ConnectionLost, RequestTimeout, RequestError) as error:
                self._forget(broker_name)
                if not error.retriable:
                    raise
                if not patience.wait():
                    raise self._in_vain(topic, broker_name, error) from error

    def _in_vain(self, topic: str, broker_name: str, error: LogboomError) -> RequestError:
        sentence = (
            f"{topic} could not be read: no master of the broker group {broker_name} answered for {self._retry_for_s:.0f} s "
            f"({error}). Try again when the group has one."
        )
        return RequestError(codes.SERVICE_NOT_AVAILABLE, sentence)

    def wait_for_masters(self) -> tuple[str, ...]:
        """Wait until each broker group has a master; the names of those that still have none when the time is over.

        A group without one is missing in routes, or has nobody there who could be asked: its topics seem smaller, or gone.
        """
        patience = self.patience()
        while missing := self.without_master():
            if not patience.wait():
                return tuple(sorted(missing))
        return ()

    def without_master(self) -> set[str]:
        """The names of the broker groups that have no master now."""
        return {each.broker_name for each in self._view().groups if not _has_master(each)}

    def replicas(self, topic: str, broker_name: str) -> list[str]:
        """The addresses of a group's replicas beside its master, as the route has them, but those that are avoided."""
        if broker_name not in self._replicas:
            self._learn(self._route(topic))
        return [each for each in self._replicas.get(broker_name, ()) if each not in self._avoided]

    def cluster_of(self, topic: str, broker_name: str) -> str:
        """The name of the cluster that a group with the topic belongs to, as the route has it; "" when it has none."""
        if broker_name not in self._clusters:
            self._learn(self._route(topic))
        return self._clusters.get(broker_name, "")

    def connection(self, address: str) -> SocketConnection:
        """The connection to an address. Raises ConnectionLost when nobody answers there."""
        return self._connect(address)

    def avoid(self, address: str) -> None:
        """Offer a replica no more: it does not serve."""
        self._avoided.add(address)
        if address in self._connections:
            self._connections.pop(address).close()

    def patience(self) -> Patience:
        """How long this cluster may be waited for, from now on."""
        return Patience(self._now_s() + self._retry_for_s, self._now_s, self._pause)

    def user_topics(self) -> list[str]:
        """The topics that are not the system's own, as the masters list them. One that died a moment ago is waited for."""
        patience = self.patience()
        while True:
            try:
                return self._listed_topics()
            except (ConnectionLost, RequestTimeout):
                if not patience.wait():
                    raise

    def groups_with(self, topic: str) -> set[str]:
        """The names of the broker groups whose masters have the topic. Raises ConnectionLost for one that died a moment ago."""
        return {name for name, state in self.states() if any(each.name == topic for each in state.topics)}

    def states(self) -> Iterator[tuple[str, BrokerState]]:
        """The names of the broker groups, and what the master of each says of itself. Raises ConnectionLost for one that died a
        moment ago."""
        for group in self._view().groups:
            if _has_master(group) and (master := group.master) is not None and master.address is not None:
                yield group.broker_name, decode(BrokerState, self._ask(master.address, codes.BROKER_STATE, {}).body)

    def _listed_topics(self) -> list[str]:
        names = {each.name for _, state in self.states() for each in state.topics if not each.system}
        return sorted(names)

    # ---- inside

    def _master(self, topic: str, broker_name: str) -> str:
        address = self._masters.get(broker_name)
        if address is None:
            try:
                self._learn(self._route(topic))
            except RequestError as error:
                # Who asks for a group's master has seen the topic there: a master that starts has not told its topics yet.
                if error.code != codes.TOPIC_NOT_EXIST:
                    raise
            address = self._masters.get(broker_name)
        if address is None:
            raise RequestError(codes.SERVICE_NOT_AVAILABLE, f"broker group {broker_name} has no master at the moment")
        return address

    def _learn(self, route: Mapping[str, Any]) -> None:
        for each in route["brokerDatas"]:
            addresses = each["brokerAddrs"]
            self._clusters[each["brokerName"]] = each["cluster"]
            if addresses.get(_MASTER):
                self._masters[each["brokerName"]] = addresses[_MASTER]
            replicas = sorted((int(number), address) for number, address in addresses.items() if number != _MASTER)
            self._replicas[each["brokerName"]] = [address for _, address in replicas]

    def _forget(self, broker_name: str) -> None:
        address = self._masters.pop(broker_name, None)
        if address is not None and address in self._connections:
            self._connections.pop(address).close()

    def _connect(self, address: str) -> SocketConnection:
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = SocketConnection(address, timeout_ms=self._timeout_ms)
        return connection

    def _route(self, topic: str) -> Mapping[str, Any]:
        route: Mapping[str, Any] = orjson.loads(
            self._ask_any_controller(codes.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}).body
        )
        return route

    def _view(self) -> ClusterView:
        """What the leader of the controllers knows: others do not hear who lives."""
        view = decode(ClusterView, self._ask_any_controller(codes.CLUSTER_VIEW, {}).body)
        leader = next((each for each in view.controllers if each.id == view.leader_id), None)
        if leader is None or leader.leader:
            return view
        try:
            return decode(ClusterView, self._ask(leader.address, codes.CLUSTER_VIEW, {}).body)
        except (ConnectionLost, RequestTimeout):
            return view

    def _ask_any_controller(self, code: int, ext: Mapping[str, str]) -> Any:
        """The first answer. One that refuses may have been started a moment ago: then the others know better."""
        last_error: LogboomError = ConnectionLost("no controller is configured")
        refusal: RequestError | None = None
        for address in self._controllers:
            try:
                return self._ask(address, code, ext)
            except RequestError as error:
                refusal = error
            except (ConnectionLost, RequestTimeout) as error:
                last_error = error
        if refusal is not None:
            raise refusal
        raise ConnectionLost(f"no controller of {', '.join(self._controllers)} answers: {last_error}")

    def _ask(self, address: str, code: int, ext: Mapping[str, str]) -> Any:
        try:
            return self._connect(address).call(code, ext, timeout_ms=self._timeout_ms)
        except (ConnectionLost, RequestTimeout):
            broken = self._connections.pop(address, None)
            if broken is not None:
                broken.close()
            raise


def _has_master(group: GroupView) -> bool:
    master = group.master
    return master is not None and master.address is not None and master.alive is not False


def find_ranges(cluster: Cluster, options: Options) -> list[QueueRange]:
    """The ranges that the options mean now: what is kept of each queue, cut to the wanted part.

    Whoever reads whole topics waits for groups without a master before (`Cluster.wait_for_masters`); assigned queues are waited
    for here.
    """
    ranges = []
    for topic in options.topics:
        present = _present(cluster, topic, options.assignment)
        for broker_name, queue_ids in _chosen(topic, present, options).items():
            for queue_id in queue_ids:
                ranges.append(_range(cluster, options, topic, broker_name, queue_id))
    return [each for each in ranges if each.size > 0]


def _present(cluster: Cluster, topic: str, assignment: Assignment | None) -> dict[str, int]:
    """The topic's queues by group. A group is waited for while its master has the topic and its route does not show that yet; one
    that the assignment names also while it has no master."""
    patience = cluster.patience()
    while True:
        try:
            present = cluster.queues(topic)
        except RequestError as error:
            if error.code != codes.TOPIC_NOT_EXIST:
                raise
            present = {}
        try:
            awaited = _awaited(cluster, topic, assignment, present)
        except (ConnectionLost, RequestTimeout):
            if not patience.wait():
                raise
            continue
        if not awaited or not patience.wait():
            # what is still unknown now is raised
            return present or cluster.queues(topic)


def _awaited(cluster: Cluster, topic: str, assignment: Assignment | None, present: Mapping[str, int]) -> set[str]:
    """The groups whose queues are missing for the moment only."""
    if assignment is None:
        return cluster.groups_with(topic) - present.keys()
    absent = assignment[topic].keys() - present.keys()
    return absent & (cluster.without_master() | cluster.groups_with(topic)) if absent else set()


def _chosen(topic: str, present: Mapping[str, int], options: Options) -> dict[str, Iterable[int]]:
    if options.assignment is None:
        return {broker_name: range(count) for broker_name, count in present.items()}
    chosen: dict[str, Iterable[int]] = {}
    for broker_name, queue_ids in options.assignment[topic].items():
        missing = [each for each in queue_ids if each >= present.get(broker_name, 0)]
        if missing:
            there = ", ".join(f"{name} with {count} queues" for name, count in present.items())
            raise RequestError(
                codes.INVALID_PARAMETER, f"assign: {topic} has no queue {missing[0]} at {broker_name}; it is at {there}"
            )
        chosen[broker_name] = queue_ids
    return chosen


def _range(cluster: Cluster, options: Options, topic: str, broker_name: str, queue_id: int) -> QueueRange:
    where = {"topic": topic, "queueId": str(queue_id)}

    def offset(code: int, **more: str) -> int:
        return cluster.ask_master(
            topic,
            broker_name,
            lambda master: int(master.call(code, {**where, **more}, timeout_ms=options.timeout_ms).ext["offset"]),
        )

    low, high = offset(codes.GET_MIN_OFFSET), offset(codes.GET_MAX_OFFSET)

    def bound(timestamp_ms: int | None, wanted: int) -> int:
        if timestamp_ms is not None:
            return offset(codes.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=str(timestamp_ms))
        return {EARLIEST: low, LATEST: high}.get(wanted, wanted)

    start = bound(options.starting_timestamp_ms, options.starting_offset(topic, broker_name, queue_id))
    end = bound(options.ending_timestamp_ms, options.ending_offset(topic, broker_name, queue_id))
    if start < low and options.fail_on_data_loss:
        raise RequestError(codes.PULL_OFFSET_MOVED, _lost(topic, broker_name, queue_id, start, low))
    start, end = max(start, low), min(end, high)
    return QueueRange(topic, broker_name, queue_id, start, max(start, end))


def _lost(topic: str, broker_name: str, queue_id: int, start: int, low: int) -> str:
    return (
        f"messages {start} to {low} of {topic}, {broker_name}, queue {queue_id} are gone; "
        "start later, or set failOnDataLoss=false to skip them"
    )
