"""The history of a real cluster whose master is killed, written by a collector that is killed as well."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import django
import pytest

django.setup()  # this file is imported before pytest-django does it, and models can be imported only afterwards

from remoting.facts.snapshot import ClusterSnapshot  # noqa: E402
from remoting.transport.client import RemotingClient  # noqa: E402
from tasks.collector import Collector, LocalFiles  # noqa: E402
from tasks.history import Journal  # noqa: E402
from tests.support.cluster import Cluster, eventually  # noqa: E402
from webapp.history.models import HistoryRow  # noqa: E402
from webapp.history.store import DatabaseHistory  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]


class LastSnapshot:
    """What Redis holds, until it is restarted."""

    def __init__(self) -> None:
        self.snapshot: ClusterSnapshot | None = None

    async def last(self) -> ClusterSnapshot | None:
        return self.snapshot

    async def publish(self, snapshot: ClusterSnapshot) -> None:
        self.snapshot = snapshot

    def history(self) -> list[str]:
        return [] if self.snapshot is None else [each.kind for each in self.snapshot.history]


@contextmanager
def collecting(cluster: Cluster, published: LastSnapshot, files: LocalFiles) -> Iterator[None]:
    """A collector in a thread of its own. It ends in the middle of whatever it does, as one that is killed."""
    began, ended = threading.Event(), threading.Event()

    async def run() -> None:
        client = RemotingClient(identity=cluster.identity)
        journal = Journal(DatabaseHistory())
        collector = Collector(tuple(cluster.controller_addresses), client, files, published, journal)  # type: ignore[arg-type]
        tasks = [asyncio.create_task(collector.run()), asyncio.create_task(journal.run())]
        began.set()
        await asyncio.to_thread(ended.wait)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        client.close()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        assert began.wait(30)
        yield
    finally:
        ended.set()
        thread.join(60)


@pytest.fixture
def files(cluster: Cluster, tmp_path: Path) -> LocalFiles:
    """What a supervisor would publish: the brokers' processes, numbered otherwise than the replicas."""
    processes = [
        {"name": f"broker-{number}", "kind": "broker", "state": "running", "pid": 1, "address": address}
        for number, address in enumerate(cluster.broker_addresses)
    ]
    supervisor = tmp_path / "supervisor.json"
    supervisor.write_text(json.dumps({"pid": os.getpid(), "state": "running", "processes": processes}))
    return LocalFiles(supervisor, tmp_path / "spark.json")


def rows(kind: str) -> list[HistoryRow]:
    return list(HistoryRow.objects.filter(kind=kind).order_by("started_at"))


def test_a_killed_master_is_in_the_history_once_with_cause_and_duration(cluster: Cluster, files: LocalFiles) -> None:
    published, master = LastSnapshot(), cluster.master()
    epoch = cluster.wait_in_sync(3)["masterEpoch"]
    with collecting(cluster, published, files):
        eventually("a healthy cluster", lambda: published.snapshot and published.snapshot.verdict.status == "healthy")
        cluster.brokers[master].kill()
        eventually(
            "the election in the database", lambda: HistoryRow.objects.filter(epoch=epoch + 1, ended_at__isnull=False)
        )
        eventually("the fault in the database", lambda: rows("replica-down"))
    (election,) = HistoryRow.objects.filter(kind="election", epoch=epoch + 1)
    assert f"(broker-{master})" in election.previous
    assert election.cause == f"{election.previous}: its connection to the controllers closed"
    assert election.duration_ms is not None
    assert 0 <= election.duration_ms < 10_000
    (down,) = rows("replica-down")
    assert (down.subject, down.ended_at) == (election.previous, None)

    again = LastSnapshot()  # Redis was restarted, too: what is open, only the database knows
    with collecting(cluster, again, files):
        eventually("the fault that goes on", lambda: "replica-down" in again.history())
        cluster.brokers[master].start()
        cluster.wait_in_sync(3)
        eventually("its end in the database", lambda: rows("replica-down")[0].ended_at)
        told = eventually(
            "healthy again", lambda: again.snapshot and not again.snapshot.verdict.reasons and again.snapshot
        )
    assert len(rows("replica-down")) == 1
    epochs = list(HistoryRow.objects.filter(kind="election").values_list("epoch", flat=True))
    assert len(epochs) == len(set(epochs)), "an election is there twice"
    assert told.verdict.status == "healthy"
    assert [each.text for each in told.verdict.recent if f"(broker-{master})" in each.text]
