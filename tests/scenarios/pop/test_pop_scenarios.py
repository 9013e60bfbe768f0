"""Every `*.txt` beside this file is a conversation with the pop service, with the exact answers it must give."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.pop.interaction import Interaction
from tests.scenarios.runner import run_scenario

_FILES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    run_scenario(path, Interaction().execute)


def test_all_scenarios_are_there() -> None:
    assert len(_FILES) >= 4
