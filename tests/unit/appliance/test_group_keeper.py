"""What people want of broker groups is done, by tiny processes: off and on again, mounted, and never two at one address."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.unit.appliance.fakes import CRASHING, DEADLINE_S, POLITE, Recorder, plan, protocol, spec
from webapp.appliance import probes
from webapp.appliance.group_keeper import GroupKeeper
from webapp.appliance.layout import DataLayout
from webapp.appliance.options import Options, Shape
from webapp.appliance.plan import Kind, Plan, ProcessSpec, RedisPart, StopStage, make_plan, mount_of
from webapp.appliance.supervisor import Supervisor
from webapp.wishes import GroupWish, Wish, remove_wish, write_wish

MOUNTED = GroupWish("c", "a", Wish.MOUNTED, "0badcafe", given_up=True)
DOWN = GroupWish("c", "a", Wish.DOWN)


def broker(layout: DataLayout, name: str, program: str = POLITE) -> ProcessSpec:
    """One of group "a"."""
    made = spec(layout, name, program, StopStage.BROKERS, kind=Kind.BROKER)
    return replace(made, argv=(*made.argv, "--data", str(layout.broker(name))), group="a")


def argv_of(pid: int) -> list[str]:
    """Empty when there is no such process."""
    path = Path(f"/proc/{pid}/cmdline")
    return path.read_text().split("\0") if path.exists() else []


@dataclass
class Appliance:
    keeper: GroupKeeper
    supervisor: Supervisor
    recorder: Recorder
    layout: DataLayout
    said: list[str]

    def published(self) -> dict[str, dict[str, Any]]:
        content = json.loads(self.layout.supervisor_file.read_text())
        return {process["name"]: process for process in content["processes"]}

    def states(self) -> dict[str, str]:
        return {name: each["state"] for name, each in self.published().items()}


@asynccontextmanager
async def running(layout: DataLayout, the_plan: Plan) -> AsyncIterator[Appliance]:
    recorder, said = Recorder(), []

    async def nobody(probe: object) -> bool:
        raise AssertionError(probe)

    supervisor = Supervisor(the_plan, layout, dict(os.environ), recorder, probes.ask, nobody)
    keeper = GroupKeeper(the_plan, layout, supervisor, said.append)
    keeper.begin()
    async with asyncio.timeout(2 * DEADLINE_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(supervisor.run())
        try:
            yield Appliance(keeper, supervisor, recorder, layout, said)
        finally:
            supervisor.stop()


async def test_the_broker_that_has_a_log_runs_alone_until_all_are_wanted(layout: DataLayout) -> None:
    the_plan = plan(broker(layout, "a-1"), broker(layout, "a-2"))
    log = layout.broker("a-2") / "commitlog"
    log.mkdir(parents=True)
    (log / "00000000000000000000").touch()
    write_wish(layout.groups, DOWN)
    async with running(layout, the_plan) as it:
        await it.keeper.follow()
        for wish, wanted in (
            (DOWN._replace(wish=Wish.FIRST), {"a-1": "held", "a-2": "running"}),
            (DOWN, {"a-1": "held", "a-2": "held"}),
            (DOWN._replace(wish=Wish.FIRST), {"a-1": "held", "a-2": "running"}),
        ):
            write_wish(layout.groups, wish)
            await it.keeper.follow()
            while it.states() != wanted:
                assert it.states()["a-1"] == "held"
                await asyncio.sleep(0)
        remove_wish(layout.groups, "a")
        await it.keeper.follow()
        while set(it.states().values()) != {"running"}:
            await asyncio.sleep(0)
        assert it.said[-1] == "a is switched on"


async def test_a_group_is_switched_off_and_on_and_mounted_in_its_place(layout: DataLayout) -> None:
    the_plan = plan(broker(layout, "a-1"), broker(layout, "a-2"), spec(layout, "web"))
    async with running(layout, the_plan) as it:
        await it.supervisor.wait_all_ready()
        await it.keeper.follow()
        assert set(it.states().values()) == {"running"}, "nobody wants anything else"

        write_wish(layout.groups, DOWN)
        await it.keeper.follow()
        assert sorted(protocol(layout)) == ["a-1", "a-2"], "they were asked to stop"
        while set(it.states().values()) != {"held", "running"}:  # their own tasks say so
            await asyncio.sleep(0)
        assert it.states() == {"a-1": "held", "a-2": "held", "web": "running"}
        assert it.published()["a-1"]["why"] == "it is switched off"
        assert it.supervisor.not_ready() == []

        older = layout.mount("a", "00000000")
        older.mkdir(parents=True)
        write_wish(layout.groups, MOUNTED)
        await it.keeper.follow()
        assert (await it.recorder.wait("ready", "mount-a")).detail == 0
        assert it.states() == {"a-1": "held", "a-2": "held", "web": "running", "mount-a": "running"}
        assert (older.exists(), older.parent.exists()) == (False, True)
        mounted = it.published()["mount-a"]["pid"]
        argv = argv_of(mounted)
        assert argv[-4:-1] == ["--data", str(layout.mount("a", "0badcafe")), "--mount"]
        await it.keeper.follow()
        assert it.published()["mount-a"]["pid"] == mounted, "it goes on"

        write_wish(layout.groups, MOUNTED._replace(wish=Wish.RELEASED))
        await it.keeper.follow()
        assert "mount-a" not in it.states()
        assert not argv_of(mounted)

        remove_wish(layout.groups, "a")
        await it.keeper.follow()
        for name in ("a-1", "a-2"):
            assert (await it.recorder.wait("ready", name)).detail == 0
        assert it.said == [
            "a is switched off",
            "a is being mounted read-only from its tier",
            "a is not mounted any more",
            "a is switched on",
        ]


async def test_what_is_off_stays_off_over_a_start(layout: DataLayout) -> None:
    write_wish(layout.groups, DOWN)
    async with running(layout, plan(broker(layout, "a-1", CRASHING), spec(layout, "web"))) as it:
        await it.supervisor.wait_all_ready()
        await it.keeper.follow()
        assert it.states() == {"a-1": "held", "web": "running"}
        assert [event.name for event in it.recorder.events] == ["web"]


async def test_brokers_that_keep_ending_are_not_started_again_once_they_are_off(layout: DataLayout) -> None:
    async with running(layout, plan(broker(layout, "a-1", CRASHING))) as it:
        await it.recorder.wait("exited", "a-1")
        write_wish(layout.groups, DOWN)
        await it.keeper.follow()
        await it.supervisor.wait_all_ready()  # nobody waits for what is off
        assert it.states() == {"a-1": "held"}


async def test_a_mount_that_ends_says_why_and_is_started_again(layout: DataLayout) -> None:
    write_wish(layout.groups, MOUNTED)
    async with running(layout, plan(broker(layout, "a-1", CRASHING))) as it:
        await it.keeper.follow()
        for _ in range(2):
            assert (await it.recorder.wait("exited", "mount-a")).detail[1] == "no luck today"
        assert it.published()["mount-a"]["why"].endswith("it last said: no luck today")


async def test_a_wish_that_cannot_be_read_changes_nothing_and_starts_nobody(layout: DataLayout) -> None:
    layout.groups.mkdir()
    (layout.groups / "a.json").write_text("{}")
    async with running(layout, plan(broker(layout, "a-1"))) as it:
        await it.supervisor.wait_all_ready()
        for _ in range(2):
            await it.keeper.follow()
        assert it.states() == {"a-1": "held"}
        (said,) = it.said
        assert "does not say what is wanted of broker group a" in said
        remove_wish(layout.groups, "a")
        await it.keeper.follow()
        await it.recorder.wait("ready", "a-1")
        (layout.groups / "a.json").write_text("{}")
        await it.keeper.follow()
        assert it.states() == {"a-1": "running"}


def test_a_mount_takes_the_place_of_a_groups_first_broker(layout: DataLayout) -> None:
    options = Options(broker_settings=("a.b=1",))
    the_plan = make_plan(options, Shape(1, 2, 2), layout, "/python", RedisPart("Redis"), {})
    assert {group: [each.name for each in own] for group, own in the_plan.broker_groups.items()} == {
        "broker-a": ["broker-a-1", "broker-a-2"],
        "broker-b": ["broker-b-1", "broker-b-2"],
    }
    first = the_plan.broker_groups["broker-b"][0]
    mount = mount_of(first, layout.mount("broker-b", "0badcafe"))
    assert (mount.name, mount.ports, mount.probe, mount.group) == (
        "mount-broker-b",
        first.ports,
        first.probe,
        "broker-b",
    )
    assert (
        " ".join(mount.argv)
        == " ".join(first.argv).replace("/brokers/broker-b-1", "/mounts/broker-b/0badcafe") + " --mount"
    )
