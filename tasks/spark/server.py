"""Our Spark Connect server: one JVM, started when a report needs it, watched, replaced, and gone when this process is.

    python -m tasks.spark.server

A report asks for Spark by connecting to the socket DATA/run/spark.sock (only this user may). While it keeps that connection, its
lease, the server is neither stopped nor replaced. The conversation is one JSON object a line:

    to the client      {"state": "starting" | "ready" | "failed" | "unavailable", "detail": str, "url": str, "generation": int}
    from the client    {"event": "session"}  a new session works | {"event": "broken", "why": str}  it does not
                       {"event": "done"}     the last line of a client that cleaned up after itself

`tasks.spark.lease` is the client. Reports run side by side, each with a lease of its own, in one session that the address
names; the scratch directory also holds what Spark takes for Python (`tasks.spark.daemons`). What a person is shown goes to
DATA/run/spark.json. Decisions are `tasks.spark.lifecycle`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import runpy
import secrets
import shutil
import signal
import socket
import sys
import time
import uuid
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson

from remoting.errors import SettingsError
from remoting.transport.tasks import TaskOwner
from tasks.heartbeat_file import beat
from tasks.spark import launch
from tasks.spark.archive import Archive, cache_dir
from tasks.spark.lease import short_address
from tasks.spark.lifecycle import Action, Lifecycle, State
from tasks.spark.processes import tree_memory_bytes
from tasks.spark.settings import SparkSettings
from webapp.appliance import java
from webapp.appliance.processes import dying_with_this_process

log = logging.getLogger(__name__)

LINE_BYTES = 8192
MOST_CLIENTS = 64
LISTEN_POLL_S = 0.1
MEASURE_EVERY_S = 5.0
BEAT_EVERY_S = 5.0
PROJECT_DIR = Path(__file__).resolve().parents[2]


def now_ms() -> int:
    """Monotonic milliseconds."""
    return time.monotonic_ns() // 1_000_000


async def keep_beating() -> None:
    """Say that this process lives, until cancelled."""
    while True:
        beat()
        await asyncio.sleep(BEAT_EVERY_S)


class Jvm:
    """The running server process."""

    def __init__(self, process: asyncio.subprocess.Process, port: int, url: str) -> None:
        self.process = process
        self.port = port
        self.url = url

    async def listens(self) -> bool:
        """Whether it accepts connections."""
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        writer.close()
        return True

    def send(self, number: signal.Signals) -> None:
        """Signal it, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)


