"""A controller and masters that only report: topics are placed, in two steps, and what is not prepared is not forced."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import orjson
import pytest

from controllerd import placing
from remoting import codes
from tests.unit.controllerd.single import Single, single


async def ready(one: Single, *names: str) -> None:
    """Broker groups with a live master each."""
    await until(lambda: one.controller._machine.features.level >= 2)
    for name in names:
        await one.register(1, name)
        await one.live(1, name)
        await one.elect(1, name)


async def report(
    one: Single,
    name: str,
    topics: Mapping[str, int] | None = None,
    prepared: Mapping[str, int] | None = None,
    *,
    revision: int = 0,
    table: int = 1,
) -> dict[str, object]:
    group = one.controller._machine.replicas.groups[name]
    fields = {
        "brokerName": name,
        "brokerId": 1,
        "masterEpoch": group.master_epoch,
        "revision": revision,
        "table": table,
    }
    answer = await one.ask(codes.REPORT_PLACEMENTS, fields, {"topics": topics, "prepared": prepared or {}})
    assert answer.code == codes.SUCCESS, answer.remark
    found: dict[str, object] = orjson.loads(answer.body)
    return found


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_topic_is_placed_when_both_groups_have_prepared(tmp_path: Path) -> None:
    async with single(tmp_path) as one:
        await ready(one, "broker-a", "broker-b")
        placements = one.controller._machine
        assert (await report(one, "broker-a"))["wants_topics"]
        await report(one, "broker-a", {"orders": 8})
        await report(one, "broker-b", {"orders": 4})
        await until(lambda: placements.placements.topics)
        orders = placements.placements.topics["orders"]
        assert orders.proposed is not None
        assert [(each.broker_name, each.queues) for each in orders.proposed.shares] == [
            ("broker-a", 8),
            ("broker-b", 4),
        ]
        news = await report(one, "broker-a", prepared={"orders": 1})
        assert (news["is_placing"], news["last_version"]) == (True, 1)
        await until(lambda: placements.placements.topics["orders"].prepared)
        assert placements.placements.topics["orders"].active is None
        await report(one, "broker-b", prepared={"orders": 1})
        await until(lambda: placements.placements.topics["orders"].active)
        revision = placements.placements.revision
        assert (await report(one, "broker-a", revision=revision))["topics"] == []
        shown = orjson.loads((await one.ask(codes.TOPIC_PLACEMENT, {"topic": "orders"})).body)
        assert shown["active"]["version"] == 1
        assert not (await one.ask(codes.TOPIC_PLACEMENT, {"topic": "bills"})).body


async def test_a_broker_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    async with single(tmp_path) as one:
        answer = await one.ask(codes.REPORT_PLACEMENTS, {"brokerName": "broker-x", "brokerId": 1})
        assert answer.code == codes.CONTROLLER_BROKER_METADATA_NOT_EXIST


async def test_what_is_not_prepared_in_time_is_given_up_and_tried_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing, "_PATIENCE_MS", 50)
    monkeypatch.setattr(placing, "_PAUSE_MS", 10)
    async with single(tmp_path) as one:
        await ready(one, "broker-a", "broker-b")
        machine = one.controller._machine
        for name in ("broker-a", "broker-b"):
            await report(one, name, {"orders": 8})
        await until(lambda: machine.placements.last_version == 1)
        await until(lambda: not machine.placements.topics)
        await report(one, "broker-a", prepared={"orders": 1})
        await until(lambda: machine.placements.last_version == 2)


async def test_a_first_placement_is_tried_again_without_longer_and_longer_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it is there, nobody takes the message groups of the topic."""
    monkeypatch.setattr(placing, "_PATIENCE_MS", 50)
    monkeypatch.setattr(placing, "_PAUSE_MS", 10)
    async with single(tmp_path) as one:
        await ready(one, "broker-a", "broker-b")
        for name in ("broker-a", "broker-b"):
            await report(one, name, {"orders": 8})
        failed = one.controller._placing._failed
        await until(lambda: failed.get("orders", (0, 0))[0] == 3)
        assert failed["orders"][1] <= one.controller._groups.now_ms() + 10
