from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from remoting.transport import beats
from remoting.transport.beats import next_beat_s, on_next_beat

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
