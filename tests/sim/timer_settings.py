"""Settings of timers in stories."""

from __future__ import annotations

from brokerd.timers.settings import TimerSettings
from tests.sim.world import World


def timer_settings(world: World) -> TimerSettings:
    """Small portions of everything, so that each bound is met."""
    rng = world.random("timer settings")
    return TimerSettings(
        batch_messages=rng.choice((1, 3, 128)),
        in_flight_messages=rng.choice((2, 16_384)),
        retry_ms=200,
        near_s=rng.choice((1, 60)),
        near_max=rng.choice((2, 12, 1_000_000)),
        roll_window_s=1,
        tier_ahead_s=2,
        tier_back_s=1,
    )
