"""The soak goes on where the last one ended and keeps what failed; coverage counts what came near what."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.sim import soak
from tests.sim.coverage import Coverage, missing, table
from tests.sim.light import LightStory
from tests.sim.rotting import RotStory
from tests.sim.soak import Soak
from tests.sim.timed_light import TimedLightStory
from tests.sim.world import Violation


def test_a_pair_is_a_fault_and_a_change_close_to_each_other() -> None:
    coverage = Coverage(near_ms=10)
    coverage.fault("kill", 100)
    coverage.changed("master", 109)
    coverage.changed("master", 110)
    coverage.changed("replica", 111)
    coverage.fault("cut", 105)
    assert coverage.pairs == {("master", "kill"): 1, ("master", "cut"): 1, ("replica", "cut"): 1}
    assert coverage.changes == {"master": 2, "replica": 1}
    assert missing(coverage.pairs, ["master", "replica"], ["kill", "cut"], 1) == [("replica", "kill")]
    first, *lines = table(coverage.pairs, ("master", "replica"), ("kill", "cut")).splitlines()
    assert first.split() == ["master", "replica"]
    assert [line.split() for line in lines] == [["kill", "1", "0"], ["cut", "1", "1"]]


def test_a_soak_goes_on_and_keeps_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: Counter[int] = Counter()

    def tell(story: LightStory) -> None:
        told[story.seed] += 1
        if story.seed == 3:
            raise Violation("light seed 3: nothing is as it was")

    monkeypatch.setattr(LightStory, "run", tell)
    monkeypatch.setattr(Soak, "_tell_full", lambda self, seed: None)
    for other in (RotStory, TimedLightStory):
        monkeypatch.setattr(other, "run", lambda self: None)
    first = Soak(tmp_path, None)
    first.go_on(1e-6)
    second = Soak(tmp_path, None)
    second.go_on(1e-6)
    assert second.next_seeds == {"full": 2} | dict.fromkeys(("light", "rot", "timers"), 2 * soak.LIGHT_PER_FULL)
    assert set(told) == set(range(2 * soak.LIGHT_PER_FULL))
    assert [(each["kind"], each["seed"]) for each in second.failing] == [("light", 3)]
    assert "nothing is as it was" in (tmp_path / "light-3.txt").read_text()
    assert "light seed 3" in second.report()
