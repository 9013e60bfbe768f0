"""Leases and the process behind them, with a program in Spark's place that listens, dies or hangs as it is told."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tasks.spark import server as server_module
from tasks.spark.lease import Lease, SparkUnavailable
from tasks.spark.lifecycle import MOST_SESSIONS
from tasks.spark.server import Server
from tasks.spark.settings import SparkSettings

T = TypeVar("T")

FAKE_SPARK = """#!{python}
import os, re, signal, socket, sys, time
mode = open(os.path.join(os.environ["SPARK_HOME"], "mode")).read()
port = int(re.search(r"binding.port=(\\d+)", " ".join(sys.argv))[1])
if mode == "die":
    sys.exit(3)
if mode == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
found = [word.partition("=")[2] for word in sys.argv if word.startswith("-XX:SharedArchiveFile=")]
if found and open(found[0]).read() != "classes":
    os.abort()
for word in sys.argv:
    if word.startswith("-XX:ArchiveClassesAtExit="):
        def end(*_, draft=word.partition("=")[2]):
            with open(draft, "w") as file:
                file.write("classes")
            os._exit(143)
        if mode != "stubborn":
            signal.signal(signal.SIGTERM, end)
listener = socket.socket()
listener.bind(("127.0.0.1", port))
if mode != "hang":
    listener.listen()
while True:
    time.sleep(60)
