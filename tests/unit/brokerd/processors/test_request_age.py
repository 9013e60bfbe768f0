"""The age of requests under clocks that disagree, drift and are set."""

from __future__ import annotations

import random

from brokerd.processors.pop.request_age import RequestAges

HOUR_MS = 3_600_000


def test_clocks_that_disagree_do_not_make_a_request_old() -> None:
    for skew_ms in (0, HOUR_MS, -HOUR_MS, 10**12):
        ages = RequestAges()
        assert ages.age_ms(skew_ms, 1000) == 0
        assert ages.age_ms(skew_ms + 500, 1500) == 0
        assert ages.age_ms(skew_ms + 500, 21_500) == 20_000, "it waited while this process stood still"


def test_a_clock_that_is_set_is_learned_anew_with_the_next_request() -> None:
    ages = RequestAges()
    ages.age_ms(1_000_000, 1000)
    for step_ms in (HOUR_MS, -HOUR_MS):
        assert ages.age_ms(1_001_000 + step_ms, 2000) == 0
        assert ages.age_ms(1_002_000 + step_ms, 3000) == 0
        assert ages.age_ms(1_002_000 + step_ms, 4000) == 1000
        assert ages.age_ms(1_004_000, 5000) == 0, "set back again"


def test_clocks_that_drift_apart_stay_friends() -> None:
    ages, rng = RequestAges(), random.Random(1)
    for now_ms in range(0, 24 * HOUR_MS, 15_000):
        born_ms = int(now_ms * (1 - 200e-6)) - rng.randrange(5)
        assert ages.age_ms(born_ms, now_ms) < 100
