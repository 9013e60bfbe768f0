from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from remoting import codes
from remoting.facts.broker_state import KNOWN_TOPICS, SAME_TOPICS, TOLD_TOPICS, BrokerState
from remoting.facts.cluster_view import KNOWN_VIEW, SAME_VIEW, TOLD_VIEW, ClusterView
from remoting.facts.codec import encode
from remoting.facts.snapshot import ClusterSnapshot, Queue, SparkProcess, Supervisor, Topic, Verdict
from remoting.facts.words import Health
from remoting.frame import Command
from remoting.transport.client import RemotingClient
from remoting.transport.connection import RemotingConnection
from remoting.transport.server import RemotingServer, each
from tasks.collector import Collector, LocalFiles, Publisher, read_published
from tasks.history import Journal
from tasks.watching import Question, Watches
from tests.unit.tasks.fake_cluster import answering, serve
from tests.unit.tasks.fake_history import MemoryHistory
from tests.unit.tasks.snapshot.cluster import replica, state, topic, view


class MemoryPublisher:
    """Keeps what was published, and lets a test wait for a snapshot that it likes."""

    def __init__(self) -> None:
        self.snapshots: list[ClusterSnapshot] = []
        self.stored: ClusterSnapshot | None = None
        self.broken = False
        self.refused = asyncio.Event()
        self._published = asyncio.Event()

    async def last(self) -> ClusterSnapshot | None:
        if self.broken:
            raise RedisConnectionError("gone")
        return self.stored

    async def publish(self, snapshot: ClusterSnapshot) -> None:
        if self.broken:
            self.refused.set()
            raise RedisConnectionError("gone")
        self.snapshots.append(snapshot)
        self._published.set()

    async def wait_for(self, wanted: Callable[[ClusterSnapshot], bool]) -> ClusterSnapshot:
        async with asyncio.timeout(60):
            while True:
                for snapshot in self.snapshots:
                    if wanted(snapshot):
                        return snapshot
                self._published.clear()
                await self._published.wait()


class Broker:
    """One controller and one broker, both answering from what the test sets."""

    def __init__(self) -> None:
        self.view: Any = None
        self.state: Any = None
        self.asked = 0
        self.controller: RemotingServer
        self.broker: RemotingServer

    async def start(self) -> None:
        self.controller = await serve({codes.CLUSTER_VIEW: answering(lambda _: self.view)})
        self.broker = await serve({codes.BROKER_STATE: answering(lambda _: self._state())})
        self.become(1, 3)

    def become(self, master_id: int | None, epoch: int) -> None:
        address = f"127.0.0.1:{self.broker.port}"
        replicas = (replica(1, "master", address=address),)
        told = view(master_broker_id=master_id, master_epoch=epoch, sync_state_set=(1,), replicas=replicas)
        leader = replace(told.controllers[0], address=f"127.0.0.1:{self.controller.port}")
        self.view = replace(told, controllers=(leader,))
        self.state = state(1, "master")

    def _state(self) -> Any:
        self.asked += 1
        return self.state

    async def stop(self) -> None:
        await self.controller.close()
        await self.broker.close()


@asynccontextmanager
async def collecting(
    cluster: Broker, publisher: MemoryPublisher, tmp_path: Path
) -> AsyncIterator[tuple[Collector, LocalFiles]]:
    files = LocalFiles(tmp_path / "supervisor.json", tmp_path / "spark.json")
    client = RemotingClient()
    controllers = (f"127.0.0.1:{cluster.controller.port}",)
    journal = Journal(MemoryHistory())
    collector = Collector(controllers, client, files, publisher, journal)  # type: ignore[arg-type]
    work = asyncio.create_task(collector.run())
    try:
        yield collector, files
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        client.close()


def snapshot_topic(name: str) -> Topic:
    return Topic(name=name, queues=(Queue(group="broker-a", queue_id=0, min_offset=0, max_offset=7),))


def looking_only_when_something_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "tasks.snapshot.pace.LIVELY_EVERY_S",
        "tasks.snapshot.pace.QUIET_EVERY_S",
        "tasks.collector.QUIET_EVERY_S",
    ):
        monkeypatch.setattr(name, 3600.0)


@pytest.fixture
async def cluster() -> AsyncIterator[Broker]:
    found = Broker()
    await found.start()
    yield found
    await found.stop()


