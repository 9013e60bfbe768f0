"""The collector: looks at the whole cluster about once a second and publishes what it saw for the console.

    python -m tasks.collector

It keeps one connection to every controller and broker and asks each on a rhythm of its own, so that one which is slow or frozen
costs nobody else's freshness. A snapshot is built once a second while something moves, every four seconds while nothing does
(`tasks.snapshot.pace`), and at once when the controllers' view changed or somebody asked on Redis (`tasks.refresh`) and answers
arrived. It is written to the Redis key `logboom:snapshot` before
`{"type": "snapshot.changed", "seq": n}` goes to the channels group `snapshot`. Its history goes to the database after
that, beside the next look (`tasks.history`).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import logging.config
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import redis.asyncio
from redis.exceptions import RedisError

from remoting import codes
from remoting.client.identity import identity_of_environment
from remoting.errors import ProtocolError
from remoting.facts.broker_state import BrokerState
from remoting.facts.cluster_view import ClusterView
from remoting.facts.codec import decode, encode, encode_around
from remoting.facts.history import HistoryEntry
from remoting.facts.snapshot import GROUP, KEY, ClusterSnapshot, SparkProcess, Supervisor, Topic
from remoting.transport.beats import until_last_beat
from remoting.transport.client import RemotingClient
from remoting.transport.tasks import TaskOwner, end_tasks
from tasks.heartbeat_file import beat
from tasks.history import Journal
from tasks.refresh import CHANNEL
from tasks.snapshot.build import build, differs, recall
from tasks.snapshot.inputs import Look, Memory
from tasks.snapshot.pace import QUIET_EVERY_S, Pace, log_ends, moves
from tasks.watching import ASK_TIMEOUT_MS, Question, Watches

log = logging.getLogger(__name__)

VIEW_EVERY_S = 0.25  # of the controller that leads; of the others as often as of brokers
WHOLE_EARLY_S = 0.1  # all of a view is wanted with each snapshot
LOCAL_LOOK_EVERY_S = 1.0  # at the files of the appliance's own processes
BUILD_LEAST_S = 0.1
ASKED_FOR_S = 0.5
AWAITED_MS = 10_000
RETRY_S = 1.0
MAX_BROKERS = 1000


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """What the appliance's own processes publish beside the cluster."""

    supervisor: Path
    spark: Path

    def stamps(self) -> tuple[int, ...]:
        """When each was written; other numbers mean that one was written since."""
        return tuple(_written_ns(path) for path in (self.supervisor, self.spark))


