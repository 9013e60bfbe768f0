"""Runs every replication scenario; `conversation` explains the commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.replication.conversation import Conversation
from tests.scenarios.runner import run_scenario

FILES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run_scenario(path, Conversation(caplog))
