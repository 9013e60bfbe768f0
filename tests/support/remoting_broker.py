"""The remoting processors over the services of `PopBroker`, with connections that remember their answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from brokerd.cluster.routes import BrokerRoute
from brokerd.consuming.fetch_waits import FetchWaits
from brokerd.consuming.key_queries import Found
from brokerd.consuming.queue_locks import QueueLocks
from brokerd.consuming.read_place import PullSettings, ReadPlace
from brokerd.delay.deliverer import Deliverer
from brokerd.delay.levels import DEFAULT_DELAYS
from brokerd.delay.rules import schedule
from brokerd.members.registry import ClientRegistry
from brokerd.native.library import Library
from brokerd.placement.service import PlacementService
from brokerd.processors.administration.groups import GroupProcessor
from brokerd.processors.administration.inspection import InspectionProcessor
from brokerd.processors.administration.messages import MessageProcessor
from brokerd.processors.administration.state import StateFigures, StateParts, StateProcessor
from brokerd.processors.administration.timers import TimerProcessor
from brokerd.processors.administration.topics import TopicProcessor
from brokerd.processors.clients.assignments import AssignmentProcessor
from brokerd.processors.clients.connections import ConnectionProcessor
from brokerd.processors.clients.heartbeats import ClientProcessor
from brokerd.processors.clients.locks import LockProcessor
from brokerd.processors.clients.relay import RelayProcessor
from brokerd.processors.offsets.committed import OffsetProcessor
from brokerd.processors.offsets.consumption import Consumption, ConsumptionProcessor
from brokerd.processors.offsets.resets import ResetProcessor
from brokerd.processors.pop.handovers import HandoverProcessor
from brokerd.processors.pop.pop import PopProcessor
from brokerd.processors.pulling.bulk import BulkProcessor
from brokerd.processors.pulling.checks import PullChecks
from brokerd.processors.pulling.cold_line import ColdRequests
from brokerd.processors.pulling.laid_out import AnswerLayout
from brokerd.processors.pulling.pull import PullProcessor
from brokerd.processors.pulling.quick import QuickPulls
from brokerd.processors.registry import Processors, handlers_of, on_master
from brokerd.processors.sending.recalls import RecallProcessor, TimerProgress
from brokerd.processors.sending.send_back import SendBackProcessor
from brokerd.processors.sending.transactions import TransactionProcessor
from brokerd.processors.sliced import Slices
from brokerd.replication.facts import ReplicaFacts
from brokerd.replication.log import LogPosition
from brokerd.replication.roles.effects import Role
from brokerd.retry.service import RetryCounters, RetryRules, RetryService
from brokerd.sending.counters import Counters
from brokerd.store.index.search import Question
from brokerd.timers.finder import LookedIn, TimerFinder
from brokerd.timers.in_log import TimersInLog
from brokerd.timers.queue_far import QueueFar
from brokerd.timers.service import Surroundings, TimerService
from brokerd.timers.settings import TimerSettings
from brokerd.transactions.checking import CheckBack
from brokerd.transactions.service import TransactionService
from brokerd.transactions.settings import TransactionSettings
from brokerd.transactions.topics import TransactionTopics
from remoting import codes, frame
from remoting.errors import LogboomError, RequestError
from remoting.facts.broker_state import EpochState, ScrubState, Totals
from remoting.facts.loop import LoopState
from remoting.frame import Command
from remoting.names import TIMER_TOPIC
from remoting.settings import Live
from remoting.transport.taking import Density
from tests.support.memory_log import HOST, MemoryRecordLog
from tests.support.open_guard import OPEN, yes
from tests.support.pop_broker import PopBroker
from tests.support.timers import DAY_MS, StillTimers, timed_messages
from tests.support.turns import Turns


class Peer:
    """A client's connection: what it was answered, and what it was told."""

    def __init__(self, port: int = 5000) -> None:
        self.peer = f"127.0.0.1:{port}"
        self.is_slow = False
        self.is_open = True
        self.last_active = 0.0
        self.density = Density()
        self.answers: dict[int, Command] = {}
        self.notices: list[tuple[int, Mapping[str, str] | None]] = []
        self.notice_bodies: list[bytes] = []
        self.asked: list[tuple[Command, Callable[[Command | LogboomError], None]]] = []
        self.timeouts_ms: list[int] = []
        self.closed = False

    def respond(
        self,
        request: Command,
        code: int = codes.SUCCESS,
        ext: Mapping[str, str] | None = None,
        body: bytes | list[bytes] = b"",
        remark: str | None = None,
        *,
        body_stays: bool = False,
    ) -> None:
        if request.is_oneway:
            return
        body = b"".join(body) if isinstance(body, list) else body
        assert request.opaque not in self.answers, "answered twice"
        assert all(isinstance(value, str) for value in (ext or {}).values())
        self.answers[request.opaque] = Command(code, request.opaque, dict(ext or {}), body, codes.FLAG_RESPONSE, remark)

    def put_off_answers(self) -> None:
        """Answers are there at once here."""

    def owe(self, requests: int) -> None:
        """Answers are matched by their opaques here."""

    def respond_encoded(self, frames: bytes, count: int) -> None:
        answers: list[Command] = []
        assert frame.decode_frames(frames, answers) == len(frames)
        assert len(answers) == count
        for each in answers:
            assert each.flag == codes.FLAG_RESPONSE
            assert each.opaque not in self.answers, "answered twice"
            each.body = bytes(each.body)
            self.answers[each.opaque] = each

    def respond_error(self, request: Command, error: LogboomError) -> None:
        self.respond(request, error.code, remark=str(error))

    def notify(self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"") -> bool:
        self.notices.append((code, ext))
        self.notice_bodies.append(body)
        return True

    def request(
        self,
        code: int,
        ext: Mapping[str, str] | None,
        body: bytes,
        timeout_ms: int,
        answered: Callable[[Command | LogboomError], None],
    ) -> None:
        """The broker asks this client: the test answers through what `asked` holds."""
        self.timeouts_ms.append(timeout_ms)
        self.asked.append((Command(code, 0, dict(ext or {}), body), answered))

    def close(self) -> None:
        self.closed = True


