from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from webapp.appliance import preflight
from webapp.appliance.layout import DataLayout


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """`up` tells this process who it is by its environment, too; that is nothing for other tests."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def layout(tmp_path: Path) -> DataLayout:
    """A data directory of this test's own, made as `up` makes it."""
    layout = DataLayout(tmp_path / "data")
    preflight.make_directories(layout)
    return layout