async def test_the_first_word_about_a_healthy_cluster_is_healthy(cluster: Broker, tmp_path: Path) -> None:
    publisher = MemoryPublisher()
    async with collecting(cluster, publisher, tmp_path):
        first = await publisher.wait_for(lambda _: True)
    assert first.verdict == Verdict(status=Health.HEALTHY)
    assert first.groups[0].replicas[0].flushed_offset == 1000


async def test_a_change_of_the_view_is_published_at_once_and_a_broken_answer_is_silence(
    cluster: Broker, tmp_path: Path
) -> None:
    publisher = MemoryPublisher()
    async with collecting(cluster, publisher, tmp_path):
        await publisher.wait_for(lambda _: True)
        cluster.become(None, 4)
        await publisher.wait_for(lambda snapshot: snapshot.groups[0].master_epoch == 4)
        cluster.view = {"controllers": [], "groups": [{"replicas": "none"}]}
        await publisher.wait_for(lambda snapshot: snapshot.controllers[0].role == "unreachable")
        cluster.state = [1, 2]
        await publisher.wait_for(lambda snapshot: snapshot.groups[0].replicas[0].role == "unreachable")


async def test_asking_makes_brokers_be_asked_now(cluster: Broker, tmp_path: Path) -> None:
    publisher = MemoryPublisher()
    async with collecting(cluster, publisher, tmp_path) as (collector, _):
        await publisher.wait_for(lambda _: True)
        cluster.state = state(1, "master", topics=(topic("fresh"),))
        asked = cluster.asked
        collector.ask()
        await publisher.wait_for(lambda snapshot: [each.name for each in snapshot.topics] == ["fresh"])
        assert cluster.asked > asked