LOCAL_LOG = LogPosition(0, 10, 9)
REPLICA = ReplicaFacts(
    role=Role.MASTER,
    broker_id=1,
    master_id=1,
    master_epoch=3,
    highest_epoch=3,
    confirm_offset=8,
    acknowledged_offset=8,
    sync_state_set=[1, 2],
    epochs=[EpochState(epoch=1, start_offset=0), EpochState(epoch=3, start_offset=5)],
    failure="",
    learner=False,
    weaknesses=[],
    loop=LoopState(),
    leading=None,
    following=None,
)


class NoIndex:
    """What a broker without an index has to answer queries by key."""

    is_possible = False

    def find(self, question: Question, done: Callable[[Found | LogboomError], None]) -> None:
        raise AssertionError("no query is possible")


class RemotingBroker(PopBroker):
    """`ask` sends one request and returns its answer, None while it waits. With a `library`, pulls are taken as they come where
    that may be; `taken_quickly` counts them."""

    library: ClassVar[Library | None] = None

    def __init__(
        self,
        *,
        log: MemoryRecordLog | None = None,
        turns: Turns | None = None,
        pull_settings: PullSettings | None = None,
        **settings: Any,
    ) -> None:
        turns = turns or Turns()
        log = log or MemoryRecordLog(turns.wall_ms)
        self.placements = PlacementService(log, "broker-a", lambda _topic: {}, turns)
        super().__init__(log, turns, handovers=self.placements.handovers, **settings)
        self.residents.append(self.placements)
        self.clients = ClientRegistry(self.turns.monotonic_ms, self.turns.wall_ms, yes)
        self.metadata.listeners.append(self.progress.metadata_changed)
        self.counters = Counters()
        self.is_master = True
        self.pull_settings = Live(pull_settings or PullSettings())
        self.other_routes: list[BrokerRoute] = []
        version = lambda: self.metadata.data_version(1)  # noqa: E731
        offset = self.progress.consumer_offset
        self.is_master_known = False
        self.log_end, self.memory_bytes = 0, 1000
        self.retention_doubt = ""
        self.is_in_sync = False  # as a replica
        checks = PullChecks(self.metadata, self.clients, lambda: self.is_master)
        place = ReadPlace(
            self.pull_settings,
            lambda: self.is_master,
            lambda: self.is_master_known,
            lambda: self.is_master or self.is_in_sync,
            lambda: self.log_end,
            self.memory_bytes,
            self.line,
        )
        self.pull = PullProcessor(checks, self.progress.pulled, self.log, self.counters, self.turns, place)
        self.metadata.listeners.append(lambda _change: self.pull.look_again())
        self.clients.group_listeners.append(lambda _group: self.pull.look_again())
        self.pull_settings.subscribe(lambda _settings: self.pull.look_again())
        cold = ColdRequests(self.line, self.log.is_cold, 5000)
        self.quick: QuickPulls | None = None
        self.taken_quickly = 0
        if self.library is not None:
            self.pull.lay_out_by(AnswerLayout(self.library))
            self.quick = QuickPulls(self.pull, checks, place, cold, self.library)
        figures = StateFigures(
            lambda: self.log.dispatch_offset,
            lambda: Totals(in_messages=1, in_bytes=2, out_messages=3, out_bytes=4),
            lambda: 7,
            lambda: self.transactions.state(),
            lambda: self.schedule.state(),
            lambda: 11,
            self.pop_service.starts.begins_recently,
            lambda: self.retention_doubt,
            ScrubState,
            gate_waits=self.pop_service.gate.waits_of,
        )
        transaction_topics = TransactionTopics(self.log, self.metadata, self.turns.wall_ms, HOST)
        transaction_settings = Live(TransactionSettings())
        check_back = CheckBack(
            transaction_topics, self.clients, "broker-a", self.turns, transaction_settings, move_up_bytes=1 << 20
        )
        self.transactions = TransactionService(
            transaction_topics, check_back, transaction_settings, lambda draft: schedule(draft, DEFAULT_DELAYS)
        )
        self.timers = StillTimers(self.turns.wall_ms)
        self.timer_service = TimerService(
            self.log,
            QueueFar(partial(self.log.queue_range, TIMER_TOPIC, 0), partial(self.log.read_units, TIMER_TOPIC, 0)),
            Surroundings(
                self.metadata,
                self.turns,
                self.turns.wall_ms,
                HOST,
                random.Random(1).getrandbits,
                lambda: 3 * DAY_MS,
                TimersInLog(),
            ),
            TimerSettings(),
        )
        ranges: Any = self.log
        self.locks = QueueLocks()
        self.schedule = Deliverer(DEFAULT_DELAYS, self.metadata, self.log, self.turns, self.turns.wall_ms)
        self.residents.append(self.schedule)
        self.retry = RetryService(
            self.metadata,
            self.log,
            self.log,
            lambda topic: lambda queues: queues - 1,
            RetryRules(
                DEFAULT_DELAYS,
                lambda group: self.locks.is_locked(group, self.turns.monotonic_ms()),
                auto_create_groups=True,
            ),
            RetryCounters(),
        )
        consumption = Consumption(self.metadata, self.clients, self.progress, ranges, "broker-a")
        waits = FetchWaits(self.turns)
        self.processors = Processors(
            self.pull,
            BulkProcessor(checks, self.log, self.counters, place, self.turns),
            OffsetProcessor(self.metadata, offset, ranges, self.pop_service.starts, version),
            ClientProcessor(self.metadata, self.clients, lambda: self.is_master, self.pull_settings),
            TopicProcessor(self.metadata, "broker-a", version, ranges, self.counters.statistics),
            GroupProcessor(self.metadata, version),
            ConnectionProcessor(self.clients),
            ConsumptionProcessor(consumption, "127.0.0.1:10911", self.turns.wall_ms, self.counters.statistics),
            AssignmentProcessor(self.metadata, self.clients, self),
            InspectionProcessor(
                self.counters.statistics,
                "cluster",
                self.turns.time,
                ranges,
                self.clients.consumer_group,
            ),
            ResetProcessor(consumption, self.pop_service, self.pull_settings, self.pull.wake),
            RelayProcessor(self.metadata, self.clients, self.log, "broker-a", lambda: 0, OPEN),
            MessageProcessor(self.log, NoIndex(), OPEN),
            PopProcessor(self.pop_service, self.metadata, ranges, "broker-a", self.turns),
            HandoverProcessor("broker-a", self.pop_service.answers, self.placements, self.pop_service.gate),
            StateProcessor(
                StateParts("cluster", consumption, lambda: REPLICA, LOCAL_LOG, figures, self.turns.wall_ms),
                self.turns.call_soon,
            ),
            LockProcessor(
                self.locks,
                self.metadata,
                "broker-a",
                lambda: self.is_master or not self.is_master_known,
                self.turns.monotonic_ms,
            ),
            TransactionProcessor(self.transactions, OPEN),
            SendBackProcessor(self.retry, self.schedule.offsets, version, OPEN),
            RecallProcessor(
                timed_messages(self.timers),
                self.metadata.topic,
                lambda: TimerProgress(self.turns.wall_ms(), 9, 7),
                self.timer_service.counting,
                version,
                self.turns.wall_ms,
            ),
            TimerProcessor(
                self.timer_service,
                TimerFinder(
                    self.log,
                    LookedIn(None, self.timer_service.stowed),
                    self.timer_service.table,
                    lambda: DAY_MS,
                    self.turns.wall_ms,
                    self.turns,
                ),
                NoIndex(),
                self.log,
                self.turns,
            ),
            waits,
            Slices(self.turns.call_soon, waits),
            cold,
        )
        self.handlers = on_master(handlers_of(self.processors), lambda: self.is_master)
        self.log.listeners.append(self.pull.arrived)
        self.peer = Peer()
        self._opaque = 0

    def route(self, topic: str, done: Callable[[Sequence[BrokerRoute] | RequestError], None]) -> None:
        """The own topics, and what a test says that other brokers have."""
        config = self.metadata.topic(topic)
        if config is None:
            done(RequestError(codes.TOPIC_NOT_EXIST, f"topic {topic} does not exist"))
            return
        own = BrokerRoute("broker-a", {}, [], config.read_queue_nums, config.write_queue_nums, config.perm, "NORMAL")
        done([own, *self.other_routes])

    def send_request(
        self,
        code: int,
        ext: Mapping[str, Any] | None = None,
        body: bytes = b"",
        peer: Peer | None = None,
        flag: int = 0,
    ) -> int:
        """Hand a request to its handler; returns its opaque."""
        self._opaque += 1
        texts = {name: str(value) for name, value in (ext or {}).items()}
        request = Command(code, self._opaque, texts, body, flag, language="JAVA")
        if self.quick is not None and not flag:
            data = frame.encode_request(code, self._opaque, texts, body)
            if self.quick.take(peer or self.peer, data, 0):  # type: ignore[arg-type]
                self.taken_quickly += 1
                return self._opaque
        self.handlers[code](peer or self.peer, [request])  # type: ignore[arg-type]
        return self._opaque

    def ask(
        self, code: int, ext: Mapping[str, Any] | None = None, body: bytes = b"", peer: Peer | None = None
    ) -> Command | None:
        peer = peer or self.peer
        opaque = self.send_request(code, ext, body, peer)
        self.turns.run()
        return peer.answers.get(opaque)

    def answer(
        self, code: int, ext: Mapping[str, Any] | None = None, body: bytes = b"", peer: Peer | None = None
    ) -> Command:
        """The answer, which must be there."""
        answer = self.ask(code, ext, body, peer)
        assert answer is not None, "the request waits"
        return answer


def remoting_master(**settings: Any) -> RemotingBroker:
    """A master with topic t (one queue) and group g."""
    broker = RemotingBroker(**settings)
    broker.become_master()
    broker.topic()
    broker.group()
    return broker
