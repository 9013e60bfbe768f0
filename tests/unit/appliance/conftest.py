from __future__ import annotations

from pathlib import Path

import pytest

from webapp.appliance import preflight
from webapp.appliance.layout import DataLayout


@pytest.fixture
def layout(tmp_path: Path) -> DataLayout:
    """A data directory of this test's own, made as `up` makes it."""
    layout = DataLayout(tmp_path / "data")
    preflight.make_directories(layout)
    return layout
