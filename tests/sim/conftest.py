"""What holds for every test of the simulation."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _leftovers_of_other_tests() -> None:
    """What an earlier test left open is collected before the first story, and fails here, as an error of the set-up.

    Stories allocate a lot, so without this the collector would find it in the middle of one, and that one would seem to fail.
    """
    gc.collect()


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """The daemons of the simulation would log their many deaths."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(before)
