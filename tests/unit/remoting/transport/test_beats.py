from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from remoting.transport.beats import next_beat_s

moments = st.floats(0, 1e7)
periods = st.sampled_from([50, 100, 250, 1000])
processes = st.integers(1, 4_000_000)


@given(moments, periods, processes)
def test_a_beat_is_in_the_future_and_at_most_a_period_away(now_s: float, period_ms: int, process: int) -> None:
    beat_s = next_beat_s(now_s, period_ms, process)
    assert now_s < beat_s + 1e-6
    assert beat_s <= now_s + period_ms / 1000 + 1e-6


@given(moments, periods, processes)
def test_beats_follow_each_other_by_their_period(now_s: float, period_ms: int, process: int) -> None:
    first_s = next_beat_s(now_s, period_ms, process)
    assert abs(next_beat_s(first_s, period_ms, process) - first_s - period_ms / 1000) < 1e-6


@given(moments, processes)
def test_beats_of_a_longer_period_are_beats_of_a_shorter_one(now_s: float, process: int) -> None:
    rare_s = next_beat_s(now_s, 250, process)
    frequent_s = next_beat_s(now_s, 50, process)
    assert any(abs(rare_s - frequent_s - 0.05 * ahead) < 1e-5 for ahead in range(6))