class Server:
    """Carries out what the lifecycle decides, and tells everybody who holds a lease."""

    def __init__(self, settings: SparkSettings, problem: str | None, java_home: str) -> None:
        self._settings = settings
        self._problem = problem
        self._programs = _find_programs(java_home)
        cache = cache_dir(os.environ) if settings.is_local else None
        self._archive = Archive(cache, java_home, self._programs.jars) if cache is not None else None
        self._lifecycle = Lifecycle(settings.idle_stop_ms, settings.most_memory_bytes)
        self._jvm: Jvm | None = None
        self._clients: set[asyncio.StreamWriter] = set()
        self._early: set[asyncio.StreamWriter] = set()  # those who came while a JVM stopped: they want the next one
        self._changed = asyncio.Event()
        self._owner = TaskOwner("spark")
        self._published: dict[str, Any] | None = None

    async def run(self) -> None:
        """Serve until cancelled; then the JVM is stopped."""
        listener = await self._listen()
        self._owner.spawn(keep_beating(), "heartbeat")
        self._owner.spawn(self._measure(), "measuring")
        try:
            while True:
                self._publish()
                self._changed.clear()
                await self._carry_out(*self._lifecycle.decide(now_ms()))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._lifecycle.next_look_ms(now_ms()) / 1000):
                        await self._changed.wait()
        finally:
            listener.close()
            await self._dismiss()
            await self._stop_at_once()
            await self._owner.close()
            self._settings.socket_path.unlink(missing_ok=True)
            self._settings.state_path.unlink(missing_ok=True)

    # ---- the JVM

    async def _carry_out(self, action: Action, why: str) -> None:
        match action:
            case Action.START:
                await self._start()
            case Action.STOP:
                assert self._jvm is not None
                log.info("stopping Spark: %s", why)
                self._lifecycle.stop_asked(why, now_ms())
                self._jvm.send(signal.SIGTERM)
                self._tell_all()
            case Action.KILL:
                assert self._jvm is not None
                log.warning("killing Spark: %s", why)
                self._lifecycle.kill_asked(why)
                self._jvm.send(signal.SIGKILL)
                # until it is reaped there is nothing else to decide
                await self._jvm.process.wait()
                await self._changed.wait()
            case Action.NOTHING:
                pass

    async def _start(self) -> None:
        token, port = secrets.token_urlsafe(24), _free_port()
        scratch = self._settings.scratch_dir
        try:
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir(parents=True, mode=0o700)
            launch.pools_file(self._settings).write_text(launch.FAIR_POOLS)
            environ = launch.environment(
                self._settings,
                os.environ,
                dataclasses.replace(self._programs, python=self._python(scratch)),
                project_dir=PROJECT_DIR,
                token=token,
            )
            jvm_options = self._archive.options() if self._archive is not None else []
            process = await asyncio.create_subprocess_exec(
                *launch.command(self._settings, self._programs, port, jvm_options),
                cwd=scratch,
                env=environ,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sys.stderr,
                stderr=sys.stderr,
                preexec_fn=dying_with_this_process(),
            )
        except OSError as error:
            log.error("Spark cannot be started: %s", error)
            self._lifecycle.start_failed(f"Spark cannot be started: {error}", now_ms())
            self._tell_all(failed=True)
            return
        log.info("starting Spark (%s, process %d, port %d)", self._settings.master, process.pid, port)
        # The client library sends a token without TLS only to a host of this very name. All clients share one session: each
        # session would have Python processes of its own.
        self._jvm = Jvm(process, port, f"sc://localhost:{port}/;token={token};session_id={uuid.uuid4()}")
        self._lifecycle.started(now_ms(), drafts=self._archive is not None and self._archive.is_drafting)
        self._tell_all()
        self._owner.spawn(self._watch(self._jvm), "watching the JVM")
        self._owner.spawn(self._await_listening(self._jvm), "waiting for the JVM")

    def _python(self, scratch: Path) -> str:
        """What Spark here takes for Python; see `tasks.spark.daemons`."""
        if not self._settings.is_local:
            return self._programs.python
        path = scratch / "python"
        path.write_text(launch.worker_python(self._programs))
        path.chmod(0o700)
        # a directory from which nothing may be started is no reason to fail
        return str(path) if os.access(path, os.X_OK) else self._programs.python

    async def _await_listening(self, jvm: Jvm) -> None:
        while jvm.process.returncode is None and self._lifecycle.state is State.STARTING:
            if await jvm.listens():
                self._lifecycle.listening(now_ms())
                log.info("Spark listens")
                self._tell_all()
                self._changed.set()
                return
            await asyncio.sleep(LISTEN_POLL_S)

    async def _watch(self, jvm: Jvm) -> None:
        code = await jvm.process.wait()
        how = f"exit code {code}; its log says more" if code >= 0 else f"killed by {signal.Signals(-code).name}"
        came_up = self._lifecycle.state is not State.STARTING
        if self._archive is not None and self._archive.ended(code, came_up=came_up, did_work=self._lifecycle.did_work):
            # it was the archive's fault: whoever waits goes on waiting for the start without it
            self._lifecycle.stop_asked(how, now_ms())
        unexpected = self._lifecycle.exited(how, now_ms())
        self._jvm = None
        log.log(logging.ERROR if unexpected else logging.INFO, "Spark ended: %s", how)
        for writer in self._clients:
            self._tell(writer, failed=unexpected and writer not in self._early)
        self._early.clear()
        self._changed.set()

    async def _stop_at_once(self) -> None:
        jvm = self._jvm
        if jvm is None or jvm.process.returncode is not None:
            return
        self._lifecycle.stop_asked("it ends with the appliance", now_ms())
        jvm.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(4):
                await jvm.process.wait()
        except TimeoutError:
            jvm.send(signal.SIGKILL)
            await jvm.process.wait()

    async def _dismiss(self) -> None:
        """End all leases; their handlers notice the closed connection and end by themselves."""
        for writer in self._clients:
            detail = "Spark was stopped with the appliance; run the report again"
            _write(writer, {"state": "failed", "detail": detail, "url": "", "generation": self._lifecycle.generation})
            writer.close()
        try:
            async with asyncio.timeout(1):
                while self._clients:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            for writer in self._clients:
                writer.transport.abort()  # one that does not read what it is told

    async def _measure(self) -> None:
        while True:
            await asyncio.sleep(MEASURE_EVERY_S)
            if self._jvm is not None:
                self._lifecycle.measured(tree_memory_bytes(self._jvm.process.pid))

    # ---- leases

    async def _listen(self) -> asyncio.Server:
        path = self._settings.socket_path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        previous = os.umask(0o177)
        try:
            with short_address(path) as address:
                listener.bind(address)
        finally:
            os.umask(previous)
        return await asyncio.start_unix_server(self._serve, sock=listener, limit=LINE_BYTES)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._problem is not None or len(self._clients) >= MOST_CLIENTS:
            detail = self._problem or f"{MOST_CLIENTS} reports use Spark already; try again later"
            _write(writer, {"state": "unavailable", "detail": detail, "url": "", "generation": 0})
            writer.close()
            return
        self._clients.add(writer)
        if self._lifecycle.state is State.STOPPING:
            self._early.add(writer)
        self._lifecycle.lease_opened()
        self._tell(writer)
        self._changed.set()
        clean = False
        try:
            while line := await reader.readline():
                clean = self._heard(line) or clean
        except (OSError, ValueError) as error:
            log.warning("a lease ended badly: %s", error)
        finally:
            if not clean and self._lifecycle.state is State.READY:
                self._lifecycle.found_unhealthy("a report ended without cleaning up, so a fresh one takes its place")
            self._lifecycle.lease_closed(now_ms())
            self._clients.discard(writer)
            self._early.discard(writer)
            writer.close()
            self._changed.set()

    def _heard(self, line: bytes) -> bool:
        """Take a client's line; True when it says good-bye."""
        try:
            said = orjson.loads(line)
            event = said["event"]
        except (ValueError, KeyError, TypeError):
            log.warning("a client says what nobody understands: %r", line[:80])
            return False
        if event == "session":
            self._lifecycle.session_created()
            self._changed.set()
        elif event == "broken":
            self._lifecycle.found_broken(f"it does not work: {str(said.get('why'))[:300]}")
            self._changed.set()
        return bool(event == "done")

    def _tell_all(self, *, failed: bool = False) -> None:
        for writer in list(self._clients):
            self._tell(writer, failed=failed)

    def _tell(self, writer: asyncio.StreamWriter, *, failed: bool = False) -> None:
        ready = self._lifecycle.state is State.READY
        assert not ready or self._jvm is not None
        state = "failed" if failed else "ready" if ready else "starting"
        _write(
            writer,
            {
                "state": state,
                "detail": self._lifecycle.detail,
                "url": self._jvm.url if ready and self._jvm is not None else "",
                "generation": self._lifecycle.generation,
            },
        )

    # ---- what a person is shown

    def _publish(self) -> None:
        state, detail = self._lifecycle.shown if self._problem is None else ("unavailable", self._problem)
        content = {
            "version": 1,
            "state": state,
            "detail": detail,
            "pid": os.getpid(),
            "jvm_pid": self._jvm.process.pid if self._jvm is not None else None,
            "master": self._settings.master,
            "leases": self._lifecycle.leases,
        }
        if content == self._published:
            return
        draft = self._settings.state_path.with_suffix(".draft")
        draft.write_bytes(orjson.dumps(content))
        os.replace(draft, self._settings.state_path)
        self._published = content


