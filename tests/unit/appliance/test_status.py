from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from typing import Any

import pytest

from remoting import codes
from remoting.facts.broker_state import BrokerState, DamageState, ScrubState
from remoting.facts.codec import encode
from remoting.facts.words import BrokerRole
from tests.unit.appliance.test_probes import remoting_server, saying, stream_server
from webapp.appliance import preflight, state, status
from webapp.appliance.layout import DataLayout


@pytest.fixture
def lock(layout: DataLayout) -> Iterator[None]:
    """Somebody runs on the directory."""
    held = preflight.InstanceLock(layout)
    yield
    held.close()


def publish(layout: DataLayout, http: str, *states: str, whole: str = "running") -> None:
    processes = [
        {
            "name": f"p{index}",
            "kind": "worker",
            "state": each,
            "pid": 4711 if each == "running" else None,
            "restarts": index,
            "address": None,
            "last_exit": {"code": -9, "text": "was killed by SIGKILL", "at": "then"} if index else None,
        }
        for index, each in enumerate(states)
    ]
    content = {
        "version": 1,
        "redis": "Valkey 9.1.2 (bundled)",
        "state": whole,
        "pid": 7,
        "http": http,
        "processes": processes,
    }
    state.publish(layout.supervisor_file, content)


async def gathered(layout: DataLayout, console: str, *states: str, whole: str = "running") -> dict[str, Any]:
    answer = f"HTTP/1.1 200 OK\r\n\r\n{json.dumps({'status': console})}"
    async with stream_server(saying(answer.encode())) as address:
        publish(layout, address, *states, whole=whole)
        return await status.gather(layout)


async def test_without_a_supervisor_all_is_down(layout: DataLayout) -> None:
    publish(layout, "127.0.0.1:1", "running")  # left behind by one that was killed
    content = await status.gather(layout)
    assert (content["status"], content["supervisor"]) == ("down", None)
    assert content["reason"] == f"no appliance runs on {layout.root}"


@pytest.mark.usefixtures("lock")
@pytest.mark.parametrize(
    ("console", "states", "whole", "verdict", "reason"),
    [
        ("healthy", ["running", "running"], "running", "healthy", None),
        ("healthy", ["running", "backing-off"], "running", "degraded", "not running: p1"),
        ("healthy", ["running", "failed"], "running", "degraded", "not running: p1"),
        ("degraded", ["running"], "running", "degraded", "the console says that the cluster is degraded"),
        ("down", ["running"], "running", "down", "the console says that the cluster is down"),
        ("healthy", ["running"], "stopping", "down", "the appliance is stopping"),
    ],
)
async def test_the_verdict(
    layout: DataLayout, console: str, states: list[str], whole: str, verdict: str, reason: str | None
) -> None:
    content = await gathered(layout, console, *states, whole=whole)
    assert content["status"] == verdict
    assert (content["reason"] or "").startswith(reason or "")
    assert (content["reason"] is None) == (reason is None)


@pytest.mark.usefixtures("lock")
async def test_a_dead_console_is_degraded(layout: DataLayout) -> None:
    async with stream_server(saying(b"")) as gone:
        pass
    publish(layout, gone, "running")
    content = await status.gather(layout)
    assert content["status"] == "degraded"
    assert content["reason"].startswith("the console does not answer (")


@pytest.mark.usefixtures("lock")
def test_what_is_printed(layout: DataLayout) -> None:
    publish(layout, "127.0.0.1:1", "running", "backing-off")
    text, as_json = io.StringIO(), io.StringIO()
    assert status.main(["--data", str(layout.root)], text) == 1
    assert (
        "  p1               backing-off   restarts 1  last time it was killed by SIGKILL at then\n" in text.getvalue()
    )
    assert "\nRedis: Valkey 9.1.2 (bundled)\n" in text.getvalue()
    assert status.main(["--data", str(layout.root), "--json"], as_json) == 1
    assert json.loads(as_json.getvalue())["supervisor"]["pid"] == 7


