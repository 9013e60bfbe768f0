"""Methods over a broker in memory."""

from __future__ import annotations

import time
from typing import Any

import pytest

from brokerd.proxy.methods.table import build_methods
from tests.support.turns import Turns
from tests.unit.brokerd.proxy.calls import FakeCall
from tests.unit.brokerd.proxy.fakes import FakeBroker


class Bench:
    """A fake broker, its method table, and a way to call it."""

    def __init__(self, clients: Any = None) -> None:
        """`clients` are the broker's own unless given."""
        self.broker = FakeBroker(lambda: ["127.0.0.1:8081", "127.0.0.1:8082"])
        for kind in ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"):
            self.broker.add_topic(kind.title(), kind)
        self.wall_ms = 1_763_600_000_000
        self.turns = Turns()
        self.methods = build_methods(
            self.broker.services(clients),
            scheduler=self.turns,
            monotonic_ms=lambda: int(time.monotonic() * 1000),
            wall_ms=lambda: self.wall_ms,
        )

    def begin(self, method, request, **options) -> FakeCall:
        call = FakeCall(request, **options)
        self.methods.handlers[method]([call])
        return call

    def call(self, method, request, response_class, **options):
        return self.begin(method, request, **options).response(response_class)


@pytest.fixture
def bench() -> Bench:
    return Bench()