def _write(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    if not writer.is_closing():
        writer.write(orjson.dumps(message) + b"\n")


def _find_programs(java_home: str) -> launch.Programs:
    spark_home = _spark_home()
    return launch.Programs(spark_home, tuple(sorted((spark_home / "jars").glob("*.jar"))), java_home, sys.executable)


def _spark_home() -> Path:
    """Where pyspark finds its Spark: its own rule, without the rest of pyspark, for which this process has no use."""
    package = find_spec("pyspark")
    if package is None or package.origin is None:
        raise SettingsError("pyspark is not installed; run `make up` once, it installs what Logboom needs")
    rule = runpy.run_path(str(Path(package.origin).with_name("find_spark_home.py")))["_find_spark_home"]
    return Path(rule())


def _free_port() -> int:
    """A port that nobody listens on now. If somebody takes it first, the server ends and the next attempt gets another."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def find_java() -> java.Java:
    """The Java runtime: the supervisor looked already, or we look ourselves."""
    problem = os.environ.get("LOGBOOM_JAVA_PROBLEM")
    return java.Java(None, problem) if problem else java.find(os.environ)


async def serve_external(settings: SparkSettings) -> None:
    """Somebody else runs Spark: there is nothing to do but to say so."""
    content = {"version": 1, "state": "external", "detail": f"reports use {settings.master.partition(';')[0]}"}
    settings.state_path.parent.mkdir(parents=True, exist_ok=True)
    settings.state_path.write_bytes(orjson.dumps({**content, "pid": os.getpid()}))
    try:
        await keep_beating()
    finally:
        settings.state_path.unlink(missing_ok=True)


async def main() -> None:
    """Run until SIGTERM or SIGINT."""
    settings = SparkSettings.read(os.environ, os.cpu_count() or 1)
    if settings.is_external:
        work = serve_external(settings)
    else:
        found = await asyncio.to_thread(find_java)
        work = Server(settings, found.problem, found.home or "").run()
    task = asyncio.get_running_loop().create_task(work, name="spark")
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        asyncio.run(main())
    except SettingsError as refusal:
        sys.exit(str(refusal))
