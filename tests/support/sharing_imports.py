"""How the workers of a run share what importing the test modules costs where none of them was ever imported: a clean clone.

pytest writes every test module anew, with its assertions taken apart, and keeps the result beside it. That is most of what a
collection takes, and workers that collect the same modules in the same order all do it at the same moment. So each of them first
imports a part of its own, and finds the parts of the others done when it gets there.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Sequence
from pathlib import Path

import pytest


def import_own_part(root: Path, besides: Sequence[Path], worker: int, workers: int) -> None:
    """Import all test modules but those in `besides`, beginning with the part of this worker.

    What cannot be imported is left to the collection, which says so.
    """
    found = (path for path in root.rglob("test_*.py") if not any(each in path.parents for each in besides))
    modules = sorted(path.relative_to(root.parent) for path in found)
    begin = len(modules) * worker // workers
    for module in modules[begin:] + modules[:begin]:
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(module.with_suffix("").parts))
