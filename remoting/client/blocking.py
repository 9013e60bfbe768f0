"""Administration of a cluster, blocking: what the console and its tasks ask of controllers and brokers.

Writes go to the master of each broker group and are reported per group, because one may succeed and another not. Reads of
cluster facts come from the controllers' view. Every call names its deadline; an unknown outcome is said as such.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import orjson

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.errors import ConnectionLost, LogboomError, RequestError, RequestTimeout
from remoting.facts.broker_state import BrokerState
from remoting.facts.cluster_view import ClusterView
from remoting.facts.codec import decode
from remoting.facts.words import Outcome
from remoting.frame import Command
from remoting.record.codec import Record, decode_records
from remoting.record.properties import encode_properties
from remoting.transport.client import Identity

_CHANGE_TIMEOUT_MS: Final = 10_000

TOOLS_GROUP: Final = "TOOLS_CONSUMER"
_PULL_HAS_SUBSCRIPTION: Final = 4
_FIND_TIMEOUT_MS: Final = 6000  # a broker may first read on for its index
_MAX_LONG: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class NodeOutcome:
    """What became of a change at one node. `detail` is for a person."""

    node: str
    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ControllerChange:
    """What becomes of one controller: `kind` is add-learner, add-voter, promote, demote, remove or move; additions and moves need
    the address."""

    kind: str
    controller_id: str
    address: str = ""


@dataclass(frozen=True, slots=True)
class QueueOffsets:
    """The readable range of one queue: [min_offset, max_offset)."""

    group: str
    queue_id: int
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class PulledMessages:
    """The answer to a pull: records in order and where to go on; the range is the queue's at that moment."""

    records: Sequence[Record]
    next_offset: int
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """A message that was asked for by its key, and the broker group that has it."""

    group: str
    record: Record


