"""The supervisor over tiny processes: faults are injected with real signals and counted."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from remoting import exit_codes
from tests.unit.appliance.fakes import CRASHING, DEADLINE_S, PARENT, RETIRING, STUBBORN, Recorder, plan, protocol, spec
from webapp.appliance import lifecycle, probes, state, supervisor
from webapp.appliance.layout import DataLayout
from webapp.appliance.place import PROJECT_DIR
from webapp.appliance.plan import BrokerProbe, Plan, StopStage
from webapp.appliance.processes import Child, spawn
from webapp.appliance.supervisor import Supervisor

Published = dict[str, dict[str, Any]]


def published(layout: DataLayout) -> Published:
    content = json.loads(layout.supervisor_file.read_text())
    return {process["name"]: process for process in content["processes"]}


async def nobody_is_master(probe: BrokerProbe) -> bool:
    raise AssertionError(probe)


@asynccontextmanager
async def running(
    layout: DataLayout, the_plan: Plan, environ: dict[str, str] | None = None
) -> AsyncIterator[tuple[Supervisor, Recorder]]:
    """A supervisor at work; on leaving, it has stopped everything."""
    recorder = Recorder()
    it = Supervisor(the_plan, layout, environ or dict(os.environ), recorder, probes.ask, nobody_is_master)
    async with asyncio.timeout(2 * DEADLINE_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(it.run())
        try:
            yield it, recorder
        finally:
            if not it.is_stopping():
                it.stop()


def is_gone(pid: int) -> bool:
    """Whether the process ends within the deadline (at once, if it is no more)."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], DEADLINE_S)[0])
    finally:
        os.close(descriptor)


async def test_all_become_ready_and_the_state_says_so(layout: DataLayout) -> None:
    async with running(layout, plan(spec(layout, "a"), spec(layout, "b"))) as (it, recorder):
        await it.wait_all_ready()
        it.announce_running()
        assert {(event.name, event.what) for event in recorder.events} == {("a", "ready"), ("b", "ready")}
        content = json.loads(layout.supervisor_file.read_text())
        assert (content["version"], content["state"], content["pid"]) == (1, "running", os.getpid())
        assert {process["state"] for process in content["processes"]} == {"running"}
        assert it.not_ready() == []
        pids = [process["pid"] for process in content["processes"]]
    assert json.loads(layout.supervisor_file.read_text())["state"] == "stopped"
    assert {process["state"] for process in published(layout).values()} == {"stopped"}
    assert all(is_gone(pid) for pid in pids)


async def test_a_process_killed_three_times_is_restarted_three_times(
    layout: DataLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "FIRST_DELAY_MS", 5)
    async with running(layout, plan(spec(layout, "victim"), spec(layout, "other"))) as (it, recorder):
        await it.wait_all_ready()
        other = published(layout)["other"]["pid"]
        delays = []
        for count in (1, 2, 3):
            os.kill(published(layout)["victim"]["pid"], signal.SIGKILL)
            event = await recorder.wait("exited", "victim")
            assert event.detail[0] == "was killed by SIGKILL"
            delays.append(event.detail[2])
            assert (await recorder.wait("ready", "victim")).detail == count
        assert delays == [5, 10, 20]
        victim = published(layout)["victim"]
        assert (victim["restarts"], victim["state"]) == (3, "running")
        assert (victim["last_exit"]["code"], victim["last_exit"]["text"]) == (-9, "was killed by SIGKILL")
        assert published(layout)["other"]["pid"] == other
        assert published(layout)["other"]["restarts"] == 0


async def test_a_crash_is_told_with_its_last_words(layout: DataLayout) -> None:
    async with running(layout, plan(spec(layout, "sick", CRASHING))) as (it, recorder):
        event = await recorder.wait("exited", "sick")
        assert event.detail == ("ended with exit code 1", "no luck today", 200)
        assert published(layout)["sick"]["state"] == "backing-off"
        [(name, reason, log_file)] = it.not_ready()
        assert (name, reason) == ("sick", "ended with exit code 1; it last said: no luck today")
        assert log_file.read_text() == "no luck today\n"
    assert published(layout)["sick"]["state"] == "stopped"


