"""How the process ends, for whoever supervises it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from brokerd import __main__ as main
from brokerd.composition.settings import parse
from remoting import exit_codes
from remoting.errors import CorruptedFile, SettingsError


async def test_a_broker_that_fails_ends_with_a_code_and_the_reason_as_its_last_words(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing:
        def __init__(self, settings: Any, native: Any, *, ask_first: bool, mount: Any) -> None:
            self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def start(self) -> None:
            self.failed.set_result("replication broke: AssertionError in RoleMachine.log_settled")

        async def stop(self) -> None:
            logging.getLogger("brokerd").info("what is said while it stops")

    monkeypatch.setattr(main, "Broker", Failing)
    monkeypatch.setattr(main, "choose_native", lambda settings: None)
    monkeypatch.setattr(main.tuning, "settle", lambda: None)
    with caplog.at_level(logging.INFO):
        assert await main.serve(parse(["--data", "/x"])) == exit_codes.FAILED
    assert caplog.records[-1].levelno == logging.CRITICAL
    assert caplog.messages[-1] == "stopped: replication broke: AssertionError in RoleMachine.log_settled"


async def test_a_start_that_is_mended_loads_the_library_once(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[Any] = []
    started: list[Any] = []

    class Rotten:
        def __init__(self, settings: Any, native: Any, *, ask_first: bool, mount: Any) -> None:
            started.append(native)
            if len(started) < 3:
                raise CorruptedFile("a record rotted")
            self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def start(self) -> None:
            self.failed.set_result("enough")

        async def stop(self) -> None: ...

    async def mend(settings: Any, met: Any) -> bool:
        return True

    monkeypatch.setattr(main, "Broker", Rotten)
    monkeypatch.setattr(main, "mend_directory", mend)
    monkeypatch.setattr(main, "choose_native", lambda settings: chosen.append(settings) or "native")
    monkeypatch.setattr(main.tuning, "settle", lambda: None)
    await main.serve(parse(["--data", "/x"]))
    assert started == ["native"] * 3
    assert len(chosen) == 1


@pytest.mark.parametrize("option", ["--name", "--cluster"])
@pytest.mark.parametrize(
    ("name", "sentence"), [("b" * 128, "may have 127"), ("brökér", "letters, digits"), ("a/b", "letters, digits")]
)
def test_a_name_that_becomes_part_of_file_names_is_bounded(option: str, name: str, sentence: str) -> None:
    with pytest.raises(SettingsError, match=f"{option}.*{sentence}"):
        parse(["--data", "/x", option, name])
    parse(["--data", "/x", option, "b" * 127])
