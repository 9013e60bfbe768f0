"""A broker in memory behind the service seam: enough of it that real clients can send, receive, ack and postpone.

It keeps real record bytes, so what the endpoint delivers went through the record codec. Time is the loop's.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from brokerd.cluster.routes import BrokerRoute
from brokerd.consuming.progress import PullOffsets
from brokerd.loop.cold_line import ColdLine
from brokerd.members.consumer_groups import ClientInfo
from brokerd.members.streams import CommandStream
from brokerd.metadata.configs import GroupConfig, TopicConfig
from brokerd.pop.requests import AckStatus, InvisibleTimeOutcome, PopOutcome, PoppedMessage, PopRequest, PopStatus
from brokerd.pop.settings import PopSettings
from brokerd.proxy.methods.base import Services
from brokerd.sending.counters import Counters
from brokerd.sending.outcomes import SendOutcome
from brokerd.store.draft import Draft, encode_draft
from brokerd.store.put_status import PutStatus
from brokerd.store.run import AppendResult
from brokerd.timers import rules
from brokerd.transactions.decide import EndTransaction
from remoting import codes
from remoting.errors import RequestError
from remoting.record.hosts import pack_host
from remoting.record.properties import decode_properties
from tests.support.memory_log import MemoryRecordLog
from tests.support.open_guard import anybody_may
from tests.support.timers import StillTimers, timed_messages

STORE_HOST = pack_host("127.0.0.1", 10911)


@dataclass
class Taken:
    """A message in flight."""

    handle: str
    due: float


@dataclass
class Stored:
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    record: bytes
    tag: str
    attempts: dict[str, int] = field(default_factory=dict)
    taken: dict[str, Taken] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)


class FakeParked:
    def __init__(self, broker: FakeBroker, request: PopRequest, done: Callable[[PopOutcome], None]) -> None:
        self.broker = broker
        self.request = request
        self.done = done
        wait = max(0.0, request.deadline_ms / 1000 - time.monotonic())
        self.timer = asyncio.get_running_loop().call_later(wait, self.expire)

    def cancel(self) -> None:
        self.timer.cancel()
        self.broker.parked.remove(self)
        self.broker.cancelled += 1

    def expire(self) -> None:
        self.broker.parked.remove(self)
        self.done(PopOutcome(PopStatus.NOTHING))

    def wake(self) -> None:
        outcome = self.broker.take(self.request)
        if outcome is not None:
            self.timer.cancel()
            self.broker.parked.remove(self)
            self.done(outcome)


class FakeBroker:
    """Sender, Popper, Metadata, Clients, Routes and ConsumerProgress in one; `reads` is what pulls read."""

    def __init__(self, grpc_addresses: Callable[[], Sequence[str]] = lambda: ["127.0.0.1:1"]) -> None:
        self.grpc_addresses = grpc_addresses
        self.down: frozenset[str] = frozenset()
        self.topic_table: dict[str, TopicConfig] = {}
        self.group_table: dict[str, GroupConfig] = {}
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.log: list[Stored] = []
        self.dead_letters: list[tuple[str, Stored]] = []
        self.sends: list[Sequence[Draft]] = []
        self.acks: list[Sequence[str]] = []
        self.pops: list[PopRequest] = []
        self.parked: list[FakeParked] = []
        self.cancelled = 0
        self.live: dict[str, tuple[ClientInfo, object]] = {}
        self.streams: dict[str, CommandStream] = {}
        self.ends: list[EndTransaction] = []
        self.end_error: RequestError | None = None
        self.closed: list[object] = []
        self.unregistered: list[tuple[str, str]] = []
        self.send_status = PutStatus.PUT_OK
        self.send_error: RequestError | None = None
        self.pop_outcome: PopOutcome | None = None
        self.ack_status: AckStatus | None = None
        self.filter_tags = True
        self.settings = PopSettings()
        self.reads = MemoryRecordLog()
        self.cold_line: ColdLine | None = None
        self.counters = Counters()
        self.timers = StillTimers(lambda: 1_700_000_000_000)
        self.timed = timed_messages(self.timers)
        self.pulled = PullOffsets()
        self.popped: dict[tuple[str, str, int], int] = {}
        self.forbidden: set[tuple[str, str]] = set()
        self.resets: dict[tuple[str, str, int], int] = {}
        self._numbers = itertools.count(1)
        self._next_queue = itertools.count()
        self._ends: Counter[tuple[str, int]] = Counter()

    def services(self, clients: Any = None) -> Services:
        return Services(
            self,
            self,
            self,
            clients or self,
            self,
            self,
            self.timed,
            self.reads,
            self,
            self.counters,
            "broker-a",
            lambda _call: anybody_may,
            self.cold_line,
        )

    def add_topic(self, name: str, message_type: str = "NORMAL", queues: int = 4, perm: int = 6) -> None:
        self.topic_table[name] = TopicConfig(name, queues, queues, perm, attributes={"message.type": message_type})

    # ---- Sender

    def send(self, drafts: Sequence[Draft], done: Callable[[Sequence[SendOutcome]], None]) -> None:
        self.sends.append(drafts)
        if self.send_status is not PutStatus.PUT_OK or self.send_error is not None:
            done([SendOutcome(self.send_status, error=self.send_error)] * len(drafts))
            return
        done([self.store(draft) for draft in drafts])
        for parked in list(self.parked):
            parked.wake()

    def store(self, draft: Draft) -> SendOutcome:
        config = self.topic_table[draft.topic]
        queue_id = draft.queue_id if draft.queue_id >= 0 else next(self._next_queue) % config.write_queue_nums
        queue_offset = self._ends[draft.topic, queue_id]
        self._ends[draft.topic, queue_id] += 1
        physical_offset = len(self.log) * 1000
        placed = draft._replace(queue_id=queue_id)
        record = encode_draft(placed, queue_offset, physical_offset, 1_700_000_000_000, STORE_HOST)
        tag = decode_properties(draft.properties).get("TAGS", "")
        self.log.append(Stored(draft.topic, queue_id, queue_offset, physical_offset, record, tag))
        handle = ""
        if rules.asks_for_moment(draft.properties):
            waiting = self.timed.to_waiting_draft(placed)
            handle = self.timed.handle_of(
                waiting, AppendResult(physical_offset, 1000, queue_offset, physical_offset + 1000)
            )
        return SendOutcome(PutStatus.PUT_OK, queue_id, queue_offset, physical_offset, recall_handle=handle)

    # ---- Popper

    def pop(self, request: PopRequest, done: Callable[[PopOutcome], None]) -> FakeParked | None:
        self.pops.append(request)
        if self.pop_outcome is not None:
            done(self.pop_outcome)
            return None
        outcome = self.take(request)
        if outcome is not None:
            done(outcome)
            return None
        parked = FakeParked(self, request, done)
        self.parked.append(parked)
        return parked

    def take(self, request: PopRequest) -> PopOutcome | None:
        now = time.monotonic()
        tags = None
        if self.filter_tags and request.expression_type == "TAG" and request.expression != "*":
            tags = {tag.strip() for tag in request.expression.split("||")}
        messages = []
        for stored in self.log:
            if len(messages) == request.max_count:
                break
            taken = stored.taken.get(request.group)
            if stored.topic != request.topic or request.group in stored.finished:
                continue
            if (taken is not None and taken.due > now) or (tags is not None and stored.tag not in tags):
                continue
            messages.append(self._take(stored, request, now))
        if not messages:
            return None
        return PopOutcome(PopStatus.FOUND, messages, int(time.time() * 1000), request.invisible_time_ms)

    def _take(self, stored: Stored, request: PopRequest, now: float) -> PoppedMessage:
        attempt = stored.attempts[request.group] = stored.attempts.get(request.group, 0) + 1
        handle = f"0 {next(self._numbers)} {request.invisible_time_ms} 0 0 broker-a {stored.queue_id} {stored.queue_offset} 1"
        stored.taken[request.group] = Taken(handle, now + request.invisible_time_ms / 1000)
        return PoppedMessage(stored.record, request.topic, 0, stored.queue_id, stored.queue_offset, handle, attempt)

    def ack(self, group: str, topic: str, handles: Sequence[str], done: Callable[[Sequence[AckStatus]], None]) -> None:
        self.acks.append(handles)
        statuses = []
        for handle in handles:
            stored = self._holder(group, topic, handle)
            if stored is not None and self.ack_status is None:
                stored.finished.add(group)
                del stored.taken[group]
            statuses.append(self.ack_status or (AckStatus.INVALID_HANDLE if stored is None else AckStatus.OK))
        done(statuses)

    def change_invisible_time(
        self, group: str, topic: str, handle: str, invisible_time_ms: int, done: Callable[[InvisibleTimeOutcome], None]
    ) -> None:
        stored = self._holder(group, topic, handle)
        if stored is None:
            done(InvisibleTimeOutcome(AckStatus.INVALID_HANDLE, handle))
            return
        fields = handle.split(" ")
        fields[1], fields[2] = str(next(self._numbers)), str(invisible_time_ms)
        new = " ".join(fields)
        stored.taken[group] = Taken(new, time.monotonic() + invisible_time_ms / 1000)
        asyncio.get_running_loop().call_later(invisible_time_ms / 1000 + 0.01, self.wake_all)
        done(InvisibleTimeOutcome(AckStatus.OK, new, 1, invisible_time_ms))

    def forward_to_dead_letter(self, group: str, topic: str, handle: str, done: Callable[[AckStatus], None]) -> None:
        stored = self._holder(group, topic, handle)
        if stored is None:
            done(AckStatus.INVALID_HANDLE)
            return
        stored.finished.add(group)
        del stored.taken[group]
        self.dead_letters.append((group, stored))
        done(AckStatus.OK)

    def wake_all(self) -> None:
        for parked in list(self.parked):
            parked.wake()

    def _holder(self, group: str, topic: str, handle: str) -> Stored | None:
        for stored in self.log:
            taken = stored.taken.get(group)
            if stored.topic == topic and taken is not None and taken.handle == handle:
                return stored
        return None

    # ---- Metadata

    def topic(self, name: str) -> TopicConfig | None:
        return self.topic_table.get(name)

    def topics(self) -> Mapping[str, TopicConfig]:
        return self.topic_table

    def group(self, name: str) -> GroupConfig | None:
        return self.group_table.get(name)

    def groups(self) -> Mapping[str, GroupConfig]:
        return self.group_table

    def consumer_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        return self.offsets.get((group, topic, queue_id), self.popped.get((group, topic, queue_id)))

    def is_forbidden(self, group: str, topic: str) -> bool:
        return (group, topic) in self.forbidden

    def pending_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        return self.resets.get((group, topic, queue_id))

    def take_resets(self, queues: Sequence[tuple[str, str, int]]) -> None:
        for queue in queues:
            self.resets.pop(queue, None)

    def put_topic(self, config: TopicConfig, done: Callable[[RequestError | None], None]) -> None:
        self.topic_table[config.name] = config
        done(None)

    def ensure_topic(self, name: str, queues: int = 1) -> RequestError | None:
        self.topic_table.setdefault(name, TopicConfig(name, queues, queues))
        return None

    def delete_topic(self, name: str, done: Callable[[RequestError | None], None]) -> None:
        self.topic_table.pop(name, None)
        done(None)

    def put_group(self, config: GroupConfig, done: Callable[[RequestError | None], None]) -> None:
        self.group_table[config.name] = config
        done(None)

    def delete_group(self, name: str, done: Callable[[RequestError | None], None]) -> None:
        self.group_table.pop(name, None)
        done(None)

    def commit_offset(
        self, group: str, topic: str, queue_id: int, offset: int, done: Callable[[RequestError | None], None] | None
    ) -> None:
        self.offsets[group, topic, queue_id] = offset
        if done is not None:
            done(None)

    # ---- Clients

    def heartbeat(self, info: ClientInfo, connection: object, stream: CommandStream | None = None) -> None:
        self.live[info.client_id] = info, connection
        if stream is not None:
            self.streams[info.client_id] = stream

    def unregister(self, connection: object, client_id: str, group: str) -> None:
        self.unregistered.append((client_id, group))
        if client_id in self.live and self.live[client_id][1] is connection:
            del self.live[client_id]

    def connection_closed(self, connection: object) -> None:
        self.closed.append(connection)

    def members(self, group: str) -> Sequence[ClientInfo]:
        return [info for info, _ in self.live.values() if info.group == group]

    # ---- transactions

    def end(self, request: EndTransaction, done: Callable[[RequestError | None], None], _may_use: object) -> None:
        self.ends.append(request)
        done(self.end_error)

    # ---- Routes

    def route(self, topic: str, done: Callable[[Sequence[BrokerRoute] | RequestError], None]) -> None:
        config = self.topic_table.get(topic)
        if config is None:
            done(RequestError(codes.TOPIC_NOT_EXIST, f"topic {topic} does not exist"))
            return
        done(
            [
                BrokerRoute(
                    "broker-a",
                    {0: "127.0.0.1:10911"},
                    list(self.grpc_addresses()),
                    config.read_queue_nums,
                    config.write_queue_nums,
                    config.perm,
                    config.message_type,
                    self.down,
                )
            ]
        )


class MastershipFake:
    """What follows from what a fake of a replica says, as of a replica."""

    is_master: bool
    is_handing_over: bool

    @property
    def serves_clients(self) -> bool:
        return self.is_master and not self.is_handing_over


class Alone(MastershipFake):
    """The mastership of a group of one."""

    is_master = True
    is_handing_over = False
    master_address = ""
