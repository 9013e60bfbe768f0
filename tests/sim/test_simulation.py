"""A short part of the simulation for every run: whole clusters, and that a seed is a story that can be told again.

`make sim-soak` is the long form. Seeds that ever failed are in `regressions.txt`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from brokerd.replication.calm import TICK_MS
from brokerd.store.log.commitlog import CommitLog
from brokerd.store.log.segment import Segment
from controllerd.replicas import decide, elect, lives
from controllerd.replicas.requests import Observation
from controllerd.replicas.state import Group
from tests.sim.cluster import SimCluster, Story
from tests.sim.coverage import Pair
from tests.sim.faults import DISK, NETWORK, PROCESSES, RARE
from tests.sim.regressions import DRAWN, EAGER, LIGHT, RESTING, TIMERS, regressions
from tests.sim.soak import CHANGES

_SEEDS = range(9)


@pytest.mark.parametrize(("seed", "mood"), [each for each in regressions() if each[1] not in (LIGHT, TIMERS)])
def test_what_once_broke_holds(seed: int, mood: str) -> None:
    story = Story(seed, None if mood in (DRAWN, EAGER, RESTING) else mood, calm_ticks=mood == RESTING)
    SimCluster(replace(story, heartbeat_ticks=1) if mood == EAGER else story).run()


def test_every_promise_is_kept_under_faults() -> None:
    """And it was put to the test: faults of most kinds, operations of every kind and outcome."""
    faults: Counter[str] = Counter()
    operations: Counter[tuple[str, str]] = Counter()
    pairs: Counter[Pair] = Counter()
    looked_up = restarted = interrupted = 0
    for seed in _SEEDS:
        cluster = SimCluster(seed)
        cluster.run()
        faults += cluster.injector.counters
        operations += cluster.history.operations
        pairs += cluster.coverage.pairs
        looked_up += cluster.promises.looked_up
        restarted += cluster.restarted
        interrupted += sum(broker.interrupted_writes for broker in cluster.brokers)
    assert faults.total() >= 5 * len(_SEEDS)
    for kinds in (PROCESSES, NETWORK, DISK, RARE):
        assert sum(faults[kind] > 0 for kind in kinds) >= len(kinds) // 2, faults
    for operation in ("send", "pop", "ack", "postpone", "pull", "commit", "create", "delete", "delay", "give back"):
        assert operations[operation, "ok"] >= 10, operations
    for operation in ("send", "pop", "ack", "commit"):
        assert operations[operation, "unknown"] >= 3, operations
    assert operations["designate", "ok"] >= 1
    for change in CHANGES:
        near = {fault for near_change, fault in pairs if near_change == change}
        assert len(near) >= 3, f"near {change} there was only {near}"
    assert interrupted >= 50
    assert looked_up >= 500
    assert restarted >= 1


@pytest.mark.parametrize("seed", [11, 12, 13])
def test_brokers_that_look_at_their_clocks_seldom_keep_every_promise(seed: int) -> None:
    cluster = SimCluster(Story(seed, calm_ticks=True))
    calm = 0
    for broker in cluster.brokers:
        with_timer = broker._tick_in

        def counted(period_ms: int, tick_in: Callable[[int], None] = with_timer) -> None:
            nonlocal calm
            calm += period_ms > TICK_MS
            tick_in(period_ms)

        broker._tick_in = counted  # type: ignore[method-assign]
    cluster.run()
    assert calm >= 20


@pytest.mark.parametrize(("seed", "mood"), [(21, "power"), (22, "power"), (23, "disk"), (24, None)])
def test_brokers_that_write_blocks_ahead_keep_every_promise(
    seed: int, mood: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Counter[str]()
    write_zeros = CommitLog._write_zeros

    def counted(self: CommitLog, segment: Segment, position: int, count: int) -> None:
        written["zeros"] += 1
        write_zeros(self, segment, position, count)

    monkeypatch.setattr(CommitLog, "_write_zeros", counted)
    SimCluster(Story(seed, mood, writes_ahead=True)).run()
    assert written["zeros"] >= 20


@pytest.mark.parametrize(("seed", "mood"), [(31, "processes"), (32, "power"), (33, "machines")])
def test_where_nobody_copies_a_directory_nobody_is_taken_for_who_runs_on_another_one(
    seed: int, mood: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = Counter[bool]()

    def counted(group: Group, seen: Observation) -> bool:
        found = lives.runs_elsewhere(group, seen)
        looked_at[found] += seen.broker_id in group.lives
        return found

    for module in (elect, decide):
        monkeypatch.setattr(module, "runs_elsewhere", counted)
    cluster = SimCluster(Story(seed, mood, counts_lives=True))
    cluster.run()
    assert looked_at[False] >= 20
    assert looked_at[True] == 0
    for controller in cluster.controllers:
        for group in controller.machine.replicas.groups.values():
            assert group.lives.keys() == set(group.sync_state_set)


@pytest.mark.parametrize("mood", ["disk", "mixed"])
def test_a_seed_tells_the_same_story_again(mood: str) -> None:
    fingerprints = []
    for _ in range(2):
        cluster = SimCluster(Story(3, mood, fault_ms=1500))
        cluster.run()
        fingerprints.append((cluster.world.trace, cluster.world.steps, cluster.world.fingerprint))
    assert fingerprints[0] == fingerprints[1]


@pytest.mark.parametrize("seed", [10, 23])
def test_a_seed_tells_the_same_story_in_another_process(seed: int) -> None:
    """Where sets of names have another order. These once were others: what is told of in the order of a set was."""
    command = [sys.executable, "-m", "tests.sim", "--seed", str(seed)]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | {"PYTHONHASHSEED": hash_seed})
        for hash_seed in ("1", "777")
    ]
    stories = [process.communicate()[0].decode() for process in processes]
    assert "every promise was kept" in stories[0]
    assert stories[0] == stories[1]


def test_without_faults_nothing_is_elected_twice_and_nothing_fails() -> None:
    cluster = SimCluster(Story(5, "calm", without_clients=frozenset({"admin"})))
    cluster.run()
    assert cluster.truth.elections == 1 + cluster.restarted  # a new life of the master is a new epoch
    unknown = [what for what in cluster.history.operations if what[1] == "unknown"]
    assert not unknown
