"""Offsets are reset while groups read: to an offset and by time, one queue or all, through the handler of code 222.

One group pops, the other one pulls: it is told of a reset by a pull, which is answered when that is recorded.

Verdict: after a reset that was answered OK every message from there on comes to the group again, whoever is master then; and a
reset by time leaves out nothing that was stored since. A reset without an answer may hold or not, so nothing is asked of it; nor
of one that a pull may have been told whose answer was lost.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from brokerd.consuming.fetch_waits import FetchWaits
from brokerd.consuming.progress import ConsumerProgress
from brokerd.consuming.read_place import PullSettings
from brokerd.members.registry import ClientRegistry
from brokerd.metadata.configs import GroupConfig
from brokerd.metadata.start_offsets import InitMode
from brokerd.pop.requests import AckStatus, PopOutcome, PopRequest, PopStatus
from brokerd.processors.offsets.consumption import Consumption
from brokerd.processors.offsets.resets import ResetProcessor
from brokerd.processors.sliced import Slices
from remoting import codes
from remoting.frame import Command
from remoting.record.codec import Record
from remoting.settings import Live
from tests.sim.administration import Maker
from tests.sim.broker import SimBroker
from tests.sim.clients import QUEUES, SURE_TIMEOUT_MS, TOPIC, Client, Reply
from tests.sim.controller import Connection
from tests.sim.records import look_at
from tests.sim.world import World
from tests.support.open_guard import yes

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster

_ELSEWHERE: Final[tuple[list[bytes], int]] = ([], -1)
_POPS: Final = "reset"
_PULLS: Final = "reset-pulls"
_SHARE: Final = 0.12  # of the steps
_HIDDEN_MS: Final = 400
_IDLE_POPS: Final = 3
_QUEUE = re.compile(rb'"queueId":([0-9]+)[^}]*}:([0-9]+)')


class Reset(NamedTuple):
    """One that holds: asked for at `at_ms`; `since_ms` is the store time that was asked for, or None."""

    offset: int
    at_ms: float
    since_ms: int | None


class Resets:
    """The groups whose offsets are reset, in one story."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._readers: list[ResetReader] = []

    def begin(self) -> None:
        cluster = self._cluster
        groups = [GroupConfig(name, retry_max_times=1000) for name in (_POPS, _PULLS)]
        cluster.clients += [
            Maker(
                cluster.world,
                cluster,
                f"{group.name}-maker",
                lambda metadata, done, group=group: metadata.put_group(group, done),  # type: ignore[misc]
            )
            for group in groups
        ]
        self._readers = [
            ResetReader(cluster.world, cluster, "reset-reader", _POPS),
            PullingReader(cluster.world, cluster, "pull-reset-reader", _PULLS),
        ]
        cluster.clients += self._readers

    def end(self) -> None:
        """The readers read on to the end, and reset nothing any more."""

    def is_settled(self) -> bool:
        return not any(reader.is_active for reader in self._readers)

    def check(self) -> None:
        for reader in self._readers:
            for queue_id, reset in sorted(reader.resets.items()):
                if reset is not None:
                    self._check(reader, queue_id, reset)

    def _check(self, reader: ResetReader, queue_id: int, reset: Reset) -> None:
        cluster = self._cluster
        master = cluster.master()
        assert master is not None
        records = _records(master, queue_id)
        cluster.history.count(reader.group, "looked at")
        for record in records[reset.offset : reader.ends[queue_id]]:
            place = f"{record.body[:20]!r}, at {record.queue_offset} of queue {queue_id}"
            cluster.world.require(
                reader.came.get(record.body, -1.0) >= reset.at_ms,
                f"{place}, did not come to {reader.group} again after a reset to {reset.offset}",
            )
        early = [] if reset.since_ms is None else [each.store_timestamp_ms for each in records[: reset.offset]]
        cluster.world.require(
            not early or early[-1] < (reset.since_ms or 0),
            f"a reset to {reset.since_ms} goes to offset {reset.offset}, and leaves out what was stored at {early[-1:]}",
        )