async def test_who_is_not_needed_any_more_is_not_started_again_and_nobody_waits_for_it(layout: DataLayout) -> None:
    assert exit_codes.NOT_NEEDED == 3
    last = spec(layout, "last", after=("retiring",))
    async with running(layout, plan(spec(layout, "retiring", RETIRING), last)) as (it, recorder):
        event = await recorder.wait("retired", "retiring")
        assert event.detail == "the group goes on without me"
        await it.wait_all_ready()
        assert it.not_ready() == []
        assert published(layout)["retiring"]["state"] == "retired"
        assert published(layout)["retiring"]["last_exit"]["code"] == 3
    assert published(layout)["retiring"]["state"] == "retired"
    assert published(layout)["last"]["state"] == "stopped"
    assert [event.what for event in recorder.events if event.name == "retiring"] == ["retired"]


async def test_what_cannot_be_executed_fails_and_the_rest_runs(layout: DataLayout) -> None:
    broken = spec(layout, "broken")
    missing = type(broken)(broken.name, broken.kind, ("/no/such/program",), broken.probe, broken.stop_stage)
    async with running(layout, plan(missing, spec(layout, "fine"))) as (it, recorder):
        event = await recorder.wait("unstartable", "broken")
        assert event.detail == "cannot be started (/no/such/program: No such file or directory)"
        await recorder.wait("ready", "fine")
        assert published(layout)["broken"]["state"] == "failed"
        assert [entry[0] for entry in it.not_ready()] == ["broken"]
    assert published(layout)["broken"]["state"] == "failed"


