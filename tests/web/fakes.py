"""Twins of what the console talks to: a snapshot in memory, a cluster that keeps messages in lists, a queue that remembers."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, ClassVar

from controllerd.access.requests import CreateUser, DeleteUser, PutEntries, RemoveEntries, Request, UpdateUser
from controllerd.anchors.subject import KeepAnchor
from controllerd.state.features import RaiseLevel
from controllerd.state.machine import ControllerMachine
from remoting import codes
from remoting.access.answers import answer_query
from remoting.access.model import read_policies, resource, subject_name
from remoting.client.access_admin import AccessAdmin
from remoting.client.blocking import AdminClient, FoundMessage, NodeOutcome, PulledMessages, QueueOffsets
from remoting.errors import RequestError
from remoting.facts.anchors import Anchor
from remoting.facts.broker_state import EpochState, MemberState
from remoting.facts.given_up import GivenUp, GivenUpPage
from remoting.facts.history import HistoryEntry
from remoting.facts.snapshot import (
    VERSION,
    ClusterSnapshot,
    ConsumedQueue,
    ConsumedTopic,
    ConsumerGroup,
    Controller,
    DelayLevel,
    Delays,
    Event,
    Group,
    KeyIndex,
    Process,
    Queue,
    Quorum,
    Rates,
    Replica,
    Spark,
    Timers,
    Topic,
    Transactions,
    Verdict,
)
from remoting.facts.timers import AsideTimer, TimerItem, TimerPage, TimerStanding, TopicTimers
from remoting.facts.words import BrokerRole, ControllerRole, GroupKind, Health, HistoryKind, Outcome
from remoting.group_settings import GroupSettings, settings_of
from remoting.record.codec import Record, decode_record, encode_record
from remoting.record.hosts import pack_host
from remoting.record.properties import encode_properties
from tests.support.documents import document
from webapp.errors import Unavailable


def _given_up(offset: int, **decided: Any) -> GivenUp:
    return GivenUp(
        offset=offset,
        key=f"ORDER-{offset}",
        producer_group="payments",
        topic="orders",
        size=300,
        begun_at_ms=1_700_000_000_000,
        given_up_at_ms=1_700_000_450_000,
        checks=15,
        **decided,
    )


GIVEN_UP = (
    _given_up(7),
    _given_up(4, decision="commit", decided_by="ann", decided_at_ms=1_700_000_900_000),
    _given_up(0),
)


class MemorySnapshots:
    """A snapshot source that a test fills."""

    raw: ClassVar[bytes | None] = None
    broken: ClassVar[str] = ""

    def get(self) -> bytes | None:
        if self.broken:
            raise OSError(self.broken)
        return self.raw

    @classmethod
    def put(cls, document: dict[str, Any] | None) -> None:
        cls.raw = None if document is None else json.dumps(document).encode()

    @classmethod
    def clear(cls) -> None:
        cls.raw, cls.broken = None, ""


class RecordingQueue:
    """A task queue that remembers what was sent, or cannot be reached."""

    sent: ClassVar[list[tuple[str, tuple[Any, ...]]]] = []
    broken: ClassVar[bool] = False

    def send(self, name: str, *arguments: Any) -> None:
        if self.broken:
            raise Unavailable("The task queue (Redis) does not answer.", code="queue-unavailable")
        self.sent.append((name, arguments))

    @classmethod
    def clear(cls) -> None:
        cls.sent.clear()
        cls.broken = False


def _agreed_machine() -> ControllerMachine:
    """What controllers of one version come to, without a log."""
    machine = ControllerMachine()
    machine.apply(machine.decide(RaiseLevel((machine.highest_level,))))
    return machine


class FakeCluster:
    """A cluster of one broker group whose queues are lists of records."""

    topics: ClassVar[dict[str, int]] = {}
    queues: ClassVar[dict[tuple[str, int], list[Record]]] = {}
    min_offsets: ClassVar[dict[tuple[str, int], int]] = {}
    types: ClassVar[dict[str, str]] = {}
    settings: ClassVar[dict[str, GroupSettings]] = {}  # of consumer groups
    sent: ClassVar[list[dict[str, Any]]] = []
    decided: ClassVar[list[tuple[str, bool]]] = []
    undecided: ClassVar[Exception | None] = None
    recall_handle: ClassVar[str] = ""  # of what is sent
    error: ClassVar[Exception | None] = None
    timers: ClassVar[list[TimerItem]] = []
    timer_page: ClassVar[int] = 100  # so many are looked at for one request
    timers_missed: ClassVar[int] = 0  # of the tier, which the last page tells
    machine: ClassVar[ControllerMachine] = _agreed_machine()

    @classmethod
    def clear(cls) -> None:
        cls.timers.clear()
        cls.machine = _agreed_machine()
        cls.timer_page = 100
        cls.timers_missed = 0
        cls.topics.clear()
        cls.types.clear()
        cls.settings.clear()
        cls.sent.clear()
        cls.decided.clear()
        cls.undecided = None
        cls.recall_handle = ""
        cls.queues.clear()
        cls.min_offsets.clear()
        cls.error = None

    @classmethod
    def add_topic(cls, name: str, queues: int = 4) -> None:
        cls.topics[name] = queues
        for queue_id in range(queues):
            cls.queues[name, queue_id] = []
            cls.min_offsets[name, queue_id] = 0

    @classmethod
    def store(
        cls,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: Mapping[str, str],
        at_ms: int | None = None,
        sys_flag: int = 0,
    ) -> int:
        queue = cls.queues[topic, queue_id]
        offset = cls.min_offsets[topic, queue_id] + len(queue)
        at_ms = int(time.time() * 1000) if at_ms is None else at_ms
        encoded = encode_record(
            topic=topic.encode(),
            queue_id=queue_id,
            queue_offset=offset,
            physical_offset=offset * 1000,
            body=body,
            properties=encode_properties(properties),
            born_timestamp_ms=at_ms - 3,
            born_host=pack_host("127.0.0.1", 5000),
            store_timestamp_ms=at_ms,
            store_host=pack_host("127.0.0.1", 10911),
            sys_flag=sys_flag,
        )
        queue.append(decode_record(encoded))
        return offset

    def group_settings(self, name: str) -> dict[str, GroupSettings]:
        if self.error is not None:
            raise self.error
        return {"broker-a": self.settings.get(name) or settings_of({})}

    def topic_config(self, name: str) -> dict[str, dict[str, Any]]:
        self._check(name)
        return {
            "broker-a": {
                "topicName": name,
                "readQueueNums": self.topics[name],
                "writeQueueNums": self.topics[name],
                "perm": 6,
                "attributes": {"message.type": self.types.get(name, "NORMAL")},
            }
        }

    def queue_offsets(self, topic: str) -> list[QueueOffsets]:
        self._check(topic)
        return [
            QueueOffsets("broker-a", queue_id, self.min_offsets[topic, queue_id], self._end(topic, queue_id))
            for queue_id in range(self.topics[topic])
        ]

    def find(self, topic: str, key: str, count: int = 32) -> list[FoundMessage]:
        self._check(topic)
        records = [record for (name, _), queue in self.queues.items() if name == topic for record in queue]
        having = [
            record
            for record in sorted(records, key=lambda each: each.store_timestamp_ms)
            if key in (record.property_map().get("UNIQ_KEY"), *record.property_map().get("KEYS", "").split(" "))
        ]
        return [FoundMessage("broker-a", record) for record in having[-count:]]

    def pull(self, topic: str, group: str, queue_id: int, offset: int, count: int = 32) -> PulledMessages:
        self._check(topic, group)
        low, high = self.min_offsets[topic, queue_id], self._end(topic, queue_id)
        if offset < low:
            return PulledMessages([], low, low, high)
        records = self.queues[topic, queue_id][offset - low : offset - low + count]
        return PulledMessages(records, offset + len(records), low, high)

    def search_offset(self, topic: str, group: str, queue_id: int, timestamp_ms: int) -> int:
        self._check(topic, group)
        for record in self.queues[topic, queue_id]:
            if record.store_timestamp_ms >= timestamp_ms:
                return record.queue_offset
        return self._end(topic, queue_id)

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
        self._check(topic)
        offset = self.store(topic, 0, body, {**(properties or {}), "KEYS": keys, "TAGS": tag})
        self.sent.append({"properties": properties, "message_group": message_group, "transaction": transaction})
        place = {"queueId": "0", "queueOffset": str(offset), "brokerName": "broker-a"}
        handle = {"recallHandle": self.recall_handle} if self.recall_handle else {}
        return {"msgId": "7F000001", "transactionId": "0AB1", **place, **handle}

    def end_transaction(self, topic: str, sent: Mapping[str, str], *, commit: bool) -> None:
        if self.undecided is not None:
            raise self.undecided
        self.decided.append((sent["transactionId"], commit))

    def given_up(self, group: str, before: int | None = None, count: int = 100) -> GivenUpPage:
        if self.error is not None:
            raise self.error
        found = [each for each in GIVEN_UP if before is None or each.offset < before]
        return GivenUpPage(items=tuple(found[:count]), before=found[count].offset + 1 if len(found) > count else None)

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
        """Those that wait, by their offsets; with a key, of every standing."""
        if self.error is not None:
            raise self.error
        missed = {"unread_in_tier": self.timers_missed, "problem": "no answer" if self.timers_missed else ""}
        if key:
            items = [each for each in self.timers if key in (each.unique_key, each.keys)]
            return TimerPage(items=tuple(items), looked=len(items), **missed)  # type: ignore[arg-type]
        begin = int(after or 0)
        looked = self.timers[begin : begin + self.timer_page]
        end = begin + len(looked)
        items = [
            each
            for each in looked
            if each.standing is TimerStanding.WAITING
            and topic in ("", each.topic)
            and (from_ms or 0) <= each.due_ms < (to_ms or 1 << 60)
        ]
        following = str(end) if end < len(self.timers) else None
        missed = {} if following else missed
        return TimerPage(items=tuple(items), next=following, looked=len(looked), **missed)  # type: ignore[arg-type]

    def controller_members(self) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        return {
            "group": "logboom",
            "cluster": "c0ffee",
            "leaderId": "n0",
            "changing": False,
            "retired": ["n9"],
            "members": [
                {
                    "id": f"n{index}",
                    "address": f"127.0.0.1:{9876 + index}",
                    "role": "learner" if index == 3 else "voter",
                    "leader": index == 0,
                    "alive": index != 2,
                    "behind": 7 if index == 3 else 0,
                }
                for index in range(4)
            ],
        }

    def _end(self, topic: str, queue_id: int) -> int:
        return self.min_offsets[topic, queue_id] + len(self.queues[topic, queue_id])

    def anchor(self, chain: str) -> Anchor | None:
        self._raise_if_told()
        return self.machine.anchors.anchors.get(chain)

    def keep_anchor(self, chain: str, anchor: Anchor, *, anew: bool = False) -> None:
        self._raise_if_told()
        request = KeepAnchor(chain, anchor.sequence, anchor.digest, anchor.at_ms, anew)
        reply = self.machine.apply(self.machine.decide(request)).reply
        if reply.code:
            raise RequestError(reply.code, reply.remark)

    def _raise_if_told(self) -> None:
        if self.error is not None:
            raise self.error

    def _check(self, topic: str, group: str = "broker-a") -> None:
        if self.error is not None:
            raise self.error
        if topic not in self.topics:
            raise RequestError(codes.TOPIC_NOT_EXIST, f"no route to {topic}")
        if group != "broker-a":
            raise RequestError(codes.SERVICE_NOT_AVAILABLE, f"broker group {group} has no master at the moment")


def snapshot_document(seq: int = 1, **changes: Any) -> dict[str, Any]:
    """What the collector writes of `HEALTHY` now, with some of it changed."""
    as_of = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return document(replace(HEALTHY, seq=seq, as_of=as_of)) | changes


def _replica(broker_id: int, role: BrokerRole, gap_bytes: int | None, eligible: bool, reason: str) -> Replica:
    port = 10901 + broker_id * 10
    number = {1: 2, 2: 1}.get(broker_id, broker_id)  # processes and replicas are not numbered alike
    return Replica(
        id=broker_id,
        process=f"broker-a-{number}",
        pid=4001 + number,
        address=f"127.0.0.1:{port}",
        grpc_address=f"127.0.0.1:{8080 + broker_id}",
        ha_address=f"127.0.0.1:{port + 1}",
        alive=True,
        role=role,
        in_sync=True,
        learner=False,
        epoch=3,
        max_offset=9_007_199_254_740_993,
        flushed_offset=9_007_199_254_740_993,
        confirm_offset=9_007_199_254_740_993,
        gap_bytes=gap_bytes,
        eligible=eligible,
        eligibility_reason=reason,
        last_heartbeat_ms=120,
        epochs=(EpochState(epoch=1, start_offset=0), EpochState(epoch=3, start_offset=52_428_800)),
    )


def _queue(queue_id: int, high: int) -> Queue:
    return Queue(
        group="broker-a",
        queue_id=queue_id,
        min_offset=0,
        max_offset=high,
        last_store_ms=1_790_000_000_000 if high else None,
    )


HEALTHY = ClusterSnapshot(
    version=VERSION,
    seq=0,
    as_of="",
    verdict=Verdict(status=Health.HEALTHY),
    controllers=tuple(
        Controller(
            id=f"n{index}",
            address=f"127.0.0.1:{9876 + index}",
            role=ControllerRole.LEADER if index == 0 else ControllerRole.FOLLOWER,
            term=4,
            commit_index=812,
            applied_index=812,
        )
        for index in range(3)
    ),
    groups=(
        Group(
            cluster="DefaultCluster",
            name="broker-a",
            kind=GroupKind.CONTROLLERS,
            master_id=1,
            master_epoch=3,
            sync_state_set=(1, 2, 3),
            sync_state_set_epoch=5,
            quorum=Quorum(
                kind="controllers",
                copies=3,
                wanted_copies=3,
                min_copies=1,
                refused=False,
                downgraded=False,
            ),
            transactions=Transactions(
                open=2,
                open_bytes=900,
                max_open=100_000,
                oldest_since_ms=1_790_000_000_000,
                oldest_age_ms=4_000,
                oldest_checks=0,
                max_checks=15,
                overdue=False,
                committed=40,
                rolled_back=3,
                given_up=0,
            ),
            timers=Timers(
                waiting=9,
                near=2,
                aside=1,
                overdue_ms=61_000,
                last_late_ms=4,
                late=True,
                delivered=70,
                rolled=1,
                recalled=2,
                failures=0,
                lost=0,
                left=2,
                uncounted=0,
                in_tier=3,
                tier_trouble="timers cannot come back from timers/0000472222-1-2: no answer",
                topics=(
                    TopicTimers(
                        topic="orders",
                        waiting=7,
                        overdue=1,
                        since_ms=1_790_000_040_000,
                        ahead=(1, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0),
                    ),
                    TopicTimers(
                        topic="", waiting=2, since_ms=1_790_000_040_000, ahead=(0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
                    ),
                ),
                late_bounds_ms=(2, 10),
                late_counts=(60, 9, 1),
                set_aside=(AsideTimer(offset=4, reason="no intact record starts there"),),
            ),
            delays=Delays(
                waiting=5,
                last_late_ms=3,
                last_ago_ms=1500,
                overdue_ms=0,
                late=False,
                delivered=70,
                failures=0,
                lost=0,
                returned=6,
                dead_lettered=1,
                levels=(
                    DelayLevel(level=1, delay_ms=1000, waiting=0, late_ms=None),
                    DelayLevel(level=3, delay_ms=10_000, waiting=5, late_ms=3),
                ),
            ),
            index=KeyIndex(lag_bytes=0, behind=False),
            replicas=(
                _replica(1, BrokerRole.MASTER, 0, False, "it is the master"),
                _replica(2, BrokerRole.REPLICA, 0, True, "in the sync-state set, caught up"),
                _replica(3, BrokerRole.REPLICA, 4096, False, "not in the sync-state set"),
            ),
        ),
    ),
    rates=Rates(
        in_messages_per_s=1250.5,
        out_messages_per_s=1249.0,
        in_bytes_per_s=1_310_720.0,
        out_bytes_per_s=1_309_000.0,
        history=tuple(
            (1_790_000_000_000 + index * 1000, 1000 + index * 3 % 170, 990 + index * 5 % 160) for index in range(120)
        ),
    ),
    topics=(
        Topic(
            name="orders",
            type="NORMAL",
            system=False,
            queues=tuple(_queue(index, 100 * index) for index in range(4)),
            message_count=600,
            in_per_s=12.5,
        ),
        Topic(
            name="%RETRY%billing",
            type="NORMAL",
            system=False,
            queues=(_queue(0, 3),),
            message_count=3,
            in_per_s=None,
        ),
        Topic(
            name="rmq_sys_logboom_metadata",
            type="NORMAL",
            system=True,
            queues=(_queue(0, 40),),
            message_count=40,
            in_per_s=0.0,
        ),
    ),
    consumer_groups=(
        ConsumerGroup(
            name="billing",
            fifo=False,
            topics=(
                ConsumedTopic(
                    topic="orders",
                    lag=30,
                    in_flight=7,
                    queues=tuple(
                        ConsumedQueue(
                            group="broker-a",
                            queue_id=index,
                            consumer_offset=max(0, 100 * index - 10) if index else None,
                            max_offset=100 * index,
                            lag=10 if index else None,
                            in_flight=7 if index == 3 else 0,
                            pending_reset=None,
                        )
                        for index in range(4)
                    ),
                ),
            ),
            members=(MemberState(client_id="worker@1", address="127.0.0.1:50211", language="PYTHON", version="5.3.3"),),
            lag=30,
            in_flight=7,
        ),
        ConsumerGroup(name="audit_log", fifo=True, lag=None, in_flight=None),
    ),
    history=(
        HistoryEntry(
            key="election/DefaultCluster/broker-a/3",
            kind=HistoryKind.ELECTION,
            cluster="DefaultCluster",
            group="broker-a",
            subject="broker-a",
            text="broker-a: replica 1 (broker-a-2) was elected master in epoch 3",
            cause="the group never had a master",
            elected="replica 1 (broker-a-2)",
            epoch=3,
            started_ms=1_795_168_800_000,
            ended_ms=1_795_168_800_040,
        ),
    ),
    timeline=(
        Event(at="2026-11-20T10:00:00.000Z", kind="election", text="broker-a: replica 1 became master, epoch 3"),
        Event(at="2026-11-20T09:59:58.000Z", kind="process", text="broker-a-2 was killed and started again"),
    ),
    processes=(
        Process(name="controller-n0", state="running", pid=4001, restarts=0, since="2026-11-20T09:00:00.000Z"),
        Process(name="broker-a-1", state="running", pid=4002, restarts=1, since="2026-11-20T09:59:59.000Z"),
    ),
    spark=Spark(state="ready", detail="local[2]"),
)


class FakeAccess(AccessAdmin):
    """Users of clients in a controllers' state machine, without its log; what is asked reaches the real handlers' core."""

    machine: ClassVar[ControllerMachine]
    error: ClassVar[Exception | None] = None
    passwords: ClassVar[dict[str, str]] = {}

    def __init__(self) -> None:
        super().__init__(AdminClient([]))

    @classmethod
    def clear(cls) -> None:
        cls.machine = ControllerMachine()
        cls.error = None
        cls.passwords.clear()

    def _ask(self, code: int, ext: Mapping[str, str]) -> Any:
        self._check()
        return answer_query(self.machine.access, code, ext, lambda _user: None)

    def _change(self, code: int, ext: Mapping[str, str], fields: Mapping[str, Any] | None = None) -> NodeOutcome:
        self._check()
        reply = self.machine.apply(self.machine.decide(self._request(code, ext, fields or {}))).reply
        if reply.code:
            raise RequestError(reply.code, reply.remark)
        return NodeOutcome("controllers", Outcome.UNCHANGED if reply.remark else Outcome.CONFIRMED)

    def _request(self, code: int, ext: Mapping[str, str], fields: Mapping[str, Any]) -> Request:
        if code == codes.AUTH_CREATE_ACL:
            return PutEntries(subject_name(ext["subject"]), read_policies(fields["policies"]))
        if code == codes.AUTH_DELETE_ACL:
            return RemoveEntries(subject_name(ext["subject"]), ext["policyType"], resource(ext["resource"]))
        name, password = ext["username"], fields.get("password")
        if code == codes.AUTH_DELETE_USER:
            return DeleteUser(name, by_super=True)
        if password is not None:
            self.passwords[name] = password
        if code == codes.AUTH_CREATE_USER:
            return CreateUser(name, "sealed", fields["userType"], fields["userStatus"], by_super=True)
        return UpdateUser(name, password and "sealed", fields["userType"], fields["userStatus"], by_super=True)

    def _check(self) -> None:
        if self.error is not None:
            raise self.error
