"""Administration of a cluster, blocking: what the console and its tasks ask of controllers and brokers.

Writes go to the master of each broker group and are reported per group, because one may succeed and another not. Reads of
cluster facts come from the controllers' view. Every call names its deadline; an unknown outcome is said as such.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import orjson

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.errors import ConnectionLost, LogboomError, RequestError, RequestTimeout
from remoting.facts.anchors import Anchor
from remoting.facts.broker_state import BrokerState
from remoting.facts.cluster_view import ClusterView
from remoting.facts.codec import decode, encode
from remoting.facts.given_up import GivenUpPage
from remoting.facts.placements import TopicPlacement
from remoting.facts.timers import Recall, RecallRequest, RecallRequests, Recalls, TimerPage
from remoting.facts.words import Outcome
from remoting.frame import Command
from remoting.group_settings import ORDER_SCOPES, GroupSettings, Setting, attribute_changes, settings_of
from remoting.message_groups import SHARDING_KEY, queue_of_group
from remoting.record.codec import Record, decode_records
from remoting.record.hosts import decode_offset_message_id
from remoting.record.layout import SYS_TRANSACTION_PREPARED
from remoting.record.properties import encode_properties
from remoting.transport.identity import Identity

_CHANGE_TIMEOUT_MS: Final = 10_000
_LEADERSHIP_MOVES_S: Final = 2.0
_ASKS_AGAIN_EVERY_S: Final = 0.05
_TOPICS_AT_ONCE: Final = 500

TOOLS_GROUP: Final = "TOOLS_CONSUMER"
PRODUCER_GROUP: Final = "LOGBOOM_CONSOLE"
_PULL_HAS_SUBSCRIPTION: Final = 4
_FIND_TIMEOUT_MS: Final = 15_000  # a broker may first read on for its index, and then look in its tier for 10 s
_MAX_LONG: Final = (1 << 63) - 1
_COMMIT: Final = "8"
_ROLLBACK: Final = "12"


@dataclass(frozen=True, slots=True)
class NodeOutcome:
    """What became of a change at one node. `detail` is for a person."""

    node: str
    outcome: Outcome
    detail: str = ""


def outcome_of(node: str, answer: Command) -> NodeOutcome:
    """What became of a change that a node answered with success."""
    return NodeOutcome(node, Outcome.UNCHANGED if answer.remark == "unchanged" else Outcome.CONFIRMED)


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
        views = []
        joined: str | None = None  # a leader that came after this client was given its addresses
        for address, answer in self._answers(codes.CLUSTER_VIEW):
            view = decode(ClusterView, answer.body)
            leader = next((each.address for each in view.controllers if each.leader), None)
            if leader == address:
                return view
            views.append(view)
            if leader not in self._controllers:
                joined = joined or leader
        if joined:
            with suppress(LogboomError):
                view = decode(ClusterView, self._ask(joined, codes.CLUSTER_VIEW).body)
                if any(each.leader and each.address == joined for each in view.controllers):
                    return view
        return views[0]

    def masters(self) -> dict[str, str]:
        """Broker name -> remoting address of its master; groups without a master are left out."""
        masters = {}
        for group in self.cluster_view().groups:
            if (master := group.master) is not None and master.address is not None:
                masters[group.broker_name] = master.address
        return masters

    def broker_state(self, address: str) -> BrokerState:
        """What one broker says about itself."""
        return decode(BrokerState, self._ask(address, codes.BROKER_STATE).body)

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
        accept = (codes.SUCCESS, codes.CONTROLLER_MASTER_STILL_EXIST)
        return self.ask_leader(codes.CONTROLLER_ELECT_MASTER, ext, accept=accept).ext

    def forget_replicas(self, cluster: str, group: str) -> None:
        """Let the controllers forget the replicas of a broker group that has no master: what they know of epochs stays.

        Raises RequestError with the reason when they refuse.
        """
        fields = {"clusterName": cluster, "brokerName": group, "isCleanLivingBroker": "false"}
        self.ask_leader(codes.CLEAN_BROKER_DATA, fields)

    # ---- the controllers themselves

    def controller_members(self) -> dict[str, Any]:
        """Who belongs to the group of controllers, by the leader's word if there is one.

        `members` lists id, address, role (voter, learner, leaving), leader, alive and behind (entries); ids in `retired` are used
        up. Raises ConnectionLost when no controller answers.
        """
        with suppress(LogboomError):
            return _listing(self.ask_leader(codes.CONTROLLER_MEMBERS, timeout_ms=self._timeout_ms))
        listings = [_listing(answer) for _, answer in self._answers(codes.CONTROLLER_MEMBERS)]
        # Without a leader's word, the one that knows of most decisions.
        return max(listings, key=lambda each: (each["isLeader"], each["commitIndex"]))

    def add_controller(self, controller_id: str, address: str) -> dict[str, Any]:
        """Bring a new controller in as a learner: it receives everything and has no vote yet.

        Returns the members after it, as do the other changes, each when it is complete. Raises RequestError with the reason when
        the leader refuses; RequestTimeout and ConnectionLost when the outcome is unknown (`controller_members` tells it).
        """
        return self._change_controller("add-learner", controller_id, address)

    def promote_controller(self, controller_id: str) -> dict[str, Any]:
        """Give a learner that has caught up its vote."""
        return self._change_controller("promote", controller_id)

    def remove_controller(self, controller_id: str) -> dict[str, Any]:
        """Take a controller out for good: its process ends, and its id is never used again."""
        return self._change_controller("remove", controller_id)

    def _change_controller(self, kind: str, controller_id: str, address: str = "") -> dict[str, Any]:
        body = orjson.dumps({"changes": [{"kind": kind, "id": controller_id, "address": address}]})
        return _listing(self.ask_leader(codes.CHANGE_CONTROLLER_MEMBERS, body=body))

    def transfer_controller_leader(self, controller_id: str) -> dict[str, str]:
        """Let this controller lead; returns controllerLeaderId and controllerLeaderAddress when it does.

        Raises RequestError with the reason when it cannot, or did not take over in time.
        """
        return self.ask_leader(codes.TRANSFER_CONTROLLER_LEADER, {"controllerId": controller_id}).ext

    def ask_leader(
        self,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_ms: int = _CHANGE_TIMEOUT_MS,
        accept: tuple[int, ...] = (codes.SUCCESS,),
    ) -> Command:
        """Ask the controllers' leader. Raises ConnectionLost or RequestError when there is none, or as a connection's `call`.

        Who was named and does not lead (it stepped down meanwhile, or was elected a moment ago and still learns what was decided)
        has done nothing, so it is asked again who leads, for as long as an election usually takes.
        """
        moves_until = time.monotonic() + _LEADERSHIP_MOVES_S
        named = False
        while True:
            try:
                with self._leader() as connection:
                    named = True
                    return connection.call(code, ext, body, timeout_ms=timeout_ms, accept=accept)
            except RequestError as refused:
                is_moving = named and refused.code == codes.CONTROLLER_NOT_LEADER
                if not is_moving or time.monotonic() >= moves_until:
                    raise
            time.sleep(_ASKS_AGAIN_EVERY_S)

    def _leader(self) -> SocketConnection:
        last_error: LogboomError = RequestError(
            codes.CONTROLLER_NOT_LEADER, "the controllers have no leader at the moment"
        )
        for _, answer in self._answers(codes.CONTROLLER_GET_METADATA_INFO):
            if leader := answer.ext.get("controllerLeaderAddress"):
                try:
                    return self._connect(leader)
                except LogboomError as error:
                    last_error = error
        raise last_error

    # ---- topics and groups

    def create_topic(
        self,
        name: str,
        queues: int = 8,
        message_type: str = "NORMAL",
        perm: int = 6,
        group: str | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> list[NodeOutcome]:
        """Create or change a topic on every group (or one); one outcome per group. `attributes` besides its type; those that are
        not named stay."""
        given = {"message.type": message_type, **(attributes or {})}
        ext = {
            "topic": name,
            "defaultTopic": "TBW102",
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues),
            "perm": str(perm),
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
            "attributes": ",".join(f"+{key}={value}" for key, value in given.items()),
        }
        return self._change(codes.UPDATE_AND_CREATE_TOPIC, ext, only=group)

    def put_permissions(self, group: str, perms: Mapping[str, int]) -> list[NodeOutcome]:
        """Change what may be done with topics of one broker group, in order; nothing else of them changes."""
        present = self.topic_configs().get(group, {})
        changed = [{**present[topic], "perm": perm} for topic, perm in perms.items() if topic in present]
        outcomes = []
        for begin in range(0, len(changed), _TOPICS_AT_ONCE):
            body = orjson.dumps({"topicConfigList": changed[begin : begin + _TOPICS_AT_ONCE]})
            outcomes += self._change(codes.UPDATE_AND_CREATE_TOPIC_LIST, body=body, only=group)
        return outcomes

    def delete_topic(self, name: str) -> list[NodeOutcome]:
        """Delete a topic on every group and forget its route; one outcome per group."""
        outcomes = self._change(codes.DELETE_TOPIC_IN_BROKER, {"topic": name})
        for address in self._controllers:
            try:
                self._ask(address, codes.DELETE_TOPIC_IN_NAMESRV, {"topic": name})
            except LogboomError as error:
                outcomes.append(NodeOutcome(address, Outcome.UNKNOWN, f"its route may linger: {error}"))
        return outcomes

    def topic_config(self, name: str) -> dict[str, dict[str, Any]]:
        """Broker name -> the topic's configuration there; groups without it are left out."""
        return {broker_name: topics[name] for broker_name, topics in self.topic_configs().items() if name in topics}

    def topic_configs(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Broker name -> topic -> its configuration there, of the groups that have a master."""
        found = {}
        for broker_name, address in self.masters().items():
            tables = orjson.loads(self._ask(address, codes.GET_ALL_TOPIC_CONFIG).body)
            found[broker_name] = tables["topicConfigTable"]
        return found

    def topic_placement(self, name: str) -> TopicPlacement | None:
        """Which broker groups take the message groups of a topic; None when nothing says, or controllers know of no placements.

        Raises ConnectionLost, RequestTimeout or RequestError when there is no leader to ask.
        """
        accept = (codes.SUCCESS, codes.REQUEST_CODE_NOT_SUPPORTED)
        answer = self.ask_leader(codes.TOPIC_PLACEMENT, {"topic": name}, timeout_ms=self._timeout_ms, accept=accept)
        return decode(TopicPlacement, answer.body) if answer.code == codes.SUCCESS and answer.body else None

    def anchor(self, chain: str) -> Anchor | None:
        """How far a chain of records had come when it was anchored last; None when it never was.

        Raises ConnectionLost, RequestTimeout or RequestError when there is no leader to ask.
        """
        answer = self.ask_leader(codes.GET_ANCHOR, {"chain": chain}, timeout_ms=self._timeout_ms)
        return decode(Anchor, answer.body) if answer.body else None

    def keep_anchor(self, chain: str, anchor: Anchor, *, anew: bool = False) -> None:
        """Have the controllers keep it. Raises RequestError when the chain had come further before, unless it begins anew."""
        ext = {"chain": chain, "sequence": str(anchor.sequence), "digest": anchor.digest, "at": str(anchor.at_ms)}
        self.ask_leader(codes.KEEP_ANCHOR, {**ext, "anew": str(anew).lower()}, timeout_ms=self._timeout_ms)

    def create_group(
        self, name: str, fifo: bool = False, retry_max_times: int = 16, settings: Mapping[str, Setting] | None = None
    ) -> list[NodeOutcome]:
        """Create or change a consumer group on every broker group; one outcome per broker group.

        Without `settings` (`group_settings`) a new one keeps order in each message group, and one that is there keeps its own.
        """
        if settings is None:
            settings = {} if self._has_group(name) else {"order_scope": ORDER_SCOPES[0]}
        config = {
            "groupName": name,
            "consumeMessageOrderly": fifo,
            "retryMaxTimes": retry_max_times,
            "consumeEnable": True,
            "attributes": attribute_changes(settings),
        }
        return self._change(codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=orjson.dumps(config))

    def change_group(self, name: str, settings: Mapping[str, Setting]) -> list[NodeOutcome]:
        """Set, or with None take away, settings of a consumer group on every broker group; nothing else of it changes.

        One outcome per broker group that has a master.
        """
        outcomes = []
        for broker_name, address in self.masters().items():
            try:
                config = self._group_config(address, name)
            except RequestError as error:
                outcomes.append(NodeOutcome(broker_name, Outcome.REFUSED, error.message))
            except (ConnectionLost, RequestTimeout) as error:
                outcomes.append(NodeOutcome(broker_name, Outcome.NOT_ATTEMPTED, str(error)))
            else:
                body = orjson.dumps({**config, "attributes": attribute_changes(settings)})
                outcomes += self._change(codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body, only=broker_name)
        return outcomes

    def group_settings(self, name: str) -> dict[str, GroupSettings]:
        """Broker name -> the consumer group's settings there; groups without it are left out."""
        found = {}
        for broker_name, address in self.masters().items():
            try:
                found[broker_name] = settings_of(self._group_config(address, name)["attributes"])
            except RequestError as error:
                if error.code != codes.SUBSCRIPTION_GROUP_NOT_EXIST:
                    raise
        return found

    def _group_config(self, address: str, name: str) -> dict[str, Any]:
        return _listing(self._ask(address, codes.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": name}))

    def _has_group(self, name: str) -> bool:
        """Whether a master that can be asked has the consumer group."""
        for address in self.masters().values():
            with suppress(ConnectionLost, RequestTimeout):  # the change will say so of that broker
                tables = orjson.loads(self._ask(address, codes.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body)
                if name in tables["subscriptionGroupTable"]:
                    return True
        return False

    def delete_group(self, name: str) -> list[NodeOutcome]:
        """Delete a consumer group and its offsets; one outcome per broker group."""
        ext = {"groupName": name, "cleanOffset": "true"}
        return self._change(codes.DELETE_SUBSCRIPTIONGROUP, ext)

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
        answer = self._ask(self._master(group), codes.PULL_MESSAGE, ext, accept=accept)
        records = list(decode_records(answer.body)) if answer.code == codes.SUCCESS else []
        return PulledMessages(
            records, int(answer.ext["nextBeginOffset"]), int(answer.ext["minOffset"]), int(answer.ext["maxOffset"])
        )

    def search_offset(self, topic: str, group: str, queue_id: int, timestamp_ms: int) -> int:
        """The first queue offset stored at or after the time (milliseconds since the epoch)."""
        ext = {"topic": topic, "queueId": str(queue_id), "timestamp": str(timestamp_ms)}
        return int(self._ask(self._master(group), codes.SEARCH_OFFSET_BY_TIMESTAMP, ext).ext["offset"])

    def find(self, topic: str, key: str, count: int = 32) -> list[FoundMessage]:
        """The newest messages of a topic with a key or unique id: up to `count` of each group's master, oldest first.

        Raises RequestError TOPIC_NOT_EXIST when nobody has the topic.
        """
        ext = {"topic": topic, "key": key, "maxNum": str(count), "beginTimestamp": "0", "endTimestamp": str(_MAX_LONG)}
        found = []
        for broker_name, (address, _) in self._topic_queues(topic).items():
            accept = (codes.SUCCESS, codes.QUERY_NOT_FOUND)
            answer = self._ask(address, codes.QUERY_MESSAGE, ext, timeout_ms=_FIND_TIMEOUT_MS, accept=accept)
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
        *,
        message_group: str = "",
        transaction: bool = False,
    ) -> dict[str, str]:
        """Send one message; returns where it was stored: msgId, transactionId (its unique id), brokerName, queueId, queueOffset.

        `group` is the broker group that shall have it. Messages of one `message_group` go to one queue; while the topic's broker
        groups stay the same, also without `group`. A `transaction` is stored as a half message until `end_transaction`. Raises
        RequestError SERVICE_NOT_AVAILABLE when the broker group does not have the topic, or has no master.
        """
        broker_name, address, queues = self._destination(topic, group, message_group)
        all_properties = {**(properties or {}), "KEYS": keys, "TAGS": tag}
        if message_group:
            all_properties[SHARDING_KEY] = message_group
        if transaction:
            all_properties |= {"TRAN_MSG": "true", "PGROUP": PRODUCER_GROUP}
        ext = {
            "a": PRODUCER_GROUP,
            "b": topic,
            "c": "TBW102",
            "d": "4",
            "e": str(queue_of_group(message_group, queues)) if message_group and queues else "-1",
            "f": str(SYS_TRANSACTION_PREPARED if transaction else 0),
            "g": str(_wall_ms()),
            "h": "0",
            "i": encode_properties(all_properties).decode(),
            "j": "0",
            "k": "false",
            "m": "false",
        }
        answer = self._ask(address, codes.SEND_MESSAGE_V2, ext, body, timeout_ms=_CHANGE_TIMEOUT_MS)
        return {**answer.ext, "brokerName": broker_name}

    def end_transaction(self, topic: str, sent: Mapping[str, str], *, commit: bool) -> None:
        """Commit or roll back a transaction, given what `send` returned. Raises RequestError when the broker refuses."""
        _, _, physical_offset = decode_offset_message_id(sent["msgId"])
        ext = {
            "topic": topic,
            "producerGroup": PRODUCER_GROUP,
            "tranStateTableOffset": sent["queueOffset"],
            "commitLogOffset": str(physical_offset),
            "commitOrRollback": _COMMIT if commit else _ROLLBACK,
            "fromTransactionCheck": "false",
            "msgId": sent.get("transactionId", ""),
            "transactionId": sent.get("transactionId", ""),
        }
        self._ask(self._master(sent["brokerName"]), codes.END_TRANSACTION, ext, timeout_ms=_CHANGE_TIMEOUT_MS)

    def given_up(self, group: str, before: int | None = None, count: int = 100) -> GivenUpPage:
        """Half messages of a broker group that were given up, the newest first; with `before` those at lower offsets."""
        ext = {"count": str(count)} | ({} if before is None else {"before": str(before)})
        return decode(GivenUpPage, self._ask(self._master(group), codes.GIVEN_UP_TRANSACTIONS, ext).body)

    def end_given_up(self, group: str, offset: int, decision: str, decided_by: str) -> None:
        """Commit one of them, or roll it back (`decision`: commit, rollback). The same again changes nothing.

        Raises RequestError when another decision was made, or nobody knows yet whether this one holds.
        """
        ext = {"offset": str(offset), "decision": decision, "decidedBy": decided_by}
        self._ask(self._master(group), codes.END_GIVEN_UP_TRANSACTION, ext, timeout_ms=_CHANGE_TIMEOUT_MS)

    def open_gate(self, group: str, topic: str, source: str) -> bool:
        """Let ordered groups of a broker group wait no more for what of the topic lies in another one, the `source`.

        False: nothing of it waited for that one. Raises RequestError when it is not known whether this holds.
        """
        ext = {"topic": topic, "brokerName": source}
        answer = self._ask(self._master(group), codes.OPEN_GATE, ext, timeout_ms=_CHANGE_TIMEOUT_MS)
        return answer.remark != "unchanged"

    # ---- timers

    def find_timers(
        self,
        group: str,
        *,
        topic: str = "",
        key: str = "",
        from_ms: int | None = None,
        to_ms: int | None = None,
        after: str = "",
        count: int = 100,
    ) -> TimerPage:
        """Timers of a broker group that wait, for a topic or any and due in `[from_ms, to_ms)`; `after` is `next` of the page
        before, which may be empty though more is to come. With a `key` all records of messages that have it as a key or id."""
        ext = {"topic": topic, "key": key, "after": after, "count": str(count)}
        ext |= {"fromMs": str(from_ms)} if from_ms is not None else {}
        ext |= {"toMs": str(to_ms)} if to_ms is not None else {}
        answer = self._ask(self._master(group), codes.FIND_TIMERS, ext, timeout_ms=_FIND_TIMEOUT_MS)
        return decode(TimerPage, answer.body)

    def recall_timers(self, group: str, timers: Sequence[RecallRequest], by: str) -> Sequence[Recall]:
        """Take timers of a broker group back, at most 100; what became of each."""
        body = encode(RecallRequests(timers=tuple(timers)))
        ext = {"by": by}
        answer = self._ask(self._master(group), codes.RECALL_TIMERS, ext, body, timeout_ms=_CHANGE_TIMEOUT_MS)
        return decode(Recalls, answer.body).timers

    # ---- inside

    def _connect(self, address: str) -> SocketConnection:
        return SocketConnection(address, timeout_ms=self._timeout_ms, identity=self._identity)

    def _ask(
        self,
        address: str,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_ms: int | None = None,
        accept: tuple[int, ...] = (codes.SUCCESS,),
    ) -> Command:
        with self._connect(address) as connection:
            return connection.call(code, ext, body, timeout_ms=timeout_ms or self._timeout_ms, accept=accept)

    def _answers(
        self, code: int, ext: Mapping[str, str] | None = None, missed: tuple[type[LogboomError], ...] = (LogboomError,)
    ) -> Iterator[tuple[str, Command]]:
        """What one controller after the other answers, with its address. Raises the last error when they all fail with `missed`,
        any other error at once."""
        last_error: LogboomError = ConnectionLost("no controller is configured; set the controllers' addresses")
        is_answered = False
        for address in self._controllers:
            try:
                answer = self._ask(address, code, ext)
            except missed as error:
                last_error = error
                continue
            is_answered = True
            yield address, answer
        if not is_answered:
            raise last_error

    def _master(self, group: str) -> str:
        address = self.masters().get(group)
        if address is None:
            raise RequestError(codes.SERVICE_NOT_AVAILABLE, f"broker group {group} has no master at the moment")
        return address

    def _route(self, topic: str) -> dict[str, tuple[str | None, dict[str, Any]]]:
        """Broker name -> (master's address, numbers of queues) of a topic's route; no address where there is no master."""
        missed = (ConnectionLost, RequestTimeout)
        _, answer = next(self._answers(codes.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}, missed))
        route = orjson.loads(answer.body)
        addresses = {each["brokerName"]: each["brokerAddrs"].get("0") for each in route["brokerDatas"]}
        return {each["brokerName"]: (addresses.get(each["brokerName"]), each) for each in route["queueDatas"]}

    def _topic_queues(self, topic: str) -> dict[str, tuple[str, int]]:
        """Broker name -> (master's address, number of readable queues) of a topic, where there is a master."""
        route = self._route(topic)
        return {name: (address, queues["readQueueNums"]) for name, (address, queues) in route.items() if address}

    def _destination(self, topic: str, group: str | None, message_group: str) -> tuple[str, str, int]:
        """The broker group, its master's address and number of writable queues for a message; see `send`."""
        route = self._route(topic)
        names = sorted(route)
        if group is not None:
            name = group
        elif message_group and names:
            name = names[queue_of_group(message_group, len(names))]
        else:
            name = next((each for each in names if route[each][0]), "")
        address, queues = route.get(name, (None, {}))
        if not address:
            where = f"broker group {name}" if name else "each broker group of it"
            raise RequestError(
                codes.SERVICE_NOT_AVAILABLE, f"{where} has no master at the moment, or does not have the topic {topic}"
            )
        return name, address, queues["writeQueueNums"]

    def _change(
        self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"", only: str | None = None
    ) -> list[NodeOutcome]:
        """Ask the masters of all groups, or of one, for a change."""
        outcomes = []
        groups = {each.broker_name: each for each in self.cluster_view().groups}
        if not groups:
            raise RequestError(codes.SERVICE_NOT_AVAILABLE, "no broker has registered yet; start one and try again")
        for name in sorted(groups) if only is None else groups.keys() & {only}:
            master = groups[name].master
            if master is None or master.address is None:
                outcomes.append(NodeOutcome(name, Outcome.NOT_ATTEMPTED, "the group has no master at the moment"))
                continue
            try:
                outcomes.append(outcome_of(name, self._ask(master.address, code, ext, body)))
            except RequestError as error:
                outcomes.append(NodeOutcome(name, Outcome.REFUSED, error.message))
            except (ConnectionLost, RequestTimeout) as error:
                outcomes.append(NodeOutcome(name, Outcome.UNKNOWN, str(error)))
        return outcomes


def _listing(answer: Command) -> dict[str, Any]:
    listing: dict[str, Any] = orjson.loads(answer.body)
    return listing


def _wall_ms() -> int:
    """For people who read requests; nothing is decided by it."""
    return time.time_ns() // 1_000_000
