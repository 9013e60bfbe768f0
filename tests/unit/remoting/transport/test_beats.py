from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from remoting.transport import beats
from remoting.transport.beats import CALM_MS, last_beat_s, next_beat_s, on_next_beat, until_last_beat

moments = st.floats(0, 1e7)
periods = st.sampled_from([50, 100, 250, 1000])


@given(moments, periods)
def test_a_beat_is_in_the_future_and_at_most_a_period_away(now_s: float, period_ms: int) -> None:
    beat_s = next_beat_s(now_s, period_ms)
    assert now_s < beat_s + 1e-6
    assert beat_s <= now_s + period_ms / 1000 + 1e-6


@given(moments, periods)
def test_beats_follow_each_other_by_their_period(now_s: float, period_ms: int) -> None:
    first_s = next_beat_s(now_s, period_ms)
    assert abs(next_beat_s(first_s, period_ms) - first_s - period_ms / 1000) < 1e-6


@given(moments)
def test_beats_of_a_longer_period_are_beats_of_a_shorter_one(now_s: float) -> None:
    rare_s = next_beat_s(now_s, 250)
    frequent_s = next_beat_s(now_s, 50)
    assert any(abs(rare_s - frequent_s - 0.05 * ahead) < 1e-5 for ahead in range(6))


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_beat_that_is_due_at_once_is_one_like_any_other(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop's own handle of it has no time then."""
    monkeypatch.setattr(beats, "next_beat_s", lambda now_s, period_ms: now_s)

    async def beat() -> None:
        came = asyncio.Event()
        before_s = asyncio.get_running_loop().time()
        assert on_next_beat(50, came.set).at_s >= before_s
        on_next_beat(50, lambda: pytest.fail("it was cancelled")).cancel()
        await came.wait()

    run(beat())


@given(moments, st.integers(1, 10_000))
def test_the_last_beat_is_as_late_as_it_may_be(now_s: float, within_ms: int) -> None:
    beat_s = last_beat_s(now_s, within_ms)
    assert now_s - 1e-6 < beat_s <= now_s + within_ms / 1000 + 1e-6
    if within_ms > CALM_MS:
        assert beat_s > now_s + (within_ms - CALM_MS) / 1000 - 1e-6
        assert abs(next_beat_s(beat_s - 1e-4, CALM_MS) - beat_s) < 1e-5, "others are awake then, too"


async def test_an_event_ends_a_wait_for_a_beat_and_a_beat_one_for_an_event() -> None:
    event = asyncio.Event()
    event.set()
    async with asyncio.timeout(60):
        await until_last_beat(3600, event)
    before_s = asyncio.get_running_loop().time()
    await until_last_beat(0.001, asyncio.Event())
    await until_last_beat(0)
    assert asyncio.get_running_loop().time() >= before_s
