"""A broker's metadata and pop services over a log in memory, with time moved by hand."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from brokerd.consuming.progress import ConsumerProgress
from brokerd.journal.resident import Resident
from brokerd.loop.cold_line import Clocks, ColdLine, Others
from brokerd.metadata.configs import GroupConfig, TopicConfig
from brokerd.metadata.decide import Rules
from brokerd.metadata.names import SystemNames
from brokerd.metadata.service import MetadataService
from brokerd.metadata.tables import MetadataTables
from brokerd.placement.handovers import Handovers
from brokerd.pop.ledger import PopLedger
from brokerd.pop.requests import (
    AckStatus,
    InvisibleTimeOutcome,
    Parked,
    PopOutcome,
    PoppedMessage,
    PopRequest,
    PopStatus,
)
from brokerd.pop.service import PopService
from brokerd.pop.settings import PopSettings
from brokerd.pop.surroundings import Surroundings
from brokerd.store.derived.dispatcher import Arrivals
from remoting.record.codec import Record, decode_record
from tests.support.memory_log import MemoryRecordLog, draft
from tests.support.turns import Turns


class Receive:
    """A pop under way: its outcome once there is one."""

    def __init__(self) -> None:
        self.outcomes: list[PopOutcome] = []
        self.parked: Parked | None = None

    @property
    def outcome(self) -> PopOutcome:
        (outcome,) = self.outcomes
        return outcome

    @property
    def waits(self) -> bool:
        return not self.outcomes

    @property
    def messages(self) -> Sequence[PoppedMessage]:
        assert self.outcome.status == PopStatus.FOUND, self.outcome
        return self.outcome.messages

    @property
    def bodies(self) -> list[str]:
        return [body_of(message) for message in self.messages]


class PopBroker:
    """One broker. `log` may be one that another broker wrote."""

    def __init__(
        self,
        log: MemoryRecordLog | None = None,
        turns: Turns | None = None,
        name: str = "broker-a",
        handovers: Handovers | None = None,
        share: float | None = None,
        **settings: Any,
    ) -> None:
        """With a `share` it has a tier, and who reads what is cold by `log.cold_ends` gets that much of the time."""
        self.turns = turns or Turns()
        clock = self.turns.time
        self.line = ColdLine(self.turns, Clocks(clock, clock), lambda: share or 1) if share is not None else None
        self.log = log or MemoryRecordLog(self.turns.wall_ms)
        self.alive: set[str] = set()
        self.versions: dict[str, int] = {}  # of placements in force
        names = SystemNames("cluster", name, development=False, delay_levels=18)
        tables, ledger = MetadataTables(), PopLedger()
        self.progress = ConsumerProgress(tables, ledger, self.log)
        rules = Rules(tables, names, self.turns.wall_ms, self.progress.unread_queues)
        self.metadata = MetadataService(self.log, rules, self.turns)
        self.pop_service = PopService(
            Surroundings(
                name,
                self.metadata,
                self.log,
                self.log,
                self.turns,
                self.turns.wall_ms,
                PopSettings(**settings),
                random.Random(8).getrandbits,
                handovers=handovers or Handovers(),
                placement_version=self.placement_version,
                cold_line=self.line,
            ),
            ledger,
            self.alive.__contains__,
            random.Random(7),
        )
        self.others_done = 0
        if self.line is not None:
            self.line.others = Others(lambda: self.others_done + self.pop_service.giving.from_files, self._tell_served)
        self.metadata.listeners.append(self.pop_service.metadata_changed)
        self.residents: list[Resident] = [self.metadata, self.pop_service]
        self.log.listeners.append(self.dispatched)

    def dispatched(self, arrivals: Arrivals) -> None:
        for resident in self.residents:
            if not arrivals.topics.isdisjoint(resident.own_topics):
                resident.dispatched(arrivals)
        self.pop_service.arrived(arrivals)

    def _tell_served(self, call: Callable[[], None] | None) -> None:
        self.pop_service.giving.when_served = call

    def placement_version(self, topic: str) -> int:
        return self.versions.get(topic, 0)

    def become_master(self) -> PopBroker:
        self.rebuild()
        self.log.is_master = True
        for resident in self.residents:
            resident.catch_up()
        for resident in self.residents:
            resident.lead()
        return self

    def become_replica(self) -> None:
        self.log.is_master = False
        for resident in reversed(self.residents):
            resident.step_down()
        self.rebuild()

    def rebuild(self) -> None:
        for resident in self.residents:
            resident.rebuild()

    # ---- short forms

    def topic(self, name: str = "t", queues: int = 1, **fields: Any) -> None:
        refusals: list[Any] = []
        self.metadata.put_topic(TopicConfig(name, queues, queues, **fields), refusals.append)
        assert refusals == [None]

    def group(self, name: str = "g", **fields: Any) -> None:
        refusals: list[Any] = []
        self.metadata.put_group(GroupConfig(name, **fields), refusals.append)
        assert refusals == [None]

    def send(self, *bodies: str, topic: str = "t", queue_id: int = 0, tag: str = "", **properties: str) -> None:
        self.log.append_messages(
            [draft(topic, body.encode(), queue_id, tag=tag, properties=properties) for body in bodies]
        )

    def receive(self, count: int = 32, *, wait_ms: int = 0, **fields: Any) -> Receive:
        """Start a pop of topic t for group g; see what came in `outcome`."""
        fields = {"group": "g", "topic": "t", "queue_id": -1, "invisible_time_ms": 10_000, **fields}
        receive = Receive()
        request = PopRequest(max_count=count, deadline_ms=self.turns.monotonic_ms() + wait_ms, **fields)
        receive.parked = self.pop_service.pop(request, receive.outcomes.append)
        self.turns.run()
        return receive

    def ack(self, *messages: PoppedMessage | str, group: str = "g", topic: str = "t") -> list[AckStatus]:
        answers: list[Sequence[AckStatus]] = []
        handles = [each if isinstance(each, str) else each.receipt_handle for each in messages]
        self.pop_service.ack(group, topic, handles, answers.append)
        self.turns.run()
        (statuses,) = answers
        return list(statuses)

    def change(
        self, message: PoppedMessage | str, invisible_time_ms: int, group: str = "g", topic: str = "t"
    ) -> InvisibleTimeOutcome:
        answers: list[InvisibleTimeOutcome] = []
        handle = message if isinstance(message, str) else message.receipt_handle
        self.pop_service.change_invisible_time(group, topic, handle, invisible_time_ms, answers.append)
        self.turns.run()
        (answer,) = answers
        return answer

    def forward(self, message: PoppedMessage | str, group: str = "g", topic: str = "t") -> AckStatus:
        answers: list[AckStatus] = []
        handle = message if isinstance(message, str) else message.receipt_handle
        self.pop_service.forward_to_dead_letter(group, topic, handle, answers.append)
        self.turns.run()
        (answer,) = answers
        return answer

    def stored(self, topic: str, queue_id: int = 0) -> list[Record]:
        return [decode_record(each) for each in self.log.bodies(topic, queue_id)]


def body_of(message: PoppedMessage) -> str:
    return decode_record(message.record).body.decode()


def master(**settings: Any) -> PopBroker:
    """A master with topic t (one queue) and group g."""
    broker = PopBroker(**settings).become_master()
    broker.topic()
    broker.group()
    return broker