class AdminClient:
    """Asks one cluster, given its controllers' addresses. Connections are opened per call and closed after it."""

    def __init__(self, controllers: Sequence[str], *, timeout_ms: int = 3000, identity: Identity | None = None) -> None:
        """Without an identity it is that of this process's environment."""
        self._controllers = list(controllers)
        self._timeout_ms = timeout_ms
        self._identity = identity

    # ---- the cluster

    def cluster_view(self) -> ClusterView:
        """What the controllers know: controllers, groups, replicas. The leader's word if there is one.

        Raises ConnectionLost when no controller answers.
        """
        fallback: ClusterView | None = None
        last_error: LogboomError = ConnectionLost("no controller is configured; set the controllers' addresses")
        addresses = list(self._controllers)
        for address in addresses:
            try:
                with self._connect(address) as connection:
                    answer = connection.call(codes.CLUSTER_VIEW, timeout_ms=self._timeout_ms)
            except LogboomError as error:
                last_error = error
                continue
            view = decode(ClusterView, answer.body)
            leader = next((each.address for each in view.controllers if each.leader), None)
            if leader == address:
                return view
            fallback = fallback or view
            if leader and leader not in addresses and len(addresses) == len(self._controllers):
                addresses.append(leader)  # it joined after this client was given its addresses
        if fallback is None:
            raise last_error
        return fallback

    def masters(self) -> dict[str, str]:
        """Broker name -> remoting address of its master; groups without a master are left out."""
        masters = {}
        for group in self.cluster_view().groups:
            if (master := group.master) is not None and master.address is not None:
                masters[group.broker_name] = master.address
        return masters

    def broker_state(self, address: str) -> BrokerState:
        """What one broker says about itself."""
        with self._connect(address) as connection:
            return decode(BrokerState, connection.call(codes.BROKER_STATE, timeout_ms=self._timeout_ms).body)

    def elect_master(self, cluster: str, group: str, broker_id: int) -> dict[str, str]:
        """Make `broker_id` the master of its group; returns masterBrokerId, masterAddress, masterEpoch.

        Raises RequestError with the controller's reason when it is not eligible.
        """
        ext = {
            "clusterName": cluster,
            "brokerName": group,
            "brokerId": str(broker_id),
            "designateElect": "true",
            "invokeTime": str(_wall_ms()),
        }
        with self.controller_leader() as connection:
            answer = connection.call(
                codes.CONTROLLER_ELECT_MASTER,
                ext,
                timeout_ms=10_000,
                accept=(codes.SUCCESS, codes.CONTROLLER_MASTER_STILL_EXIST),
            )
        return answer.ext

    # ---- the controllers themselves

    def controller_members(self) -> dict[str, Any]:
        """Who belongs to the group of controllers, by the leader's word if there is one.

        `members` lists id, address, role (voter, learner, leaving), leader, alive and behind (entries); ids in `retired` are used
        up. Raises ConnectionLost when no controller answers.
        """
        last_error: LogboomError
        try:
            with self.controller_leader() as connection:
                listing: dict[str, Any] = orjson.loads(
                    connection.call(codes.CONTROLLER_MEMBERS, timeout_ms=self._timeout_ms).body
                )
            return listing
        except LogboomError as error:
            last_error = error
        listings = []
        for address in self._controllers:
            try:
                with self._connect(address) as connection:
                    answer = connection.call(codes.CONTROLLER_MEMBERS, timeout_ms=self._timeout_ms)
            except LogboomError as error:
                last_error = error
            else:
                listings.append(orjson.loads(answer.body))
        if not listings:
            raise last_error
        # Without a leader's word, the one that knows of most decisions.
        newest: dict[str, Any] = max(listings, key=lambda each: (each["isLeader"], each["commitIndex"]))
        return newest

    def change_controller_members(self, changes: Sequence[ControllerChange], *, force: bool = False) -> dict[str, Any]:
        """Change who belongs to the group of controllers, all of it at once; returns the members after it.

        `force` makes changes after which the voters that are there now are no majority. Raises RequestError with the reason when
        the leader refuses; RequestTimeout and ConnectionLost when the outcome is unknown (`controller_members` tells it).
        """
        wanted = [{"kind": each.kind, "id": each.controller_id, "address": each.address} for each in changes]
        body = orjson.dumps({"changes": wanted, "force": force})
        with self.controller_leader() as connection:
            answer = connection.call(codes.CHANGE_CONTROLLER_MEMBERS, body=body, timeout_ms=_CHANGE_TIMEOUT_MS)
        listing: dict[str, Any] = orjson.loads(answer.body)
        return listing

    def add_controller(self, controller_id: str, address: str) -> dict[str, Any]:
        """Bring a new controller in as a learner: it receives everything and has no vote yet."""
        return self.change_controller_members([ControllerChange("add-learner", controller_id, address)])

    def promote_controller(self, controller_id: str) -> dict[str, Any]:
        """Give a learner that has caught up its vote."""
        return self.change_controller_members([ControllerChange("promote", controller_id)])

    def remove_controller(self, controller_id: str) -> dict[str, Any]:
        """Take a controller out for good: its process ends, and its id is never used again."""
        return self.change_controller_members([ControllerChange("remove", controller_id)])

    def transfer_controller_leader(self, controller_id: str) -> dict[str, str]:
        """Let this controller lead; returns controllerLeaderId and controllerLeaderAddress when it does.

        Raises RequestError with the reason when it cannot, or did not take over in time.
        """
        with self.controller_leader() as connection:
            return connection.call(
                codes.TRANSFER_CONTROLLER_LEADER, {"controllerId": controller_id}, timeout_ms=_CHANGE_TIMEOUT_MS
            ).ext

    @contextmanager
    def controller_leader(self) -> Iterator[SocketConnection]:
        """A connection to the controllers' leader. Raises ConnectionLost or RequestError when there is none."""
        last_error: LogboomError = ConnectionLost("no controller is configured; set the controllers' addresses")
        for address in self._controllers:
            try:
                with self._connect(address) as connection:
                    leader = connection.call(codes.CONTROLLER_GET_METADATA_INFO).ext.get("controllerLeaderAddress")
                if not leader:
                    last_error = RequestError(
                        codes.CONTROLLER_NOT_LEADER, "the controllers have no leader at the moment"
                    )
                    continue
                leading = self._connect(leader)
            except LogboomError as error:
                last_error = error
                continue
            with leading:
                yield leading
            return
        raise last_error

    # ---- topics and groups

    def create_topic(
        self, name: str, queues: int = 8, message_type: str = "NORMAL", perm: int = 6, group: str | None = None
    ) -> list[NodeOutcome]:
        """Create or change a topic on every group (or one); one outcome per group."""
        ext = {
            "topic": name,
            "defaultTopic": "TBW102",
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues),
            "perm": str(perm),
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
            "attributes": f"+message.type={message_type}",
        }
        return self._change(lambda each: each.call(codes.UPDATE_AND_CREATE_TOPIC, ext), group)

    def delete_topic(self, name: str) -> list[NodeOutcome]:
        """Delete a topic on every group and forget its route; one outcome per group."""
        outcomes = self._change(lambda each: each.call(codes.DELETE_TOPIC_IN_BROKER, {"topic": name}))
        for address in self._controllers:
            try:
                with self._connect(address) as connection:
                    connection.call(codes.DELETE_TOPIC_IN_NAMESRV, {"topic": name})
            except LogboomError as error:
                outcomes.append(NodeOutcome(address, Outcome.UNKNOWN, f"its route may linger: {error}"))
        return outcomes

    def topic_config(self, name: str) -> dict[str, dict[str, Any]]:
        """Broker name -> the topic's configuration there; groups without it are left out."""
        found = {}
        for broker_name, address in self.masters().items():
            with self._connect(address) as connection:
                tables = orjson.loads(connection.call(codes.GET_ALL_TOPIC_CONFIG, timeout_ms=self._timeout_ms).body)
            config = tables["topicConfigTable"].get(name)
            if config is not None:
                found[broker_name] = config
        return found

    def create_group(self, name: str, fifo: bool = False, retry_max_times: int = 16) -> list[NodeOutcome]:
        """Create or change a consumer group on every broker group; one outcome per broker group."""
        body = orjson.dumps(
            {"groupName": name, "consumeMessageOrderly": fifo, "retryMaxTimes": retry_max_times, "consumeEnable": True}
        )
        return self._change(lambda each: each.call(codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body))

    def delete_group(self, name: str) -> list[NodeOutcome]:
        """Delete a consumer group and its offsets; one outcome per broker group."""
        ext = {"groupName": name, "cleanOffset": "true"}
        return self._change(lambda each: each.call(codes.DELETE_SUBSCRIPTIONGROUP, ext))

    # ---- messages

    def queue_offsets(self, topic: str) -> list[QueueOffsets]:
        """The readable range of every queue of a topic. Raises RequestError TOPIC_NOT_EXIST when nobody has it."""
        ranges = []
        for broker_name, (address, queues) in self._topic_queues(topic).items():
            with self._connect(address) as connection:
                for queue_id in range(queues):
                    ext = {"topic": topic, "queueId": str(queue_id)}
                    low = int(connection.call(codes.GET_MIN_OFFSET, ext).ext["offset"])
                    high = int(connection.call(codes.GET_MAX_OFFSET, ext).ext["offset"])
                    ranges.append(QueueOffsets(broker_name, queue_id, low, high))
        return ranges

    def pull(self, topic: str, group: str, queue_id: int, offset: int, count: int = 32) -> PulledMessages:
        """Read messages of one queue of a broker group from `offset` on, without consuming them."""
        ext = {
            "consumerGroup": TOOLS_GROUP,
            "topic": topic,
            "queueId": str(queue_id),
            "queueOffset": str(offset),
            "maxMsgNums": str(count),
            "sysFlag": str(_PULL_HAS_SUBSCRIPTION),
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
        }
        accept = (codes.SUCCESS, codes.PULL_NOT_FOUND, codes.PULL_RETRY_IMMEDIATELY, codes.PULL_OFFSET_MOVED)
        with self._master(group) as connection:
            answer = connection.call(codes.PULL_MESSAGE, ext, timeout_ms=self._timeout_ms, accept=accept)
        records = list(decode_records(answer.body)) if answer.code == codes.SUCCESS else []
        return PulledMessages(
            records, int(answer.ext["nextBeginOffset"]), int(answer.ext["minOffset"]), int(answer.ext["maxOffset"])
        )

    def search_offset(self, topic: str, group: str, queue_id: int, timestamp_ms: int) -> int:
        """The first queue offset stored at or after the time (milliseconds since the epoch)."""
        ext = {"topic": topic, "queueId": str(queue_id), "timestamp": str(timestamp_ms)}
        with self._master(group) as connection:
            return int(
                connection.call(codes.SEARCH_OFFSET_BY_TIMESTAMP, ext, timeout_ms=self._timeout_ms).ext["offset"]
            )

    def find(self, topic: str, key: str, count: int = 32) -> list[FoundMessage]:
        """The newest messages of a topic with a key or unique id: up to `count` of each group's master, oldest first.

        Raises RequestError TOPIC_NOT_EXIST when nobody has the topic.
        """
        ext = {"topic": topic, "key": key, "maxNum": str(count), "beginTimestamp": "0", "endTimestamp": str(_MAX_LONG)}
        found = []
        for broker_name, (address, _) in self._topic_queues(topic).items():
            with self._connect(address) as connection:
                answer = connection.call(
                    codes.QUERY_MESSAGE, ext, timeout_ms=_FIND_TIMEOUT_MS, accept=(codes.SUCCESS, codes.QUERY_NOT_FOUND)
                )
            if answer.code == codes.SUCCESS:
                found += [FoundMessage(broker_name, record) for record in decode_records(answer.body)]
        found.sort(key=lambda each: each.record.store_timestamp_ms)
        return found[-count:]

    def send(
        self,
        topic: str,
        body: bytes,
        keys: str = "",
        tag: str = "",
        properties: Mapping[str, str] | None = None,
        group: str | None = None,
    ) -> dict[str, str]:
        """Send one message; returns msgId, queueId, queueOffset and brokerName of where it was stored."""
        routes = self._topic_queues(topic)
        broker_name = group if group in routes else next(iter(routes))
        address, _ = routes[broker_name]
        all_properties = {**(properties or {}), "KEYS": keys, "TAGS": tag}
        ext = {
            "a": "LOGBOOM_CONSOLE",
            "b": topic,
            "c": "TBW102",
            "d": "4",
            "e": "-1",
            "f": "0",
            "g": str(_wall_ms()),
            "h": "0",
            "i": encode_properties(all_properties).decode(),
            "j": "0",
            "k": "false",
            "m": "false",
        }
        with self._connect(address) as connection:
            answer = connection.call(codes.SEND_MESSAGE_V2, ext, body, timeout_ms=10_000)
        return {**answer.ext, "brokerName": broker_name}

    # ---- inside

    def _connect(self, address: str) -> SocketConnection:
        return SocketConnection(address, timeout_ms=self._timeout_ms, identity=self._identity)

    @contextmanager
    def _master(self, group: str) -> Iterator[SocketConnection]:
        address = self.masters().get(group)
        if address is None:
            raise RequestError(codes.SERVICE_NOT_AVAILABLE, f"broker group {group} has no master at the moment")
        with self._connect(address) as connection:
            yield connection

    def _topic_queues(self, topic: str) -> dict[str, tuple[str, int]]:
        """Broker name -> (master's address, number of readable queues) of a topic's route."""
        route = orjson.loads(self._ask_any_controller(codes.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}).body)
        addresses = {each["brokerName"]: each["brokerAddrs"].get("0") for each in route["brokerDatas"]}
        return {
            each["brokerName"]: (addresses[each["brokerName"]], each["readQueueNums"])
            for each in route["queueDatas"]
            if addresses.get(each["brokerName"])
        }

    def _ask_any_controller(self, code: int, ext: Mapping[str, str]) -> Command:
        last_error: LogboomError = ConnectionLost("no controller is configured; set the controllers' addresses")
        for address in self._controllers:
            try:
                with self._connect(address) as connection:
                    return connection.call(code, ext, timeout_ms=self._timeout_ms)
            except (ConnectionLost, RequestTimeout) as error:
                last_error = error
        raise last_error

    def _change(self, change: Callable[[SocketConnection], Command], only: str | None = None) -> list[NodeOutcome]:
        outcomes = []
        names = sorted(each.broker_name for each in self.cluster_view().groups)
        if not names:
            raise RequestError(codes.SERVICE_NOT_AVAILABLE, "no broker has registered yet; start one and try again")
        masters = self.masters()
        for name in names:
            if only is not None and name != only:
                continue
            if name not in masters:
                outcomes.append(NodeOutcome(name, Outcome.NOT_ATTEMPTED, "the group has no master at the moment"))
                continue
            try:
                with self._connect(masters[name]) as connection:
                    answer = change(connection)
                outcomes.append(
                    NodeOutcome(name, Outcome.UNCHANGED if answer.remark == "unchanged" else Outcome.CONFIRMED)
                )
            except RequestError as error:
                outcomes.append(NodeOutcome(name, Outcome.REFUSED, error.message))
            except (ConnectionLost, RequestTimeout) as error:
                outcomes.append(NodeOutcome(name, Outcome.UNKNOWN, str(error)))
        return outcomes


def _wall_ms() -> int:
    """For people who read requests; nothing is decided by it."""
    return time.time_ns() // 1_000_000
