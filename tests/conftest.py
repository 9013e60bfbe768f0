"""What holds for every test: where Django finds its settings, and that nothing is read from or written to a real data directory.

The variables are set when this file is imported, which is before pytest-django and any test module load Django.
"""

from __future__ import annotations

import atexit
import importlib
import os
import shutil
import tempfile
from pathlib import Path

import hypothesis
import pytest

_DATA_DIR = tempfile.mkdtemp(prefix="logboom-tests-")
atexit.register(shutil.rmtree, _DATA_DIR, ignore_errors=True)

for _name in [name for name in os.environ if name.startswith("LOGBOOM_") or name in ("REDIS_URL", "DATABASE_URL")]:
    del os.environ[_name]
os.environ["LOGBOOM_DATA_DIR"] = _DATA_DIR
os.environ["DJANGO_SETTINGS_MODULE"] = "webapp.settings"
importlib.import_module("django")  # pytest-django sets up only a Django that is loaded before tests are collected

hypothesis.settings.register_profile(
    "logboom", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
hypothesis.settings.load_profile("logboom")

# Fast and pure first, real processes later. Browsers come last for a reason of their own: while Playwright runs, an event loop
# runs in the main thread, and no other test could start one.
_ORDER = ("test_tidy.py", "unit", "scenarios", "golden", "contract", "sim", "web", "reports", "integration", "browser")
_TESTS = Path(__file__).resolve().parent
_ON_REQUEST = (_TESTS / "interop",)  # needs more than Debian's and Python's packages: collected only when it is named


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path not in _ON_REQUEST:
        return None
    named = [(config.invocation_params.dir / argument.split("::")[0]).resolve() for argument in config.args]
    return None if any(collection_path in (path, *path.parents) for path in named) else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    kind = item.path.relative_to(_TESTS).parts[0]
    return _ORDER.index(kind) if kind in _ORDER else 0
