"""How the process ends, for whoever supervises it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from brokerd import __main__ as main
from remoting import exit_codes


async def test_a_broker_that_fails_ends_with_a_code_and_the_reason_as_its_last_words(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing:
        def __init__(self, settings: Any, *, ask_first: bool) -> None:
            self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def start(self) -> None:
            self.failed.set_result("replication broke: AssertionError in RoleMachine.log_settled")

        async def stop(self) -> None:
            logging.getLogger("brokerd").info("what is said while it stops")

    monkeypatch.setattr(main, "Broker", Failing)
    monkeypatch.setattr(main.tuning, "settle", lambda: None)
    with caplog.at_level(logging.INFO):
        assert await main.serve(Any) == exit_codes.FAILED
    assert caplog.records[-1].levelno == logging.CRITICAL
    assert caplog.messages[-1] == "stopped: replication broke: AssertionError in RoleMachine.log_settled"
