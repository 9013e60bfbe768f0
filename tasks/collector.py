"""The collector: looks at the whole cluster about once a second and publishes what it saw for the console.

    python -m tasks.collector

It keeps one connection to every controller and broker and asks each on a rhythm of its own, so that one which is slow or frozen
costs nobody else's freshness. A snapshot is built once a second, and at once when the controllers' view changed or somebody
asked on Redis (`tasks.refresh`) and answers arrived. It is written to the Redis key `logboom:snapshot` before
`{"type": "snapshot.changed", "seq": n}` goes to the channels group `snapshot`. Its history goes to the database after
that, beside the next look (`tasks.history`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import logging.config
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import redis.asyncio
from redis.exceptions import RedisError

from remoting import codes
from remoting.client.identity import identity_of_environment
from remoting.errors import LogboomError, ProtocolError
from remoting.facts.broker_state import BrokerState
from remoting.facts.cluster_view import ClusterView
from remoting.facts.codec import decode, encode
from remoting.facts.history import HistoryEntry
from remoting.facts.snapshot import GROUP, KEY, ClusterSnapshot, SparkProcess, Supervisor
from remoting.transport.client import RemotingClient
from remoting.transport.tasks import TaskOwner, end_tasks
from tasks.heartbeat_file import beat
from tasks.history import Journal
from tasks.refresh import CHANNEL
from tasks.snapshot.build import build, differs, recall
from tasks.snapshot.inputs import Look, Memory

log = logging.getLogger(__name__)

VIEW_EVERY_S = 0.25
STATES_EVERY_S = 1.0
BUILD_EVERY_S = 1.0
BUILD_LEAST_S = 0.1
ASKED_FOR_S = 0.5
AWAITED_MS = 10_000
ASK_TIMEOUT_MS = 800
RETRY_S = 1.0
MAX_BROKERS = 1000
MAX_ANSWER_BYTES = 16 * 1024 * 1024


Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Question(Generic[Answer]):
    """What is asked, what kind of fact the answer is, how often, and at most how many are asked."""

    code: int
    kind: type[Answer]
    every_s: float
    most: int
    ext: Mapping[str, str] = field(default_factory=dict)


class Watch(Generic[Answer]):
    """Asks one address the same thing again and again, and keeps the last answer."""

    def __init__(
        self, client: RemotingClient, address: str, question: Question[Answer], heard: Callable[[], None]
    ) -> None:
        self.address = address
        self.answer: Answer | None = None
        self.heard_ms = 0
        self._client = client
        self._question = question
        self._heard = heard
        self._kick = asyncio.Event()
        self._silent = False

    def ask_now(self) -> None:
        """Ask now instead of waiting for the next turn."""
        self._kick.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._kick.clear()
            started = time.monotonic()
            self.answer = await self._ask()
            self.heard_ms = time.time_ns() // 1_000_000
            self._heard()
            rest = started + self._question.every_s - time.monotonic()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, rest)):
                    await self._kick.wait()

    async def _ask(self) -> Answer | None:
        """The answer; None for silence and for an answer that is none."""
        try:
            async with asyncio.timeout(ASK_TIMEOUT_MS / 1000):
                response = await self._client.call(
                    self.address, self._question.code, self._question.ext, timeout_ms=ASK_TIMEOUT_MS
                )
            answer = decode(self._question.kind, response.body, MAX_ANSWER_BYTES)
        except ProtocolError as error:
            self._note_silence(f"its answer has another shape ({error}); are all parts of one version?")
            return None
        except (LogboomError, TimeoutError) as error:
            self._note_silence(str(error) or "no answer in time")
            return None
        self._silent = False
        return answer

    def _note_silence(self, why: str) -> None:
        """Said once per silence: a broker that is down for a night must not fill the log."""
        if not self._silent:
            self._silent = True
            log.warning("%s does not answer: %s", self.address, why)


class Watches(Generic[Answer]):
    """The watches of one kind: started for new addresses, cancelled for those that are gone."""

    def __init__(self, client: RemotingClient, question: Question[Answer], heard: Callable[[], None]) -> None:
        self._client = client
        self._question = question
        self._heard = heard
        self._running: dict[str, tuple[Watch[Answer], asyncio.Task[None]]] = {}

    def set_addresses(self, addresses: Iterable[str]) -> None:
        """Watch exactly these (the first of them, if they are too many)."""
        wanted = dict.fromkeys(itertools.islice(addresses, self._question.most))
        for address in [each for each in self._running if each not in wanted]:
            self._running.pop(address)[1].cancel()
        for address in wanted:
            if address not in self._running:
                watch = Watch(self._client, address, self._question, self._heard)
                task = asyncio.get_running_loop().create_task(watch.run(), name=f"watch {address}")
                task.add_done_callback(functools.partial(self._ended, address))
                self._running[address] = (watch, task)

    def _ended(self, address: str, task: asyncio.Task[None]) -> None:
        """A watch never ends by itself; if it broke, it is started anew with the next look."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the watch of %s broke", address, exc_info=error)
            self._running.pop(address, None)

    def answers(self) -> dict[str, Answer]:
        """Address -> its answer, for those that answered when they were last asked."""
        return {address: watch.answer for address, (watch, _) in self._running.items() if watch.answer is not None}

    def heard_ms(self) -> dict[str, int]:
        """Address -> when its last answer came."""
        return {address: watch.heard_ms for address, (watch, _) in self._running.items()}

    def all_heard(self) -> bool:
        """Whether each was asked at least once, answered or not."""
        return all(watch.heard_ms for watch, _ in self._running.values())

    def ask_now(self) -> None:
        """Ask all of them now."""
        for watch, _ in self._running.values():
            watch.ask_now()

    async def close(self) -> None:
        """Stop watching."""
        tasks = [task for _, task in self._running.values()]
        self._running.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """What the appliance's own processes publish beside the cluster."""

    supervisor: Path
    spark: Path