class ResetReader(Client):
    """Pops, acks, and now and then has the group go back or forward. It stops when it has read everything."""

    def __init__(self, world: World, cluster: SimCluster, name: str, group: str) -> None:
        super().__init__(world, cluster, name)
        self.group = group
        self.came: dict[bytes, float] = {}  # when each message came last
        self.resets: dict[int, Reset | None] = {}  # by queue the last one; None = nobody knows whether it holds
        self.ends: dict[int, int] = {}  # of the queues, when everything was read
        self._is_ending = False
        self._idle = 0

    def stop(self) -> None:
        self._is_ending = True

    def step(self) -> None:
        if not self._is_ending and self.rng.random() < _SHARE:
            self._reset()
        else:
            self.read()

    # ---- resets

    def _reset(self) -> None:
        broker = self.broker
        queue_id = self.rng.choice((-1, *range(QUEUES), *range(QUEUES)))
        since_ms = broker.wall_ms() - self.rng.randrange(3000) if queue_id < 0 or self.rng.random() < 0.5 else None
        wanted = self.rng.randrange(max([1, *(self._end_of(broker, each) for each in range(QUEUES))]))
        ext = {
            "group": self.group,
            "topic": TOPIC,
            "timestamp": str(since_ms or 0),
            "queueId": str(queue_id),
            "offset": str(-1 if since_ms is not None else wanted),
        }
        began_ms = self.world.now_ms
        for each in range(QUEUES) if queue_id < 0 else (queue_id,):
            self.resets[each] = None

        def run(reply: Reply) -> None:
            connection: Any = Connection(self)
            request = Command(codes.INVOKE_BROKER_TO_RESET_OFFSET, 1, ext, b"", 0)
            connection.expect(request, lambda code, _ext, body: reply((code, body)))
            slices = Slices(broker.call_soon, FetchWaits(broker))
            slices.handler(_processor(broker).reset)(connection, [request])

        self.call(broker, run, lambda answer: self._was_reset(answer, began_ms, since_ms), SURE_TIMEOUT_MS)

    def _end_of(self, broker: SimBroker, queue_id: int) -> int:
        """How many messages a queue has, as far as an administrator knows."""
        return broker.core.store.max_offset(TOPIC, queue_id) if broker.is_up else 0

    def _was_reset(self, answer: tuple[int, bytes] | None, began_ms: float, since_ms: int | None) -> None:
        if answer is None or answer[0] != codes.SUCCESS:
            self.history.count("reset", "unknown" if answer is None else "failed")
            self.move()
        else:
            self.history.count("reset", "ok by time" if since_ms is not None else "ok to an offset")
            for queue_id, offset in _QUEUE.findall(answer[1]):
                self.resets[int(queue_id)] = Reset(int(offset), began_ms, since_ms)
                self.world.note(f"{self.group} goes on at {int(offset)} of queue {int(queue_id)}")
        self.again(5, 60)

    # ---- reading

    def read(self) -> None:
        """Take what comes next."""
        broker = self.broker

        def run(reply: Reply) -> None:
            request = PopRequest(self.group, TOPIC, -1, 16, _HIDDEN_MS, broker.monotonic_ms(), InitMode.MIN)
            broker.core.pop.pop(request, reply)

        self.call(broker, run, lambda outcome: self._popped(broker, outcome), 1500)

    def _popped(self, broker: SimBroker, outcome: PopOutcome | None) -> None:
        if outcome is None or outcome.status is PopStatus.REFUSED:
            self.move()
        elif outcome.messages:
            self._idle = 0
            handles: dict[str, list[str]] = {}
            for message in outcome.messages:
                self.came[look_at(message.record).record.body] = self.world.now_ms
                handles.setdefault(message.topic, []).append(message.receipt_handle)
            if self._is_ending or self.rng.random() < 0.8:
                for topic, of_topic in handles.items():
                    self._ack(broker, topic, of_topic)
        else:
            self._idle += 1
            self._look_for_the_end(broker)
        self.again(5, 50)

    def _look_for_the_end(self, broker: SimBroker) -> None:
        if self._is_ending and self._idle >= _IDLE_POPS and self._has_all(broker):
            self.ends = {each: self._end_of(broker, each) for each in range(QUEUES)}
            self.is_active = False

    def _ack(self, broker: SimBroker, topic: str, handles: list[str]) -> None:
        def answered(statuses: Sequence[AckStatus] | None) -> None:
            self.history.count("ack after resets", "unknown" if statuses is None else "ok")

        self.call(broker, lambda reply: broker.core.pop.ack(self.group, topic, handles, reply), answered, 1500)

    def _has_all(self, broker: SimBroker) -> bool:
        ledger, store = broker.core.pop.ledger, broker.core.store
        if (
            not broker.driver.is_master
            or store.dispatch_offset != store.commitlog.end_offset
            or ledger.in_flight(self.group)
        ):
            return False
        queues = [(TOPIC, each) for each in range(QUEUES)] + list(ledger.popped_queues(self.group))
        return all(
            (ledger.committed_offset(self.group, topic, queue_id) or 0) == store.max_offset(topic, queue_id)
            for topic, queue_id in queues
        )


