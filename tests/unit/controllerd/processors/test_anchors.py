"""A controller that keeps anchors: what was kept is told, and refusals say why."""

from __future__ import annotations

from pathlib import Path

import orjson

from remoting import codes
from tests.unit.controllerd.processors.test_placements import until
from tests.unit.controllerd.single import single


async def test_an_anchor_is_kept_and_told(tmp_path: Path) -> None:
    async with single(tmp_path) as one:
        await until(lambda: one.controller._machine.features.level >= 3)
        assert not (await one.ask(codes.GET_ANCHOR, {"chain": "audit"})).body
        fields = {"chain": "audit", "sequence": 7, "digest": "a" * 64, "at": 1_700_000_000_000}
        assert (await one.ask(codes.KEEP_ANCHOR, fields)).code == codes.SUCCESS
        refused = await one.ask(codes.KEEP_ANCHOR, {**fields, "sequence": 6})
        assert refused.code == codes.CONTROLLER_INVALID_REQUEST
        assert "had come to 7 before" in (refused.remark or "")
        told = orjson.loads((await one.ask(codes.GET_ANCHOR, {"chain": "audit"})).body)
        assert (told["sequence"], told["digest"], told["begun_anew"]) == (7, "a" * 64, 0)
        assert (await one.ask(codes.KEEP_ANCHOR, {**fields, "sequence": 6, "anew": "true"})).code == codes.SUCCESS
        assert one.controller._machine.anchors.anchors["audit"].begun_anew == 1