Published = TypeVar("Published", Supervisor, SparkProcess)


def read_published(path: Path, kind: type[Published]) -> Published | None:
    """The state that a process published; None when that process does not live any more."""
    try:
        found = decode(kind, path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ProtocolError) as error:
        log.warning("cannot read %s: %s", path, error)
        return None
    return found if Path(f"/proc/{found.pid}").exists() else None


class Publisher:
    """Puts snapshots where the console finds them."""

    def __init__(self, client: Any, channel_layer: Any) -> None:
        self._redis = client
        self._channel_layer = channel_layer

    async def last(self) -> ClusterSnapshot | None:
        """The snapshot that is there, or None. Raises ProtocolError when it is of another form."""
        stored = await self._redis.get(KEY)
        return None if stored is None else decode(ClusterSnapshot, stored)

    async def publish(self, snapshot: ClusterSnapshot) -> None:
        """Store first, announce afterwards. Raises RedisError or OSError when Redis does not answer."""
        await self._redis.set(KEY, encode(snapshot))
        await self._channel_layer.group_send(GROUP, {"type": "snapshot.changed", "seq": snapshot.seq})


class Collector:
    """Watches the cluster, builds and publishes."""

    def __init__(
        self,
        controllers: tuple[str, ...],
        client: RemotingClient,
        files: LocalFiles,
        publisher: Publisher,
        journal: Journal,
    ) -> None:
        self._controllers = controllers
        self._files = files
        self._publisher = publisher
        self._journal = journal
        self._memory = Memory()
        self._significant_parts: object = None
        self._urgent = asyncio.Event()
        self._something_heard = asyncio.Event()
        self._asked_until = float("-inf")
        views = Question(codes.CLUSTER_VIEW, ClusterView, VIEW_EVERY_S, len(controllers), {"placements": "true"})
        states = Question(codes.BROKER_STATE, BrokerState, STATES_EVERY_S, MAX_BROKERS)
        self._views = Watches(client, views, self._heard_view)
        self._states = Watches(client, states, self._heard)

    def ask(self) -> None:
        """Look now: somebody changed something. Answers of the next moment are published as they come."""
        self._asked_until = time.monotonic() + ASKED_FOR_S
        self._views.ask_now()
        self._states.ask_now()

    async def run(self) -> None:
        """Until cancelled. Redis being away is waited out: there is nobody to tell."""
        self._memory = await self._recall()
        try:
            await self._ask_everybody_once()
            while True:
                await self._build_and_publish()
                beat()
                await asyncio.sleep(BUILD_LEAST_S)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(BUILD_EVERY_S - BUILD_LEAST_S):
                        await self._urgent.wait()
                self._urgent.clear()
        finally:
            await self._views.close()
            await self._states.close()

    async def _ask_everybody_once(self) -> None:
        """Ask everybody once before the first word about the cluster: what was not asked yet would count as silent."""
        self._views.set_addresses(self._controllers)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * ASK_TIMEOUT_MS / 1000):
                while not (self._views.all_heard() and self._states.all_heard()):
                    self._something_heard.clear()
                    await self._something_heard.wait()

    def _heard_view(self) -> None:
        essence = _significant_parts(self._views.answers())
        if essence != self._significant_parts:
            self._significant_parts = essence
            self._states.set_addresses(self._addresses())
            self._states.ask_now()
            self._urgent.set()
        self._heard()

    def _heard(self) -> None:
        self._something_heard.set()
        if time.monotonic() < self._asked_until:
            self._urgent.set()

    async def _recall(self) -> Memory:
        try:
            return recall(await self._publisher.last())
        except (RedisError, OSError, ProtocolError) as error:
            log.warning("the last snapshot cannot be read, so its history is lost: %s", error)
            return Memory()

    def _addresses(self) -> list[str]:
        """Where brokers are: by the controllers' word, and those of the last snapshot when no controller answers."""
        views, last = self._views.answers(), self._memory.snapshot
        told = [replica.address for view in views.values() for group in view.groups for replica in group.replicas]
        if not views and last is not None:
            told = [replica.address for group in last.groups for replica in group.replicas]
        return [address for address in told if address]

    async def _build_and_publish(self) -> None:
        self._views.set_addresses(self._controllers)
        self._states.set_addresses(self._addresses())
        look = Look(
            now_ms=time.time_ns() // 1_000_000,
            controllers=self._controllers,
            views=self._views.answers(),
            states=self._states.answers(),
            heard_ms=self._states.heard_ms(),
            supervisor=read_published(self._files.supervisor, Supervisor),
            spark=read_published(self._files.spark, SparkProcess),
            kept=self._journal.take(),
        )
        previous = self._memory.snapshot
        snapshot, memory = build(look, self._memory)
        if differs(snapshot, previous):
            reasons = "; ".join(reason.text for reason in snapshot.verdict.reasons)
            log.info("the cluster is %s%s", snapshot.verdict.status, f": {reasons}" if reasons else "")
        try:
            await self._publisher.publish(snapshot)
        except (RedisError, OSError) as error:
            log.warning("the snapshot cannot be published: %s", error)
        self._memory = memory
        self._journal.note(snapshot.history)
        if any(is_new_master_awaited(each, look.now_ms) for each in snapshot.history):
            self.ask()  # how long a group was without master shall not be told by the seconds between two looks