async def test_what_the_system_cannot_start_now_is_tried_again(
    layout: DataLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = 2

    def scarce(*arguments: Any) -> Child:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return spawn(*arguments)

    monkeypatch.setattr(lifecycle, "FIRST_DELAY_MS", 5)
    monkeypatch.setattr(supervisor, "spawn", scarce)
    async with running(layout, plan(spec(layout, "late"))) as (_, recorder):
        assert (await recorder.wait("ready", "late")).detail == 0
        reason = f"cannot be started ({sys.executable}: Resource temporarily unavailable)"
        assert [event.detail for event in recorder.events[:2]] == [(reason, None, 5), (reason, None, 10)]


async def test_processes_wait_for_their_gates(layout: DataLayout) -> None:
    first = spec(layout, "first")
    second = spec(layout, "second", after=("prepared", "first"))
    async with running(layout, plan(second, first)) as (it, recorder):
        await recorder.wait("ready", "first")
        assert published(layout)["second"]["state"] == "waiting"
        it.open_gate("prepared")
        await recorder.wait("ready", "second")


async def test_stopping_before_the_gates_open(layout: DataLayout) -> None:
    async with running(layout, plan(spec(layout, "never", after=("prepared",)))) as (it, _):
        it.stop()
    assert published(layout)["never"]["state"] == "stopped"
    assert published(layout)["never"]["pid"] is None


async def test_stages_stop_one_after_the_other_and_masters_after_replicas(layout: DataLayout) -> None:
    stages = {"redis": StopStage.REDIS, "controller": StopStage.CONTROLLERS, "web": StopStage.FRONT}
    specs = [spec(layout, name, stage=stage) for name, stage in stages.items()]
    brokers = [spec(layout, name, stage=StopStage.BROKERS) for name in ("replica", "master", "replica2")]
    asked = []

    async def ask(probe: object) -> str | None:
        if isinstance(probe, BrokerProbe):
            return None if layout.heartbeat_file(probe.address).exists() else "not yet"
        return await probes.ask(probe)  # type: ignore[arg-type]

    async def is_master(probe: BrokerProbe) -> bool:
        asked.append(probe.address)
        return probe.address == "master"

    specs += [type(one)(one.name, one.kind, one.argv, BrokerProbe(one.name), one.stop_stage) for one in brokers]
    recorder = Recorder()
    it = Supervisor(plan(*specs), layout, dict(os.environ), recorder, ask, is_master)
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(it.run())
        await it.wait_all_ready()
        it.stop()
    ends = protocol(layout)
    assert ends[0] == "web"
    assert set(ends[1:3]) == {"replica", "replica2"}
    assert ends[3:] == ["master", "controller", "redis"]
    assert sorted(asked) == ["master", "replica", "replica2"]


async def test_who_does_not_stop_in_its_grace_is_killed(layout: DataLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "GRACE_S", dict.fromkeys(StopStage, 0.05))
    async with running(layout, plan(spec(layout, "stubborn", STUBBORN))) as (it, _):
        await it.wait_all_ready()
    assert published(layout)["stubborn"]["last_exit"]["code"] == -9


async def test_a_second_stop_kills_at_once(layout: DataLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "GRACE_S", dict.fromkeys(StopStage, 3600.0))
    processes = [spec(layout, "stubborn", STUBBORN), spec(layout, "redis", STUBBORN, StopStage.REDIS)]
    async with running(layout, plan(*processes)) as (it, _):
        await it.wait_all_ready()
        it.stop()
        it.stop()
    assert {process["last_exit"]["code"] for process in published(layout).values()} == {-9}


def test_the_graces_add_up_to_less_than_ten_seconds() -> None:
    asking_who_is_master_s = probes.DEADLINE_MS / 1000
    assert sum(supervisor.GRACE_S.values()) + asking_who_is_master_s < 10


async def test_nothing_of_a_killed_process_is_left(layout: DataLayout) -> None:
    async with running(layout, plan(spec(layout, "parent", PARENT))) as (it, recorder):
        await it.wait_all_ready()
        [grandchild] = map(int, protocol(layout))
        os.kill(published(layout)["parent"]["pid"], signal.SIGKILL)
        assert await asyncio.to_thread(is_gone, grandchild)
        await recorder.wait("exited", "parent")
        await recorder.wait("ready", "parent")
        [_, second] = map(int, protocol(layout))
    assert is_gone(second)


async def test_a_restart_is_not_ready_by_the_old_heartbeat(layout: DataLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "FIRST_DELAY_MS", 5)
    once = spec(layout, "once", "import os, sys; from pathlib import Path; Path(sys.argv[2]).touch(); sys.exit(1)")
    forgets = type(once)(
        once.name,
        once.kind,
        (*once.argv[:3], once.argv[3].replace("Path(sys.argv[2])", "Path(sys.argv[3])"), *once.argv[4:]),
        once.probe,
        once.stop_stage,
    )
    layout.heartbeat_file("once").touch()
    async with running(layout, plan(forgets)) as (_, recorder):
        await recorder.wait("exited", "once")
        await recorder.wait("exited", "once")
        assert [event.what for event in recorder.events if event.what == "ready"] == []


async def test_a_full_disk_does_not_take_the_appliance_down(
    layout: DataLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(layout, plan(spec(layout, "a"))) as (it, recorder):
        await it.wait_all_ready()
        failures = []

        def full(path: object, content: object) -> None:
            failures.append(content)
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(state, "publish", full)
        os.kill(published(layout)["a"]["pid"], signal.SIGKILL)
        await recorder.wait("exited", "a")
        await recorder.wait("ready", "a")
        assert failures
        monkeypatch.undo()


def test_all_processes_die_with_a_killed_supervisor(layout: DataLayout) -> None:
    program = (
        "import asyncio, os, sys; from pathlib import Path\n"
        "from tests.unit.appliance.fakes import Recorder, plan, spec, STUBBORN, PARENT\n"
        "from webapp.appliance import probes; from webapp.appliance.layout import DataLayout\n"
        "from webapp.appliance.supervisor import Supervisor\n"
        "layout = DataLayout(Path(sys.argv[1]))\n"
        "async def main():\n"
        "    the_plan = plan(spec(layout, 'one', STUBBORN), spec(layout, 'two', STUBBORN))\n"
        "    it = Supervisor(the_plan, layout, os.environ, Recorder(), probes.ask, None)\n"
        "    async with asyncio.TaskGroup() as tasks:\n"
        "        tasks.create_task(it.run())\n"
        "        await it.wait_all_ready()\n"
        "        sys.stdout.write('ready\\n'); sys.stdout.flush()\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(layout.root)], cwd=PROJECT_DIR, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        pids = [entry["pid"] for entry in published(layout).values()]
        assert len(pids) == 2
        process.kill()
        assert all(is_gone(pid) for pid in pids)
