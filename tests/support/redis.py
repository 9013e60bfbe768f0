"""The Redis that the appliance runs, for tests that run a part of the appliance: its program, its socket, its user."""

from __future__ import annotations

from pathlib import Path

from webapp.appliance import redis_binary, redis_server
from webapp.appliance.layout import DataLayout
from webapp.appliance.redis_server import Embedded


def embedded(directory: Path) -> Embedded:
    """What runs it with this data directory, and its address."""
    layout = DataLayout(directory)
    layout.redis.mkdir(parents=True, exist_ok=True)
    return redis_server.prepare_embedded(layout, redis_binary.choose())
