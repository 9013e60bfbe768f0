"""Twins for what tasks talk to besides the cluster: channels in memory, Redis as a dictionary."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import django
import pytest

django.setup()  # this file is imported before pytest-django does it, and models can be imported only afterwards

from channels.layers import channel_layers  # noqa: E402

from tasks import claims  # noqa: E402
from tests.unit.tasks.fake_redis import FakeRedis  # noqa: E402


@pytest.fixture
def redis(monkeypatch: pytest.MonkeyPatch) -> FakeRedis:
    """Redis in memory, with a clock that the test moves."""
    fake = FakeRedis()
    monkeypatch.setattr(claims, "connection", lambda: fake)
    monkeypatch.setattr("tasks.refresh.connection", lambda: fake)
    return fake


@pytest.fixture(autouse=True)
def channels(settings: Any) -> Iterator[None]:
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
    channel_layers.backends.clear()
    yield
    channel_layers.backends.clear()
