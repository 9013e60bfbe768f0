"""Settings for property tests that say nothing about speed: a busy machine must not fail them."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
