"""The whole of it with real processes: brokers, Redis, Celery workers, beat, Spark, and the console's database.

The test sees what a person would: rows of the database, files, processes that are there or not.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import redis
from celery import Celery

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.record.properties import encode_properties
from tests.reports.conftest import ROOT, SparkProcess
from tests.support.beside import Beside
from tests.support.client_bytes import encode_batch_body
from tests.support.cluster import Cluster, eventually
from tests.support.forked import Forked, fork
from tests.support.leash import leashed
from tests.support.redis import embedded
from webapp import redis_urls

pytestmark = pytest.mark.slow

MESSAGES = 60_000
BATCH = 100
ENDED = ("succeeded", "failed", "cancelled")


class Appliance:
    """What `make up` starts, without web and supervisor."""

    def __init__(self, root: Path, spark: SparkProcess) -> None:
        self.cluster = Cluster(root / "cluster", controllers=1, replicas=1)
        self.redis = embedded(Path(spark.environ["LOGBOOM_DATA_DIR"]))
        self.environ = {
            **spark.environ,
            "REDIS_URL": self.redis.url,
            "LOGBOOM_CONTROLLERS": ",".join(self.cluster.controller_addresses),
            "DJANGO_SETTINGS_MODULE": "webapp.settings",
            "PYTHONUNBUFFERED": "1",
        }
        self.data = Path(self.environ["LOGBOOM_DATA_DIR"])
        self.processes: dict[str, subprocess.Popen[bytes] | Forked] = {}
        self.beside = Beside(self.environ, self.data / "django.log")
        self.celery = Celery("tests", broker=redis_urls.for_celery(self.redis.url), set_as_current=False)

    def start(self) -> None:
        self.start_redis()
        assert self.fork("prepare").wait(120) == 0, (self.data / "prepare.log").read_text()
        self.cluster.start()
        self.start_worker()
        self.celery_process("beat", "--pidfile", "")

    def start_redis(self) -> None:
        self.spawn("redis", *self.redis.argv)

    def start_worker(self) -> None:
        # the queues by which workers tell one another of themselves would be kept by scripts in Redis
        alone = ("--without-gossip", "--without-mingle")
        self.celery_process("worker", "-Q", "default,reports", "--concurrency", "1", *alone)

    def celery_process(self, name: str, *arguments: str) -> None:
        heartbeat = self.data / f"{name}.heartbeat"
        heartbeat.unlink(missing_ok=True)
        self.processes[name] = self.fork(name, str(heartbeat), *arguments, "--loglevel", "INFO")
        eventually(f"{name} beats", heartbeat.exists, 120)

    def spawn(self, name: str, *argv: str, **variables: str) -> None:
        with open(self.data / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                leashed(argv),  # dies also when the test run is killed
                cwd=ROOT,
                env={**self.environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def fork(self, name: str, *arguments: str) -> Forked:
        return fork(
            "tests.reports.copies", [name, *arguments], ROOT, self.data / f"{name}.log", environment=self.environ
        )

    def close(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
                process.wait(10)
        self.beside.close()
        for each in self.cluster.processes:
            each.close()
        self.celery.close()

    # ---- what a person does and sees

    def fill(self, topic: str, count: int) -> None:
        with SocketConnection(self.cluster.broker_addresses[0]) as broker:
            for start in range(0, count, BATCH):
                items = [
                    (0, b"x" * (1 + index % 200), encode_properties({"KEYS": f"k{index % 7}"}))
                    for index in range(start, start + BATCH)
                ]
                ext = {"a": "test", "b": topic, "c": "TBW102", "d": "4", "e": str(start // BATCH % 4), "f": "0"}
                ext |= {"g": str(time.time_ns() // 1_000_000), "h": "0", "i": "", "j": "0", "k": "false", "m": "true"}
                broker.call(codes.SEND_BATCH_MESSAGE, ext, encode_batch_body(items), timeout_ms=10_000)

    def query(self, sql: str, *arguments: Any) -> list[tuple[Any, ...]]:
        database = sqlite3.connect(self.data / "console.sqlite3", timeout=20)
        try:
            return database.execute(sql, arguments).fetchall()
        finally:
            database.close()

    def make_run(self, **parameters: Any) -> str:
        run_id = str(uuid.uuid4())
        given = {"topics": ["orders"], "start": None, "end": None, "minutes": 600, "top_keys": 3, **parameters}
        self.beside.run(
            "from webapp.reports.models import ReportRun\n"
            f"ReportRun.objects.create(pk={run_id!r}, report='throughput', parameters={given!r})"
        )
        self.celery.send_task("tasks.reports.run", [run_id], queue="reports")
        return run_id

    def make_operation(self, kind: str, **parameters: Any) -> str:
        operation_id = str(uuid.uuid4())
        self.beside.run(
            "from webapp.operations.models import Operation\n"
            f"Operation.objects.create(pk={operation_id!r}, kind={kind!r}, parameters={parameters!r})"
        )
        self.celery.send_task("tasks.operations.run", [operation_id], queue="default")
        return operation_id

    def wait_operation(self, operation_id: str) -> dict[str, Any]:
        sql = "select state, error, nodes from operations_operation where id = ?"

        def ended() -> dict[str, Any] | None:
            ((state, error, nodes),) = self.query(sql, uuid.UUID(operation_id).hex)
            return {"state": state, "error": error, "nodes": json.loads(nodes)} if state in ENDED else None

        return eventually(f"operation {operation_id} is over", ended, 120)

    def report(self, run_id: str) -> dict[str, Any]:
        fields = ("state", "reason", "progress", "rows_count", "parquet_path", "spark_session_id", "last_seq")
        (row,) = self.query(f"select {', '.join(fields)} from reports_reportrun where id = ?", uuid.UUID(run_id).hex)
        found = dict(zip(fields, row, strict=True))
        found["progress"] = json.loads(found["progress"])
        return found

    def rows(self, run_id: str, section: str) -> list[dict[str, Any]]:
        sql = "select data from reports_reportrow where run_id = ? and section = ?"
        return [json.loads(data) for (data,) in self.query(sql, uuid.UUID(run_id).hex, section)]

    def wait_state(self, run_id: str, *states: str, timeout_s: float = 240) -> dict[str, Any]:
        def reached() -> dict[str, Any] | None:
            found = self.report(run_id)
            return found if found["state"] in states else None

        return eventually(f"run {run_id} is {' or '.join(states)}", reached, timeout_s)

    def wait_reading(self, run_id: str) -> None:
        """Until the run has shown some of its rows but not all."""

        def reads() -> bool:
            found = self.report(run_id)
            assert found["state"] in ("queued", "starting", "running"), found
            return bool(found["progress"].get("rows_read")) and bool(self.rows(run_id, "throughput"))

        eventually("the report shows partial rows", reads, 240)


@pytest.fixture(scope="module")
def appliance(tmp_path_factory: pytest.TempPathFactory, spark_process: SparkProcess) -> Iterator[Appliance]:
    found = Appliance(tmp_path_factory.mktemp("appliance"), spark_process)
    try:
        found.start()
        found.cluster.admin.create_topic("orders", 4)
        eventually("the topic has a route", lambda: found.cluster.admin.queue_offsets("orders"))
        found.fill("orders", MESSAGES)
        yield found
    finally:
        found.close()


def test_a_report_runs_and_leaves_rows_and_a_file(appliance: Appliance) -> None:
    run_id = appliance.make_run()
    found = appliance.wait_state(run_id, "succeeded", "failed")
    assert found["state"] == "succeeded", found["reason"]
    assert found["progress"]["text"] == f"{MESSAGES:,} messages counted."
    assert sum(row["messages"] for row in appliance.rows(run_id, "throughput")) == MESSAGES
    assert [row["key"] for row in appliance.rows(run_id, "keys")] == ["k0", "k1", "k2"]
    assert len(appliance.rows(run_id, "sizes")) == 1
    assert found["last_seq"] > 10, "progress and partial rows were stored while it ran"
    table = pq.read_table(found["parquet_path"])
    assert sum(table["messages"].to_pylist()) == MESSAGES


def test_cancelling_ends_it_and_the_next_report_works_in_the_same_session(appliance: Appliance) -> None:
    run_id = appliance.make_run()
    appliance.wait_reading(run_id)
    appliance.beside.run(f"from webapp.reports import stream\nstream.request_cancel({run_id!r})")
    found = appliance.wait_state(run_id, "cancelled", "succeeded", "failed", timeout_s=60)
    assert (found["state"], found["reason"]) == ("cancelled", "cancelled on request")
    assert appliance.rows(run_id, "throughput"), "what was shown stays"
    again = appliance.wait_state(appliance.make_run(), "succeeded", "failed")
    assert again["state"] == "succeeded", again["reason"]
    assert again["spark_session_id"] == found["spark_session_id"]


def test_a_restarted_redis_ends_no_report(appliance: Appliance) -> None:
    run_id = appliance.make_run()
    appliance.wait_reading(run_id)
    store = redis.Redis.from_url(appliance.redis.url)
    claim = f"logboom:claim:report:{run_id}"
    assert store.exists(claim)
    os.kill(appliance.processes["redis"].pid, signal.SIGKILL)
    appliance.processes["redis"].wait(10)
    appliance.start_redis()
    found = appliance.wait_state(run_id, "succeeded", "failed")
    assert (found["state"], found["reason"]) == ("succeeded", "")
    store.close()


def test_the_collector_publishes_what_the_cluster_is(appliance: Appliance) -> None:
    heartbeat = appliance.data / "collector.heartbeat"
    arguments = (sys.executable, "-m", "tasks.collector")
    appliance.spawn("collector", *arguments, LOGBOOM_HEARTBEAT_FILE=str(heartbeat))
    store = redis.Redis.from_url(appliance.redis.url)

    def published() -> dict[str, Any] | None:
        raw = store.get("logboom:snapshot")
        return None if raw is None else json.loads(raw)

    first = eventually("there is a snapshot", published, 120)
    assert first["verdict"] == {"status": "healthy", "reasons": [], "recent": []}
    (group,) = first["groups"]
    assert (group["master_id"], group["replicas"][0]["role"]) == (1, "master")
    assert {each["name"]: each["message_count"] for each in first["topics"]}["orders"] == MESSAGES
    assert first["spark"]["state"] in ("ready", "stopped", "starting", "stopping")
    assert first["consumer_groups"] == []
    eventually("the collector has a heartbeat", heartbeat.exists)
    made = appliance.make_operation("topic.create", name="bills", type="NORMAL", queues=2, perm=6, group=None)
    assert appliance.wait_operation(made)["state"] == "succeeded"

    def shown() -> bool:
        snapshot = published() or {}
        created = [each for each in snapshot["timeline"] if each["text"] == "topic bills was created"]
        return bool(created) and "bills" in {each["name"] for each in snapshot["topics"]}

    eventually("the new topic is on the page", shown, 30)
    collector = appliance.processes["collector"]
    os.kill(collector.pid, signal.SIGTERM)
    assert collector.wait(60) == 0
    store.close()


def test_a_group_that_is_without_a_master_for_a_while_ends_no_report(appliance: Appliance) -> None:
    broker = appliance.cluster.brokers[0]
    run_id = appliance.make_run()
    appliance.wait_reading(run_id)
    broker.kill()
    read = appliance.report(run_id)["progress"]["rows_read"]
    assert read < MESSAGES, "it has something left to read"
    eventually("the controllers see that nobody leads", lambda: not appliance.cluster.admin.masters())
    assert appliance.report(run_id)["state"] == "running"
    broker.start()
    found = appliance.wait_state(run_id, "succeeded", "failed")
    assert (found["state"], found["reason"]) == ("succeeded", "")
    assert sum(row["messages"] for row in appliance.rows(run_id, "throughput")) == MESSAGES


def test_a_stopped_worker_ends_its_report_with_the_reason(appliance: Appliance) -> None:
    run_id = appliance.make_run()
    appliance.wait_reading(run_id)
    worker = appliance.processes["worker"]
    os.kill(worker.pid, signal.SIGTERM)
    worker.wait(60)
    found = appliance.report(run_id)
    assert found["state"] == "failed"
    assert "The appliance was stopped while this report ran" in found["reason"]
    appliance.start_worker()


def test_a_killed_worker_leaves_no_job_and_the_janitor_says_what_happened(
    appliance: Appliance, spark_process: SparkProcess
) -> None:
    run_id = appliance.make_run()
    appliance.wait_reading(run_id)
    generation = _jvm(spark_process)
    os.killpg(appliance.processes["worker"].pid, signal.SIGKILL)
    appliance.processes["worker"].wait(10)
    eventually("Spark is replaced, since the report left things behind", lambda: _jvm(spark_process) != generation, 60)
    appliance.start_worker()
    found = appliance.wait_state(run_id, "failed", timeout_s=120)
    assert found["reason"].startswith("The worker that ran this report gave no sign of life")
    again = appliance.wait_state(appliance.make_run(), "succeeded", "failed")
    assert again["state"] == "succeeded", again["reason"]


def _jvm(spark_process: SparkProcess) -> Any:
    return json.loads(spark_process.settings.state_path.read_bytes())["jvm_pid"]