class PullingReader(ResetReader):
    """Pulls from where it is and commits that, until a pull tells it to go on elsewhere."""

    def __init__(self, world: World, cluster: SimCluster, name: str, group: str) -> None:
        super().__init__(world, cluster, name, group)
        self._places = [0] * QUEUES

    def read(self) -> None:
        broker, queue_id = self.broker, self.rng.randrange(QUEUES)
        start = self._places[queue_id]

        def run(reply: Reply) -> None:
            metadata, store = broker.core.metadata, broker.core.store
            if not broker.driver.is_master:
                reply(_ELSEWHERE)
                return
            target = metadata.pending_reset(self.group, TOPIC, queue_id)
            if target is None:
                records = store.read_messages(TOPIC, queue_id, start, 16, 1 << 20).records
                reply(([look_at(each).record.body for each in records], start + len(records)))
            else:
                # As a pull is answered: when it is recorded that the group was told.
                key = (self.group, TOPIC, queue_id)
                metadata.commits.take_resets([key], lambda error: reply(([], target) if error is None else None))

        self.call(broker, run, lambda answer: self._was_read(broker, queue_id, answer), SURE_TIMEOUT_MS)

    def _was_read(self, broker: SimBroker, queue_id: int, answer: tuple[list[bytes], int] | None) -> None:
        if answer is None:
            self.resets[queue_id] = None  # it may have been told, in the answer that did not come
            self.move()
        elif answer is _ELSEWHERE:
            self.move()
        else:
            bodies, self._places[queue_id] = answer
            self.came.update(dict.fromkeys(bodies, self.world.now_ms))
            if not bodies:
                self._idle += 1
                self._look_for_the_end(broker)
            else:
                self._idle = 0
                self._commit(broker, queue_id)
        self.again(5, 50)

    def _commit(self, broker: SimBroker, queue_id: int) -> None:
        def answered(answer: tuple[object] | None) -> None:
            self.history.count("commit after resets", "unknown" if answer is None else "ok")

        self.call(
            broker,
            lambda reply: broker.core.metadata.commit_offset(
                self.group, TOPIC, queue_id, self._places[queue_id], lambda error: reply((error,))
            ),
            answered,
            1500,
        )

    def _has_all(self, broker: SimBroker) -> bool:
        metadata, store = broker.core.metadata, broker.core.store
        if not broker.driver.is_master or store.dispatch_offset != store.commitlog.end_offset:
            return False
        return all(
            metadata.pending_reset(self.group, TOPIC, each) is None
            and self._places[each] == store.max_offset(TOPIC, each)
            for each in range(QUEUES)
        )


def _processor(broker: SimBroker) -> ResetProcessor:
    core = broker.core
    consumption = Consumption(
        core.metadata,
        ClientRegistry(broker.monotonic_ms, broker.wall_ms, yes),
        ConsumerProgress(core.metadata.tables, core.pop.ledger, core.store),
        core.store,
        broker.group,
    )
    return ResetProcessor(consumption, core.pop, Live(PullSettings()), lambda _topic, _queue_id: None)


def _records(broker: SimBroker, queue_id: int) -> list[Record]:
    store = broker.core.store
    found: list[Record] = []
    while len(found) < store.max_offset(TOPIC, queue_id):
        records = store.read_messages(TOPIC, queue_id, len(found), 1000, 1 << 30).records
        found += [look_at(each).record for each in records]
    return found
