"""Carrying out a plan: start everything as early as possible, restart what dies, publish the state, stop in order.

One task per process owns that process's life; nobody else starts or restarts it. Stopping is announced first (nothing is
restarted any more) and then done stage by stage, each with a grace after which what is left is killed; the graces add up to
less than ten seconds. What the processes are is the plan's business, how one asks them is the probes'.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from remoting import exit_codes
from webapp.appliance import log_files, state
from webapp.appliance.layout import DataLayout
from webapp.appliance.lifecycle import Lifecycle, State, exit_text
from webapp.appliance.plan import BrokerProbe, HeartbeatProbe, Plan, Probe, ProcessSpec, StopStage
from webapp.appliance.processes import Child, spawn
from webapp.appliance.terminal import Terminal

log = logging.getLogger(__name__)

PROBE_EVERY_S = 0.1
ROTATE_EVERY_S = 5.0

# How long each stage may take to end by itself: a Celery worker needs two to three seconds even when it has nothing to do.
# Within the brokers' stage, replicas get half of the time and then the masters.
GRACE_S: Mapping[StopStage, float] = {
    StopStage.FRONT: 4.5,
    StopStage.BROKERS: 2.4,
    StopStage.CONTROLLERS: 1.2,
    StopStage.REDIS: 0.6,
}
OFF_GRACE_S = 20.0  # of brokers that are switched off while the rest goes on, replicas and masters together

# What executing a program may answer that no second try changes
_HOPELESS = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ENOEXEC})


@dataclass(slots=True)
class _Process:
    """One process of the plan while the supervisor runs."""

    spec: ProcessSpec
    log_file: Path
    life: Lifecycle = field(default_factory=Lifecycle)
    child: Child | None = None
    since: str = field(default_factory=state.timestamp)
    last_exit_at: str | None = None
    lacks: str = "it has not been started yet"
    wanted: asyncio.Event = field(default_factory=asyncio.Event)
    unwanted: asyncio.Event = field(default_factory=asyncio.Event)
    is_leaving: bool = False
    said: str = ""
    log_begin: int = 0  # of its present life

    def last_words(self) -> str | None:
        """What it said last in its present life, or the last one."""
        return log_files.last_line(self.log_file, self.log_begin)

    def want(self, wanted: bool) -> None:
        """Whether it is to run; it does from the start."""
        now, other = (self.wanted, self.unwanted) if wanted else (self.unwanted, self.wanted)
        other.clear()
        now.set()


class Supervisor:
    """Runs one plan once. `environ` is what the processes inherit below the plan's own variables."""

    def __init__(
        self,
        plan: Plan,
        layout: DataLayout,
        environ: Mapping[str, str],
        listener: Terminal,
        ask: Callable[[Probe], Awaitable[str | None]],
        is_master: Callable[[BrokerProbe], Awaitable[bool]],
    ) -> None:
        self._plan = plan
        self._layout = layout
        self._environ = environ
        self._listener = listener
        self._ask = ask
        self._is_master = is_master
        self._processes: dict[str, _Process] = {}
        self._gates: dict[str, asyncio.Event] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._all_ready = asyncio.Event()
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._state = "starting"
        self._started_at = state.timestamp()
        for spec in plan.processes:
            self.add(spec)

    # ---- what `up` calls

    async def run(self) -> None:
        """Start everything and keep it running; return when all is stopped after `stop` was called."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for process in self._processes.values():
                tasks.create_task(self._keep_running(process), name=process.spec.name)
            rotating = tasks.create_task(self._rotate_logs(), name="rotate logs")
            await self._stopping.wait()
            self._state = "stopping"
            self._publish()
            await self._stop_all()
            rotating.cancel()
        self._state = "stopped"
        self._publish()

    def open_gate(self, name: str) -> None:
        """Let the processes start that wait for something outside the plan."""
        if name in self._gates:
            self._gates[name].set()

    def stop(self) -> None:
        """Begin to stop; asked a second time: kill."""
        if self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()

    def is_stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stopping.is_set()

    async def wait_all_ready(self) -> None:
        """Return when every process has been ready at least once."""
        await self._all_ready.wait()

    def not_ready(self) -> list[tuple[str, str, Path]]:
        """Who is not ready, why as far as is known, and whose log says more."""
        return [
            (process.spec.name, _why_not_ready(process), process.log_file)
            for process in self._processes.values()
            if process.life.state not in (State.RUNNING, State.RETIRED, State.HELD)
        ]

    def announce_running(self) -> None:
        """Publish that the start is over."""
        if not self.is_stopping():
            self._state = "running"
            self._publish()

    # ---- what is switched on and off while it runs

    def has(self, name: str) -> bool:
        """Whether it looks after a process of that name."""
        return name in self._processes

    def add(self, spec: ProcessSpec) -> None:
        """Look after one more process."""
        process = self._processes[spec.name] = _Process(spec, self._layout.log_file(spec.name))
        process.want(True)
        for name in (spec.name, *spec.after):
            self._gates.setdefault(name, asyncio.Event())
        if self._tasks is not None and not self.is_stopping():
            self._tasks.create_task(self._keep_running(process), name=spec.name)

    def keep_off(self, names: Collection[str]) -> None:
        """Do not start these processes until `switch_on`; those that run go on."""
        for name in names:
            self._processes[name].want(False)

    async def switch_off(self, names: Collection[str]) -> None:
        """Stop these processes, and start them no more until `switch_on`; returns when none of them runs."""
        self.keep_off(names)
        await self._stop_brokers([self._processes[name] for name in names], OFF_GRACE_S)

    def switch_on(self, names: Collection[str]) -> None:
        """Start them again, those that are off."""
        for name in names:
            self._processes[name].want(True)

    async def remove(self, name: str) -> None:
        """Stop this process, and forget it."""
        process = self._processes[name]
        process.is_leaving = True
        await self.switch_off([name])
        if not self.is_stopping():
            del self._processes[name]
            self._publish()

    # ---- one process

    async def _keep_running(self, process: _Process) -> None:
        if await self._unless_stopping(self._wait_for(process.spec.after)):
            while not self.is_stopping() and not (process.is_leaving and process.unwanted.is_set()):
                if process.unwanted.is_set():
                    self._hold(process)
                    await self._unless_stopping(_waited(process.wanted))
                    continue
                delay_ms = await self._live(process)
                if delay_ms is None:
                    return
                await self._unless_stopping(_pause(process, delay_ms / 1000))
        process.life.stopped(None)
        self._changed(process)

    def _hold(self, process: _Process) -> None:
        if process.life.state is not State.HELD:
            process.life.held(None)
        process.lacks = "it is switched off"
        self._changed(process)
        self._mark_ready(process)

    async def _live(self, process: _Process) -> int | None:
        """One life of a process; return after how many milliseconds the next begins, None when there is no next."""
        try:
            child = self._start(process)
        except OSError as error:
            return self._not_started(process, error)
        readiness = asyncio.create_task(self._await_ready(process), name=f"{process.spec.name} readiness")
        try:
            code = await child.wait()
        finally:
            readiness.cancel()
            await asyncio.wait([readiness])
        if not readiness.cancelled():
            readiness.result()  # a mistake in there must not pass for a process that is merely slow
        return self._exited(process, code)

    def _start(self, process: _Process) -> Child:
        spec = process.spec
        if isinstance(spec.probe, HeartbeatProbe):
            spec.probe.file.unlink(missing_ok=True)
        env = {**self._environ, **self._plan.env, **spec.env}
        process.log_begin = log_files.size(process.log_file)
        process.child = spawn(spec.argv, env, self._plan.working_dir, process.log_file)
        process.life.spawned(process.child.pid, _now_ms())
        self._changed(process)
        return process.child

    def _not_started(self, process: _Process, error: OSError) -> int | None:
        process.lacks = f"cannot be started ({process.spec.argv[0]}: {error.strerror or error})"
        if error.errno in _HOPELESS:
            process.life.unstartable()
            self._changed(process)
            self._listener.unstartable(process.spec.name, process.lacks)
            return None
        delay_ms = process.life.unspawned()
        self._changed(process)
        self._listener.exited(process.spec.name, process.lacks, None, delay_ms)
        return delay_ms

    def _exited(self, process: _Process, code: int) -> int | None:
        process.child = None
        process.last_exit_at = state.timestamp()
        if self.is_stopping():
            process.life.stopped(code)
            self._changed(process)
            return None
        if process.unwanted.is_set():
            process.life.held(code)
            return 0
        if code == exit_codes.NOT_NEEDED:
            self._retire(process, code)
            return None
        delay_ms = process.life.exited(code, _now_ms())
        process.lacks = exit_text(code)
        self._changed(process)
        self._listener.exited(process.spec.name, process.lacks, process.last_words(), delay_ms)
        return delay_ms

    def _retire(self, process: _Process, code: int) -> None:
        process.life.retired(code)
        self._changed(process)
        self._listener.retired(process.spec.name, process.last_words())
        self._mark_ready(process)

    async def _await_ready(self, process: _Process) -> None:
        while True:
            lacks = await self._ask(process.spec.probe)
            if lacks is None:
                break
            process.lacks = lacks
            if process.said != (why := _why_not_ready(process)):
                process.said = why
                self._publish()
            await asyncio.sleep(PROBE_EVERY_S)
        process.life.ready()
        self._changed(process)
        self._listener.ready(process.spec.name, process.life.restarts)
        self._mark_ready(process)

    def _mark_ready(self, process: _Process) -> None:
        """Nobody has to wait for this one any more."""
        self._gates[process.spec.name].set()
        if all(self._gates[name].is_set() for name in self._processes):
            self._all_ready.set()

    async def _wait_for(self, names: tuple[str, ...]) -> None:
        for name in names:
            await self._gates[name].wait()

    async def _unless_stopping(self, work: Awaitable[None]) -> bool:
        """Await the work until stopping begins; whether the work was done."""
        done = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait([done, stopping], return_when=asyncio.FIRST_COMPLETED)
            return done.done() and not self.is_stopping()
        finally:
            done.cancel()
            stopping.cancel()

    # ---- stopping

    async def _stop_all(self) -> None:
        for stage in StopStage:
            members = [process for process in self._processes.values() if process.spec.stop_stage is stage]
            if stage is StopStage.BROKERS:
                await self._stop_brokers(members, GRACE_S[stage])
            else:
                await self._stop_stage(members, GRACE_S[stage])

    async def _stop_brokers(self, members: list[_Process], grace_s: float) -> None:
        masters = await self._masters(members)
        replicas = [process for process in members if process not in masters]
        await self._stop_stage(replicas, grace_s / 2)
        await self._stop_stage(masters, grace_s / 2)

    async def _masters(self, brokers: list[_Process]) -> list[_Process]:
        if self._hurry.is_set():
            return []
        running = [process for process in brokers if process.child is not None]
        probes = [process.spec.probe for process in running if isinstance(process.spec.probe, BrokerProbe)]
        answers = await asyncio.gather(*(self._is_master(probe) for probe in probes))
        masters = {probe for probe, answer in zip(probes, answers, strict=True) if answer}
        return [process for process in running if process.spec.probe in masters]

    async def _stop_stage(self, members: list[_Process], grace_s: float) -> None:
        children = [process.child for process in members if process.child is not None]
        if not children:
            return
        for child in children:
            child.send(signal.SIGTERM)
        exits = asyncio.gather(*(child.wait() for child in children))
        await self._wait_unless_hurried(exits, grace_s)
        for process in members:
            if process.child is not None and not process.child.has_exited:
                log.warning("%s did not stop within its grace and is killed", process.spec.name)
                process.child.kill()
        await exits

    async def _wait_unless_hurried(self, exits: asyncio.Future[list[int]], grace_s: float) -> None:
        hurry = asyncio.ensure_future(self._hurry.wait())
        waiting: list[asyncio.Future[Any]] = [exits, hurry]
        await asyncio.wait(waiting, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()

    # ---- telling

    def _changed(self, process: _Process) -> None:
        process.since = state.timestamp()
        self._publish()

    def _publish(self) -> None:
        content = {
            "version": state.VERSION,
            "state": self._state,
            "pid": os.getpid(),
            "started_at": self._started_at,
            "http": self._plan.http,
            "https": self._plan.https,
            "controllers": list(self._plan.controllers),
            "grpc": list(self._plan.grpc_endpoints),
            "redis": self._plan.redis,
            "processes": [_describe(process) for process in self._processes.values()],
        }
        try:
            state.publish(self._layout.supervisor_file, content)
        except OSError as error:  # a full disk must not take the appliance down with it
            log.warning("cannot write %s: %s", self._layout.supervisor_file, error)

    async def _rotate_logs(self) -> None:
        while True:
            await asyncio.sleep(ROTATE_EVERY_S)
            for process in self._processes.values():
                try:
                    log_files.rotate(process.log_file)
                except OSError as error:
                    log.warning("cannot rotate %s: %s", process.log_file, error)


def _describe(process: _Process) -> dict[str, Any]:
    life = process.life
    last_exit = None
    if life.last_exit is not None:
        last_exit = {"code": life.last_exit, "text": exit_text(life.last_exit), "at": process.last_exit_at}
    return {
        "name": process.spec.name,
        "kind": process.spec.kind,
        "state": life.state,
        "group": process.spec.group,
        "why": None if life.state is State.RUNNING else _why_not_ready(process),
        "pid": life.pid,
        "restarts": life.restarts,
        "address": process.spec.address,
        "log": str(process.log_file),
        "since": process.since,
        "last_exit": last_exit,
    }


async def _waited(event: asyncio.Event) -> None:
    await event.wait()


async def _pause(process: _Process, delay_s: float) -> None:
    """Wait until it is to be started again, or not to run any more."""
    with suppress(TimeoutError):
        async with asyncio.timeout(delay_s):
            await process.unwanted.wait()


def _why_not_ready(process: _Process) -> str:
    if process.life.state in (State.BACKING_OFF, State.FAILED):
        last_words = process.last_words()
        return f"{process.lacks}; it last said: {last_words}" if last_words else process.lacks
    if process.life.state is State.STARTING and process.spec.group is not None and (says := process.last_words()):
        return f"{says} ({process.lacks})"  # a broker knows better what it waits for
    return process.lacks


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