async def test_a_new_master_is_asked_again_and_again_until_it_serves(
    cluster: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time without a master is what it was, and not the time until the next look."""
    monkeypatch.setattr(Collector, "_state_every_s", lambda *_: 3600.0)
    publisher = MemoryPublisher()
    async with collecting(cluster, publisher, tmp_path):
        await publisher.wait_for(lambda _: True)
        cluster.become(1, 4)
        cluster.state = state(1, "promoting")
        await publisher.wait_for(lambda snapshot: bool(snapshot.history) and snapshot.history[0].ended_ms is None)
        cluster.state = state(1, "master")
        told = await publisher.wait_for(lambda snapshot: bool(snapshot.history) and bool(snapshot.history[0].ended_ms))
    assert told.history[0].epoch == 4


async def test_a_quiet_cluster_is_looked_at_as_soon_as_a_log_grows(
    cluster: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking_only_when_something_moves(monkeypatch)
    monkeypatch.setattr("tasks.snapshot.pace.LIVELY_FOR_S", 0.0)
    publisher = MemoryPublisher()
    async with collecting(cluster, publisher, tmp_path):
        await publisher.wait_for(lambda _: True)
        cluster.state = replace(state(1, "master"), end_offset=4711, flushed_offset=4711)
        [group] = cluster.view.groups
        grown = replace(group, replicas=(replace(group.replicas[0], max_offset=4711),))
        cluster.view = replace(cluster.view, groups=(grown,))
        await publisher.wait_for(lambda snapshot: snapshot.groups[0].replicas[0].flushed_offset == 4711)


async def test_what_a_process_of_the_appliance_publishes_is_seen_while_it_is_quiet(
    cluster: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking_only_when_something_moves(monkeypatch)
    publisher = MemoryPublisher()
    async with collecting(cluster, publisher, tmp_path) as (_, files):
        await publisher.wait_for(lambda _: True)
        process = {"name": "web", "state": "running", "pid": 1, "restarts": 0, "since": "x"}
        files.supervisor.write_text(json.dumps({"processes": [process], "pid": os.getpid()}))
        await publisher.wait_for(lambda snapshot: bool(snapshot.processes))


async def test_topics_that_a_broker_leaves_out_because_they_are_the_same_stay(tmp_path: Path) -> None:
    asked: list[str | None] = []
    known_state = replace(state(1, "master"), topics=(topic("kept"),))

    def answer(connection: RemotingConnection, request: Command) -> None:
        known = request.ext.get(KNOWN_TOPICS)
        asked.append(known)
        if known == "7":
            connection.respond(
                request, ext={TOLD_TOPICS: "7", SAME_TOPICS: "true"}, body=encode(replace(known_state, topics=()))
            )
        else:
            connection.respond(request, ext={TOLD_TOPICS: "7"}, body=encode(known_state))

    server = await serve({codes.BROKER_STATE: each(answer)})
    client, heard = RemotingClient(), asyncio.Event()
    watches = Watches(client, Question(codes.BROKER_STATE, BrokerState, lambda _: 0.0, 1), heard.set)
    watches.set_addresses([f"127.0.0.1:{server.port}"])
    async with asyncio.timeout(60):
        while len(asked) < 3:
            heard.clear()
            await heard.wait()
    assert [told.topics for told in watches.answers().values()] == [(topic("kept"),)]
    assert asked[:3] == [None, "7", "7"]
    await watches.close()
    client.close()
    await server.close()


async def test_a_view_that_a_controller_does_not_tell_again_stays(cluster: Broker) -> None:
    asked: list[str | None] = []

    def answer(connection: RemotingConnection, request: Command) -> None:
        asked.append(request.ext.get(KNOWN_VIEW))
        if asked[-1] == "7":
            connection.respond(request, ext={TOLD_VIEW: "7", SAME_VIEW: "true"})
        else:
            connection.respond(request, ext={TOLD_VIEW: "7"}, body=encode(cluster.view))

    server = await serve({codes.CLUSTER_VIEW: each(answer)})
    client, heard = RemotingClient(), asyncio.Event()
    question = Question(codes.CLUSTER_VIEW, ClusterView, lambda _: 0.0, 1, whole_every_s=lambda: 0.5)
    watches = Watches(client, question, heard.set)
    watches.set_addresses([f"127.0.0.1:{server.port}"])
    async with asyncio.timeout(60):
        while None not in asked[1:]:  # time and again all of it is asked for, for the ages in it
            assert [*watches.answers().values()] == [cluster.view] * bool(watches.answers())
            heard.clear()
            await heard.wait()
    assert asked[:2] == [None, "7"]
    assert asked.count("7") > asked.count(None)
    await watches.close()
    client.close()
    await server.close()


class _Store:
    """The two things that a publisher publishes to."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.told: list[dict[str, Any]] = []

    async def set(self, name: str, value: bytes) -> None:
        self.values[name] = value

    async def get(self, name: str) -> bytes | None:
        return self.values.get(name)

    async def group_send(self, group: str, event: dict[str, Any]) -> None:
        self.told.append(event)


async def test_what_is_published_is_the_snapshot_whether_its_topics_are_as_before_or_not() -> None:
    store = _Store()
    publisher = Publisher(store, store)
    first = ClusterSnapshot(version=1, seq=1, as_of="x", topics=(snapshot_topic("a"),))
    again = replace(first, seq=2, topics=(snapshot_topic("a"),))
    more = replace(again, seq=3, topics=(*again.topics, snapshot_topic("b")))
    for snapshot in (first, again, more, replace(more, seq=4, topics=())):
        await publisher.publish(snapshot)
        assert await publisher.last() == snapshot
    assert [event["seq"] for event in store.told] == [1, 2, 3, 4]


async def test_a_restart_goes_on_counting_and_redis_away_is_waited_out(cluster: Broker, tmp_path: Path) -> None:
    publisher = MemoryPublisher()
    async with collecting(cluster, publisher, tmp_path):
        first = await publisher.wait_for(lambda _: True)
    again = MemoryPublisher()
    again.stored = replace(first, seq=700)
    async with collecting(cluster, again, tmp_path):
        assert (await again.wait_for(lambda _: True)).seq == 701
        again.broken = True
        async with asyncio.timeout(60):
            await again.refused.wait()
        cluster.become(None, 9)
        again.broken = False
        await again.wait_for(lambda snapshot: snapshot.groups[0].master_epoch == 9)


async def test_what_a_dead_supervisor_left_behind_is_not_believed(cluster: Broker, tmp_path: Path) -> None:
    files = LocalFiles(tmp_path / "supervisor.json", tmp_path / "spark.json")
    content = {"processes": [{"name": "web", "state": "running", "pid": 1, "restarts": 0, "since": "x"}]}
    files.supervisor.write_text(json.dumps({**content, "pid": os.getpid()}))
    found = read_published(files.supervisor, Supervisor)
    assert found is not None
    assert found.processes[0].name == "web"
    files.supervisor.write_text(json.dumps({**content, "pid": 2**22 + 1}))
    assert read_published(files.supervisor, Supervisor) is None
    files.supervisor.write_text("{")
    assert read_published(files.supervisor, Supervisor) is None
    assert read_published(files.spark, SparkProcess) is None