"""


class Appliance:
    """A data directory, a fake Spark, and the state that is shown of it."""

    def __init__(self, tmp_path: Path) -> None:
        self.spark_home = tmp_path / "spark"
        (self.spark_home / "jars").mkdir(parents=True)
        (self.spark_home / "jars" / "spark.jar").touch()
        self.java = tmp_path / "java" / "bin" / "java"
        self.java.parent.mkdir(parents=True)
        self.java.write_text(FAKE_SPARK.format(python=sys.executable))
        self.java.chmod(0o755)
        self.archives = tmp_path / "cache" / "logboom"
        self.mode("listen")
        # deeper than a socket's address may be long
        self.data_dir = tmp_path / ("d" * 60) / ("e" * 60)
        (self.data_dir / "run").mkdir(parents=True)
        self.settings = SparkSettings.read({"LOGBOOM_DATA_DIR": str(self.data_dir)}, 2)

    def mode(self, mode: str) -> None:
        (self.spark_home / "mode").write_text(mode)

    def state(self) -> dict[str, Any]:
        if not self.settings.state_path.exists():
            return {}
        found: dict[str, Any] = json.loads(self.settings.state_path.read_bytes())
        return found

    @asynccontextmanager
    async def running(self, problem: str | None = None) -> AsyncIterator[Server]:
        server = Server(self.settings, problem, str(self.java.parent.parent))
        work = asyncio.create_task(server.run())
        await until("the socket is there", lambda: self.settings.socket_path.exists() or work.done())
        try:
            yield server
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)


@pytest.fixture
def appliance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Appliance:
    found = Appliance(tmp_path)
    monkeypatch.setenv("SPARK_HOME", str(found.spark_home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(found.archives.parent))
    monkeypatch.setattr(server_module, "MEASURE_EVERY_S", 0.05)
    return found


async def until(what: str, condition: Callable[[], T]) -> T:
    async with asyncio.timeout(60):
        while not (found := condition()):
            await asyncio.sleep(0.01)
    return found


async def lease(appliance: Appliance) -> Lease:
    return await asyncio.to_thread(Lease, appliance.settings.socket_path)


async def ready(held: Lease, told: list[str] | None = None) -> tuple[str, int]:
    return await asyncio.to_thread(held.wait_ready, (told if told is not None else []).append, lambda: False)


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


async def test_it_starts_on_demand_and_dies_with_its_keeper(appliance: Appliance) -> None:
    async with appliance.running():
        await until("the state is shown", appliance.state)
        assert (appliance.state()["state"], appliance.state()["jvm_pid"]) == ("stopped", None)
        assert os.stat(appliance.settings.socket_path).st_mode & 0o077 == 0
        told: list[str] = []
        with await lease(appliance) as held:
            url, generation = await ready(held, told)
            assert generation == 1
            assert told[0] == "it starts when a report needs it"
            port = int(url.split(":")[2].split("/")[0])
            with socket.create_connection(("127.0.0.1", port), 5):
                pass
            await until("it is shown", lambda: "first query" in appliance.state()["detail"])
            assert appliance.state()["state"] == "starting"
            held.say("session")
            await until("ready is shown", lambda: appliance.state()["state"] == "ready")
            jvm = appliance.state()["jvm_pid"]
            assert held.problem() is None
            with await lease(appliance) as second:
                assert await ready(second) == (url, generation)
        await until("the leases are given back", lambda: appliance.state()["leases"] == 0)
        assert appliance.state()["state"] == "ready"
    assert is_gone(jvm)
    assert not appliance.settings.socket_path.exists()
    assert appliance.state() == {}


async def test_a_report_that_vanished_has_the_server_replaced(appliance: Appliance) -> None:
    async with appliance.running():
        held = await lease(appliance)
        await ready(held)
        held.close()
        await until("it is stopped", lambda: appliance.state()["state"] == "stopped")
        with await lease(appliance) as second:
            assert (await ready(second))[1] == 2


async def test_the_first_server_writes_down_its_classes_and_the_next_one_reads_them(appliance: Appliance) -> None:
    async with appliance.running() as server:
        for _ in range(2):
            with await lease(appliance) as held:
                await ready(held)
                held.say("session")
            server._lifecycle.found_unhealthy("the test wants the next one")
            server._changed.set()
            await until("it is stopped", lambda: appliance.state()["state"] == "stopped")
        (kept,) = appliance.archives.iterdir()
        assert kept.read_text() == "classes"


async def test_a_damaged_archive_costs_a_second_start_and_no_report(appliance: Appliance) -> None:
    async with appliance.running() as server:
        assert server._archive is not None
        path = server._archive.path
        path.parent.mkdir(parents=True)
        path.write_text("no classes")
        with await lease(appliance) as held:
            assert (await ready(held))[1] == 2
            assert not path.exists()


async def test_many_sessions_have_it_replaced_and_few_do_not(appliance: Appliance) -> None:
    async with appliance.running():
        with await lease(appliance) as held:
            assert (await ready(held))[1] == 1
            for _ in range(MOST_SESSIONS):
                held.say("session")
        await until("it is stopped", lambda: appliance.state()["state"] == "stopped")
        with await lease(appliance) as held:
            assert (await ready(held))[1] == 2
            held.say("session")
        with await lease(appliance) as held:
            assert (await ready(held))[1] == 2


async def test_whoever_holds_a_lease_hears_when_the_server_dies(appliance: Appliance) -> None:
    async with appliance.running():
        with await lease(appliance) as held:
            await ready(held)
            await until("it is shown", lambda: appliance.state()["jvm_pid"])
            os.kill(appliance.state()["jvm_pid"], signal.SIGKILL)
            assert await until("the lease hears of it", held.problem) == "Spark ended by itself: killed by SIGKILL"


async def test_a_server_that_does_not_come_up_is_a_reason_at_once(appliance: Appliance) -> None:
    appliance.mode("die")
    async with appliance.running():
        with (
            await lease(appliance) as held,
            pytest.raises(SparkUnavailable, match="Spark ended by itself: exit code 3"),
        ):
            await ready(held)
        appliance.mode("listen")
        with await lease(appliance) as held:
            assert (await ready(held))[1] >= 2


async def test_a_program_that_is_not_there_is_a_reason(appliance: Appliance) -> None:
    appliance.java.unlink()
    async with appliance.running():
        with await lease(appliance) as held, pytest.raises(SparkUnavailable, match="cannot be started"):
            await ready(held)


async def test_a_broken_server_is_replaced_although_it_is_leased(appliance: Appliance) -> None:
    async with appliance.running():
        with await lease(appliance) as held:
            await ready(held)
            held.say("broken", why="its first query failed")
            assert "its first query failed" in str(await until("the lease hears of it", held.problem))
            with await lease(appliance) as second:
                assert (await ready(second))[1] == 2


async def test_who_comes_while_a_broken_server_stops_gets_the_next_one(appliance: Appliance) -> None:
    appliance.mode("stubborn")
    async with appliance.running():
        with await lease(appliance) as held:
            await ready(held)
            held.say("broken", why="its first query failed")
            await until("it is told to stop", lambda: appliance.state()["state"] == "stopping")
            appliance.mode("listen")
            with await lease(appliance) as second:
                await until("the second is there", lambda: appliance.state()["leases"] == 2)
                os.kill(appliance.state()["jvm_pid"], signal.SIGKILL)
                assert (await ready(second))[1] == 2
                with pytest.raises(SparkUnavailable):
                    await ready(held)


async def test_one_that_does_not_stop_is_killed(appliance: Appliance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.spark.lifecycle.STOP_TIMEOUT_MS", 50)
    appliance.mode("stubborn")
    async with appliance.running():
        held = await lease(appliance)
        await ready(held)
        await until("it is shown", lambda: appliance.state()["jvm_pid"])
        jvm = appliance.state()["jvm_pid"]
        held.close()
        await until("it is killed", lambda: is_gone(jvm))
        appliance.mode("listen")
        with await lease(appliance) as second:
            await ready(second)


async def test_a_start_that_hangs_is_given_up(appliance: Appliance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.spark.lifecycle.START_TIMEOUT_MS", 300)
    appliance.mode("hang")
    async with appliance.running():
        with (
            await lease(appliance) as held,
            pytest.raises(SparkUnavailable, match="was killed: it did not start within"),
        ):
            await ready(held)


async def test_waiting_ends_when_the_report_is_cancelled(appliance: Appliance) -> None:
    appliance.mode("hang")
    async with appliance.running():
        with (
            await lease(appliance) as held,
            pytest.raises(SparkUnavailable, match="cancelled while Spark was starting"),
        ):
            await asyncio.to_thread(held.wait_ready, lambda _: None, lambda: True)
        with await lease(appliance) as held, pytest.raises(SparkUnavailable, match="did not start within 0 s"):
            await asyncio.to_thread(held.wait_ready, lambda _: None, lambda: False, 0.05)


async def test_without_java_everybody_is_told_what_to_install(appliance: Appliance) -> None:
    problem = "Spark reports need Java 17 or newer, but no Java was found; install openjdk-17-jre-headless"
    async with appliance.running(problem):
        with await lease(appliance) as held, pytest.raises(SparkUnavailable) as refusal:
            await ready(held)
        assert str(refusal.value) == problem
        assert (appliance.state()["state"], appliance.state()["detail"]) == ("unavailable", problem)


async def test_nonsense_from_a_client_harms_nobody(appliance: Appliance) -> None:
    async with appliance.running():
        for line in (b"{\n", b"[]\n", b'{"event": 5}\n', b"x" * 20_000 + b"\n"):
            held = await lease(appliance)
            held._socket.sendall(line)
            held.close()
        with await lease(appliance) as held:
            await ready(held)


def test_when_the_spark_process_is_down_the_message_says_so(tmp_path: Path) -> None:
    with pytest.raises(SparkUnavailable, match="Spark is down: its process does not answer"):
        Lease(tmp_path / "spark.sock")
    with pytest.raises(SparkUnavailable, match="Spark is down"):
        Lease(tmp_path / "nowhere" / "spark.sock")


async def test_a_lease_hears_when_its_keeper_ends(appliance: Appliance) -> None:
    async with appliance.running():
        held = await lease(appliance)
        await ready(held)
    assert held.problem() == "Spark was stopped with the appliance; run the report again"
    assert "The Spark process ended" in str(held.problem())
    held.say("done")
    held.close()


def test_an_external_server_needs_none_of_ours(tmp_path: Path) -> None:
    async def run() -> None:
        settings = SparkSettings.read(
            {"LOGBOOM_DATA_DIR": str(tmp_path), "LOGBOOM_SPARK_MASTER": "sc://spark:15002/;token=secret"}, 2
        )
        work = asyncio.create_task(server_module.serve_external(settings))
        await until("the state is shown", settings.state_path.exists)
        state = settings.state_path.read_text()
        assert '"external"' in state
        assert "secret" not in state
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        assert not settings.state_path.exists()

    asyncio.run(run())


def test_spark_is_found_by_pyspark_s_own_rule() -> None:
    from pyspark.find_spark_home import _find_spark_home

    assert str(server_module._spark_home()) == _find_spark_home()
