"""A controller goes on where it was, from a snapshot and the entries behind it."""

from __future__ import annotations

from pathlib import Path

from remoting import codes
from tests.unit.controllerd.raft.test_driver import until
from tests.unit.controllerd.single import Single, single

_OFTEN = ("raft.compact_after_entries=10", "raft.keep_entries=0")


async def _fill(one: Single) -> None:
    machine = one.controller._machine
    await until("all formats are in force", lambda: machine.features.level == machine.highest_level)
    for broker_id in range(1, 8):
        await one.register(broker_id)
    await one.live(1)
    assert (await one.elect(1)).code == codes.SUCCESS
    await until("a snapshot", lambda: one.controller._driver.node.core.log.compacted_index >= 10)


async def test_it_starts_from_its_snapshot(tmp_path: Path) -> None:
    async with single(tmp_path, *_OFTEN) as one:
        await _fill(one)
        before = one.controller._machine.snapshot()
    async with single(tmp_path, *_OFTEN) as one:
        assert one.controller._machine.snapshot() == before
        assert (await one.info())["masterBrokerId"] == 1
        assert (await one.register(8)).code == codes.SUCCESS
