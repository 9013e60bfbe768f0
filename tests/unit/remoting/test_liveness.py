"""How soon silence counts as death, and how seldom wrongly: the detector against arrivals of many kinds, without a clock."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.facts.loop import LoopState
from remoting.liveness import Awake, Patience, Silence, deviations

PATIENCE = Patience(interval_ms=250, floor_ms=1000, ceiling_ms=1500)


def spoken(gaps: list[int], patience: Patience = PATIENCE) -> tuple[Silence, int]:
    """A peer that spoke with these gaps, and the moment of its last word."""
    now_ms = 0
    silence = Silence(patience, now_ms)
    for gap in gaps:
        now_ms += gap
        silence.heard(now_ms)
    return silence, now_ms


def test_a_regular_peer_is_dead_after_the_floor() -> None:
    silence, now_ms = spoken([250, 252, 249, 251] * 30)
    assert silence.limit_ms == 1000
    assert not silence.is_dead(now_ms + 1000)
    assert silence.is_dead(now_ms + 1001)


def test_a_peer_that_was_hardly_heard_gets_the_ceiling() -> None:
    silence, now_ms = spoken([250] * 7)
    assert not silence.is_dead(now_ms + 1500)
    assert silence.is_dead(now_ms + 1501)


def test_the_ceiling_holds_whatever_was_heard() -> None:
    silence, now_ms = spoken([250, 1400, 3000, 9000] * 30)
    assert silence.limit_ms == 1500
    assert silence.is_dead(now_ms + 1501)


def test_a_death_says_nothing_about_how_a_peer_speaks_while_it_lives() -> None:
    silence, now_ms = spoken([250] * 100 + [20_000] + [250] * 3)
    assert silence.limit_ms == 1000
    silence.heard(now_ms + 1300)
    assert silence.limit_ms == 1500, "but wrongly taken for dead, it gets more time"


def test_one_long_gap_is_remembered_for_minutes_and_then_forgotten() -> None:
    silence, now_ms = spoken([250] * 100 + [700])
    assert silence.limit_ms == 1400
    for _ in range(2000):
        now_ms += 250
        silence.heard(now_ms)
    assert silence.limit_ms == 1400, "mean and deviation have long forgotten it"
    for _ in range(3000):
        now_ms += 250
        silence.heard(now_ms)
    assert silence.limit_ms == 1000


def test_a_peer_that_talks_all_the_time_is_not_expected_to_go_on_with_it() -> None:
    """Acknowledgements every millisecond, then nothing to acknowledge: only the promised heartbeats come."""
    silence, now_ms = spoken([1] * 60_000)
    assert silence.limit_ms == 1000
    for _ in range(20):
        now_ms += 250
        assert not silence.is_dead(now_ms)
        silence.heard(now_ms)


def test_what_the_watcher_slept_through_is_no_silence() -> None:
    silence, now_ms = spoken([250] * 50)
    woke_ms = now_ms + 100 + 20_000
    silence.discount_pause(20_000, woke_ms)
    assert silence.silent_ms(woke_ms) == 100
    silence.heard(woke_ms + 50)
    assert silence.limit_ms == 1000, "and no gap to learn from"
    silence.discount_pause(10**9, woke_ms + 60)
    assert silence.silent_ms(woke_ms + 60) == 0


def test_suspicion_grows_with_silence_and_reaches_phi_where_the_normal_tail_does() -> None:
    rng = random.Random(3)
    silence, now_ms = spoken([300 + int(rng.gauss(0, 20)) for _ in range(120)])
    levels = [silence.suspicion(now_ms + silent) for silent in range(0, 1000, 10)]
    assert levels == sorted(levels)
    assert levels[0] < 0.1
    assert levels[-1] > 8


@pytest.mark.parametrize("phi", [1.0, 3.0, 8.0, 12.0])
def test_deviations_invert_the_tail(phi: float) -> None:
    assert 0.5 * math.erfc(deviations(phi) / math.sqrt(2)) == pytest.approx(10**-phi, rel=1e-6)


@given(st.lists(st.integers(0, 20_000), max_size=300), st.integers(1, 5000), st.integers(0, 5000), st.integers(0, 5000))
def test_the_limit_stays_between_floor_and_ceiling(gaps: list[int], interval: int, floor: int, more: int) -> None:
    silence, now_ms = spoken(gaps, Patience(interval, floor, floor + more))
    assert floor <= silence.limit_ms <= floor + more
    assert silence.suspicion(now_ms + 100_000) >= silence.suspicion(now_ms) >= 0


def test_no_broker_of_a_busy_machine_is_taken_for_dead() -> None:
    """Recorded: four minutes of heartbeats of three brokers under load, as a process beside them heard them, everything on two
    processors that other programs used for 80 %; the machine's load was 16."""
    recorded: dict[str, list[int]] = json.loads(Path(__file__).with_name("heartbeat_gaps.json").read_text())
    for gaps in recorded.values():
        assert len(gaps) > 900
        silence, now_ms = Silence(PATIENCE, 0), 0
        for gap in gaps:
            now_ms += gap
            assert not silence.is_dead(now_ms)
            silence.heard(now_ms)
        assert silence.worst_ms == max(gaps) > 300, "it was not calm"
        assert silence.limit_ms == PATIENCE.floor_ms, "and yet a death would be noticed as soon as may be"


