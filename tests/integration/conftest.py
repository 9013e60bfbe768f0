"""Fixtures for files that share a cluster among their tests, and for programs around the official Python client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.client_programs import PRELUDE, Program, start_program
from tests.support.made_whole import cluster, running, topic

__all__ = ["cluster", "running", "topic"]


@pytest.fixture
async def programs(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """Starts client programs; whatever still runs at the end is killed."""
    started: list[Program] = []

    async def start(code: str, endpoints: Sequence[str], prelude: str = PRELUDE) -> Program:
        home = tmp_path / f"home{len(started)}"
        home.mkdir()
        started.append(await start_program(code, endpoints, home, prelude))
        return started[-1]

    yield start
    for program in started:
        await program.kill()