@pytest.mark.usefixtures("lock")
async def test_a_broker_stands_in_one_row_with_its_role_replica_and_process(layout: DataLayout) -> None:
    """The second replica of a group is the process with the number 1 as often as not."""
    told = BrokerState(cluster_name="c", broker_name="broker-a", broker_id=2, role=BrokerRole.MASTER)
    code = codes.BROKER_STATE
    async with (
        remoting_server(code, (codes.SUCCESS, {}, encode(told))) as serving,
        remoting_server(code, (codes.SYSTEM_ERROR, {}, b"")) as silent,
    ):
        rows = [("broker-a-1", 4711, serving), ("broker-a-2", 4712, silent), ("broker-a-3", None, silent)]
        processes = [
            {
                **{"name": name, "kind": "broker", "state": "running", "pid": pid, "address": address},
                **{"restarts": 0, "last_exit": None},
            }
            for name, pid, address in rows
        ]
        content = {"version": 1, "state": "running", "pid": 7, "http": silent, "processes": processes}
        state.publish(layout.supervisor_file, content)
        text, as_json = io.StringIO(), io.StringIO()
        for stream, options in ((text, []), (as_json, ["--json"])):
            await asyncio.to_thread(status.main, ["--data", str(layout.root), *options], stream)
    assert text.getvalue().splitlines()[2:] == [
        f"  broker-a-1       running       replica 2, master  pid 4711     {serving}",
        f"  broker-a-2       running                          pid 4712     {silent}",
        f"  broker-a-3       running                          {silent}",
    ]
    shown = [each["replica"] for each in json.loads(as_json.getvalue())["supervisor"]["processes"]]
    assert shown == [{"group": "broker-a", "id": 2, "role": "master", "problem": None}, None, None]


@pytest.mark.usefixtures("lock")
async def test_a_broker_that_cannot_learn_its_role_says_so_in_its_row(layout: DataLayout) -> None:
    told = BrokerState(
        cluster_name="c",
        broker_name="broker-a",
        broker_id=2,
        role=BrokerRole.FENCED,
        stale_view="a controller tells of master epoch 3, but this broker has seen 9",
        controllers_error="no controller says who leads: refused",
        scrub=ScrubState(unrepaired=(DamageState(start_offset=1, end_offset=9),)),
    )
    async with remoting_server(codes.BROKER_STATE, (codes.SUCCESS, {}, encode(told))) as serving:
        row = {"name": "broker-a-1", "kind": "broker", "state": "running", "pid": 4711, "address": serving}
        processes = [{**row, "restarts": 0, "last_exit": None}]
        content = {"version": 1, "state": "running", "pid": 7, "http": serving, "processes": processes}
        state.publish(layout.supervisor_file, content)
        text = io.StringIO()
        await asyncio.to_thread(status.main, ["--data", str(layout.root)], text)
    assert (
        text.getvalue()
        .splitlines()[2]
        .endswith(
            "it says: a controller tells of master epoch 3, but this broker has seen 9; "
            "no controller says who leads: refused; 1 parts of its log are damaged, and not repaired yet"
        )
    )


def test_down_and_bad_options_have_their_exit_codes(layout: DataLayout) -> None:
    assert status.main(["--data", str(layout.root)], io.StringIO()) == 2
    assert status.main(["--nonsense"], io.StringIO()) == 3


@pytest.mark.usefixtures("lock")
async def test_a_state_of_another_version_is_not_believed(layout: DataLayout) -> None:
    state.publish(layout.supervisor_file, {"version": 99})
    assert state.read(layout) is None
    layout.supervisor_file.unlink()
    assert await asyncio.to_thread(state.read, layout) is None


def test_other_commands_find_the_appliance_that_runs(layout: DataLayout) -> None:
    variables = {"LOGBOOM_DATA_DIR": str(layout.root)}
    content = {"version": 1, "http": "127.0.0.1:9000", "controllers": ["127.0.0.1:1", "127.0.0.1:2"]}
    state.publish(layout.supervisor_file, content)
    assert state.find_running(variables) == {}
    held = preflight.InstanceLock(layout)
    try:
        assert state.find_running(variables) == {
            "LOGBOOM_HTTP": "127.0.0.1:9000",
            "LOGBOOM_CONTROLLERS": "127.0.0.1:1,127.0.0.1:2",
        }
    finally:
        held.close()