# How late a heartbeat comes, beyond its interval, in milliseconds. An hour has 14,400 heartbeats of one broker.
Lateness = Callable[[random.Random], float]
DAY = 24 * 14_400


def scheduler(rng: random.Random) -> float:
    """Both processors busy: a run queue to wait in, sometimes a long one."""
    return rng.expovariate(1 / 15) + (rng.uniform(30, 120) if rng.random() < 0.02 else 0)


def collector(rng: random.Random) -> float:
    """One heartbeat in a hundred meets a pause of a tenth to half a second."""
    return rng.expovariate(1 / 5) + (rng.uniform(100, 450) if rng.random() < 0.01 else 0)


def stalls(rng: random.Random) -> float:
    """A disk that stalls whoever writes to it: many short waits, few long ones, a heavy tail up to nine tenths of a second."""
    return rng.expovariate(1 / 5) + (min(40 * rng.paretovariate(1.3), 900) if rng.random() < 0.02 else 0)


def starved(rng: random.Random) -> float:
    """One heartbeat in twenty is late by up to eight tenths of a second."""
    return rng.expovariate(1 / 60) + (rng.uniform(200, 800) if rng.random() < 0.05 else 0)


def rare(rng: random.Random) -> float:
    """Every eight minutes, out of nothing, a pause of up to a second: what no detector can know beforehand."""
    return rng.expovariate(1 / 5) + (rng.uniform(450, 1000) if rng.random() < 0.0005 else 0)


def wrongly_dead(lateness: Lateness, heartbeats: int, seed: int) -> tuple[int, int]:
    """How often a living peer was taken for dead: by the detector, and by a fixed time-out at its floor."""
    rng = random.Random(seed)
    silence, now = Silence(PATIENCE, 0), 0.0
    adaptive = fixed = 0
    for _ in range(heartbeats):
        gap = PATIENCE.interval_ms + lateness(rng)
        now += gap
        adaptive += silence.is_dead(int(now))
        fixed += gap > PATIENCE.floor_ms
        silence.heard(int(now))
    return adaptive, fixed


@pytest.mark.parametrize(
    ("lateness", "most"),
    [(scheduler, 0), (collector, 0), (starved, 1), (stalls, 8), (rare, 16)],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_how_often_a_living_peer_is_taken_for_dead_in_a_day(lateness: Lateness, most: int) -> None:
    adaptive, fixed = wrongly_dead(lateness, DAY, seed=1)
    assert adaptive <= most, f"{adaptive} times in {DAY} heartbeats, a fixed time-out {fixed} times"
    if fixed:
        assert adaptive * 5 <= fixed, "learning from the gaps is what makes it rare"


def test_the_comparison_with_a_fixed_time_out_compares_something() -> None:
    assert wrongly_dead(stalls, DAY // 8, seed=2)[1] > 10
    assert wrongly_dead(starved, DAY // 8, seed=2)[1] > 100


def test_a_death_is_noticed_between_floor_and_ceiling_whatever_came_before() -> None:
    for lateness in (scheduler, collector, stalls, starved, rare):
        rng = random.Random(7)
        silence, now_ms = spoken([250 + int(lateness(rng)) for _ in range(3000)])
        noticed = next(silent for silent in range(0, 3000, 50) if silence.is_dead(now_ms + silent))
        assert PATIENCE.floor_ms < noticed <= PATIENCE.ceiling_ms + 50


def test_a_late_tick_tells_how_long_this_process_stood_still() -> None:
    awake = Awake(200)
    assert [awake.tick(now_ms, 50) for now_ms in (1000, 1050, 1100, 1340, 1400, 6400)] == [0, 0, 0, 0, 0, 4950]
    assert awake.state() == LoopState(delay_ms=4950, worst_delay_ms=4950, pauses=1, longest_pause_ms=4950)
    for now_ms in range(6450, 200_000, 50):
        assert awake.tick(now_ms, 50) == 0
    assert awake.worst_delay_ms == 0, "an old delay is not shown for ever"
    assert awake.longest_pause_ms == 4950