def is_new_master_awaited(entry: HistoryEntry, now_ms: int) -> bool:
    """Whether this is an election of a moment ago whose master was not seen to serve yet."""
    return entry.kind.is_election and entry.ended_ms is None and abs(now_ms - entry.started_ms) < AWAITED_MS


def _significant_parts(views: Mapping[str, ClusterView]) -> object:
    """What of the controllers' views is worth a look at the brokers at once."""
    return {
        address: (
            [(each.id, each.role, each.term) for each in view.controllers],
            [
                (
                    group.broker_name,
                    group.master_broker_id,
                    group.master_epoch,
                    group.sync_state_set,
                    [(each.broker_id, each.alive) for each in group.replicas],
                )
                for group in view.groups
            ],
        )
        for address, view in views.items()
    }


async def listen(client: Any, ask: Callable[[], None]) -> None:
    """Call `ask` whenever somebody asks for a look; reconnects for ever."""
    while True:
        try:
            async with client.pubsub() as pubsub:
                await pubsub.subscribe(CHANNEL)
                async for _ in pubsub.listen():
                    ask()
        except (RedisError, OSError) as error:
            log.warning("not listening for requests to look: %s", error)
        await asyncio.sleep(RETRY_S)


async def main() -> None:
    """Run until SIGTERM or SIGINT."""
    from channels.layers import get_channel_layer
    from django.apps import apps
    from django.conf import settings

    # of the console's models this one alone: loading all would cost a second and half of the memory
    apps.populate(["webapp.history"])
    from webapp.history.store import DatabaseHistory

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    store: Any = redis.asyncio.Redis.from_url(settings.REDIS_URL, socket_connect_timeout=2)
    remoting = RemotingClient(identity=identity_of_environment())
    files = LocalFiles(settings.DATA_DIR / "run" / "supervisor.json", settings.DATA_DIR / "run" / "spark.json")
    publisher = Publisher(store, get_channel_layer())
    journal = Journal(DatabaseHistory())
    collector = Collector(tuple(settings.CONTROLLERS), remoting, files, publisher, journal)
    owner = TaskOwner("collector")
    owner.spawn(listen(store, collector.ask), "listening for requests")
    owner.spawn(journal.run(), "writing the history")
    work = loop.create_task(collector.run(), name="collector")
    work.add_done_callback(lambda _: stopping.set())
    try:
        await stopping.wait()
        if work.done():
            work.result()  # it never ends by itself: let what broke it be seen, and the supervisor start anew
    finally:
        await end_tasks([work])
        await owner.close()
        remoting.close()
        await store.aclose()


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")
    from django.conf import settings as _settings

    logging.config.dictConfig(_settings.LOGGING)
    asyncio.run(main())