def _written_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


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
        self._topics: tuple[Topic, ...] = ()  # that were published last
        self._encoded_topics: list[bytes] = []

    async def last(self) -> ClusterSnapshot | None:
        """The snapshot that is there, or None. Raises ProtocolError when it is of another form."""
        stored = await self._redis.get(KEY)
        return None if stored is None else decode(ClusterSnapshot, stored)

    async def publish(self, snapshot: ClusterSnapshot) -> None:
        """Store first, announce afterwards. Raises RedisError or OSError when Redis does not answer."""
        if snapshot.topics != self._topics:  # nearly all of a snapshot, and mostly as they were
            self._topics, self._encoded_topics = snapshot.topics, [encode(each) for each in snapshot.topics]
        await self._redis.set(KEY, encode_around(snapshot, {"topics": self._encoded_topics}, camel=False))
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
        settled: Callable[[], None] = lambda: None,
    ) -> None:
        """`settled` is called when all were asked once, and what was told is there."""
        self._controllers = controllers
        self._files = files
        self._publisher = publisher
        self._journal = journal
        self._settled = settled
        self._memory = Memory()
        self._told: Mapping[str, BrokerState] = {}  # what the snapshot of that memory was made of
        self._files_seen: object = None
        self._pace = Pace()
        self._significant_parts: object = None
        self._log_ends: object = None
        self._heard_views: Mapping[str, ClusterView] = {}
        self._urgent = asyncio.Event()
        self._something_heard = asyncio.Event()
        self._asked_until = float("-inf")
        views = Question(
            codes.CLUSTER_VIEW,
            ClusterView,
            self._view_every_s,
            len(controllers),
            {"placements": "true"},
            lambda: self._every_s() - WHOLE_EARLY_S,
        )
        states = Question(codes.BROKER_STATE, BrokerState, self._state_every_s, MAX_BROKERS)
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
            self._settled()
            while True:
                await self._build_and_publish()
                beat()
                await asyncio.sleep(BUILD_LEAST_S)
                await self._wait_for_news()
                if not (self._urgent.is_set() or self._pace.is_lively(time.monotonic())):
                    await self._ask_all()
                self._urgent.clear()
        finally:
            await self._views.close()
            await self._states.close()

    async def _wait_for_news(self) -> None:
        """Until the next snapshot is due."""
        built_s = time.monotonic() - BUILD_LEAST_S
        while (rest_s := built_s + self._every_s() - time.monotonic()) > 0:
            await until_last_beat(min(rest_s, LOCAL_LOOK_EVERY_S), self._urgent)
            if self._urgent.is_set() or self._files.stamps() != self._files_seen:
                return
            beat()

    async def _ask_all(self) -> None:
        """While it is quiet everybody is asked just before a snapshot, so that it says what is true."""
        asked_ms = time.time_ns() // 1_000_000
        self._views.ask_now()
        self._states.ask_now()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ASK_TIMEOUT_MS / 1000):
                while not (self._views.all_heard(asked_ms) and self._states.all_heard(asked_ms)):
                    self._something_heard.clear()
                    await self._something_heard.wait()

    def _every_s(self) -> float:
        """How far apart snapshots are now."""
        return self._pace.every_s(time.monotonic())

    def _state_every_s(self, _: str) -> float:
        every_s = self._every_s()
        return every_s if every_s < QUIET_EVERY_S else 2 * QUIET_EVERY_S  # `_ask_all` comes first

    def _view_every_s(self, address: str) -> float:
        """Whoever leads tells first of what changed; while nobody is known to lead, all are asked."""
        views = self._views.answers()
        leads = {told: own.leader for told, view in views.items() if (own := view.controller(told)) is not None}
        if leads.get(address) or not any(leads.values()):
            return VIEW_EVERY_S
        return self._state_every_s(address)

    async def _ask_everybody_once(self) -> None:
        """Ask everybody once before the first word about the cluster: what was not asked yet would count as silent."""
        self._views.set_addresses(self._controllers)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * ASK_TIMEOUT_MS / 1000):
                while not (self._views.all_heard() and self._states.all_heard()):
                    self._something_heard.clear()
                    await self._something_heard.wait()

    def _heard_view(self) -> None:
        views = self._views.answers()
        if views.keys() == self._heard_views.keys() and all(self._heard_views[each] is views[each] for each in views):
            self._heard()
            return
        self._heard_views = views
        essence = _significant_parts(views)
        if essence != self._significant_parts:
            self._significant_parts = essence
            self._states.set_addresses(self._addresses())
            self._states.ask_now()
            self._views.ask_now()  # the others, too: who leads may be another one now
            self._urgent.set()
        ends = log_ends(views)
        if ends != self._log_ends:
            self._log_ends = ends
            self._moved()
        self._heard()

    def _moved(self) -> None:
        """Look every second from now on, and begin with that at once if it was quiet."""
        now_s = time.monotonic()
        was_lively = self._pace.is_lively(now_s)
        self._pace.moved(now_s)
        if not was_lively:
            self.ask()

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
        states = self._states.answers()
        self._files_seen = self._files.stamps()
        look = Look(
            now_ms=time.time_ns() // 1_000_000,
            controllers=self._controllers,
            views=self._views.answers(),
            states=states,
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
            self._pace.moved(time.monotonic())  # Redis may be back in a moment
        if moves(memory, self._memory, states, self._told):
            self._pace.moved(time.monotonic())
        self._memory, self._told = memory, states
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


def stay() -> None:
    """Have the garbage collector look no more at what is there by now, which mostly stays."""
    gc.collect()
    gc.freeze()


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
    collector = Collector(tuple(settings.CONTROLLERS), remoting, files, publisher, journal, stay)
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
    import uvloop
    from django.conf import settings as _settings

    logging.config.dictConfig(_settings.LOGGING)
    uvloop.run(main())
