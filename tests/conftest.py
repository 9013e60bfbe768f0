"""What holds for every test: where Django finds its settings, and that nothing is read from or written to a real data directory.

The variables are set when this file is imported, which is before pytest-django and any test module load Django.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import shutil
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from brokerd.native.building import CannotBuild, build, cache_dir, find_compiler
from tests.support.examples import examples
from tests.support.sharing_imports import import_own_part

_DATA_DIR = tempfile.mkdtemp(prefix="logboom-tests-")
atexit.register(shutil.rmtree, _DATA_DIR, ignore_errors=True)

for _name in [name for name in os.environ if name.startswith("LOGBOOM_") or name in ("REDIS_URL", "DATABASE_URL")]:
    del os.environ[_name]
os.environ["LOGBOOM_DATA_DIR"] = _DATA_DIR
# Daemons are started some hundred times: each would compile all it imports, where the environment forbids to keep that.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# A worker that has used gRPC, and then starts a program by a fork, sometimes has that one ended by gRPC's own care for forks.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
os.environ["DJANGO_SETTINGS_MODULE"] = "webapp.settings"
importlib.import_module("django")  # pytest-django sets up only a Django that is loaded before tests are collected

hypothesis.settings.register_profile(
    "logboom",
    max_examples=examples(50),
    deadline=None,
    derandomize="CI" in os.environ,  # what is submitted is judged by what its author saw, other runs look further
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    print_blob=True,
)
hypothesis.settings.load_profile("logboom")

# Fast and pure first, real processes later: so they run one after the other, and so each worker of several takes them.
SELF_CONTAINED = ("test_tidy.py", "test_promises.py", "sim", "unit", "scenarios", "golden", "contract", "web")
# The longest sets first: with several workers, what is left for the end is small enough to be shared.
DAEMONS = ("browser", "reports", "chaos", "interop", "security", "integration")
_ORDER = (*SELF_CONTAINED, *DAEMONS)
_ONE_SET_OF_DAEMONS = (
    "reports",
    "chaos",
    "interop",
    "browser",
)  # for all files of the directory, so one worker runs them
ALONE = ("tests/integration/test_outages.py",)  # judge by the clock
TESTS = Path(__file__).resolve().parent
_ON_REQUEST = (TESTS / "interop",)  # needs more than Debian's and Python's packages: collected only when it is named


def pytest_sessionstart(session: pytest.Session) -> None:
    """Brokers load what is compiled before the first of them starts; where nothing can be, they go on in Python."""
    if not hasattr(session.config, "workerinput"):
        with contextlib.suppress(CannotBuild):
            build(cache_dir(os.environ), find_compiler())


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """What a clean clone has to prepare once is shared by the workers of a whole run."""
    worker = getattr(session.config, "workerinput", None)
    if worker is not None and session.config.args == session.config.getini("testpaths"):
        import_own_part(TESTS, _ON_REQUEST, int(worker["workerid"].removeprefix("gw")), worker["workercount"])
    return (yield)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path not in _ON_REQUEST:
        return None
    named = [(config.invocation_params.dir / argument.split("::")[0]).resolve() for argument in config.args]
    return None if any(collection_path in (path, *path.parents) for path in named) else True


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """With `-n auto`: twice as many workers as this process may use processors, since tests with daemons mostly wait."""
    return 2 * len(os.sched_getaffinity(0))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `-n`: who runs what is told by where a test stands."""
    from tests.support.shares import Kind, Share, Shares  # xdist is needed for `-n` only

    def share_of(test: str) -> Share:
        file = test.partition("::")[0]
        directory = _kind(config.rootpath / file)
        if file in ALONE:
            return Share(Kind.ALONE, file)
        if directory in DAEMONS:
            return Share(Kind.DAEMONS, directory if directory in _ONE_SET_OF_DAEMONS else file)
        return Share(Kind.SELF_CONTAINED, file)

    return Shares(config, log, share_of)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_place)


def pytest_collection_finish() -> None:
    """What was collected lives to the end: the collector of cycles need not look at it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def s3_server() -> Generator[Any, None, None]:
    """One for all tests of this process; each of them has a bucket, or a prefix in one, of its own."""
    from tests.support.object_servers import S3Server  # most runs need none

    with S3Server() as server:
        yield server


def _place(item: pytest.Item) -> int:
    return _ORDER.index(_kind(item.path))


def _kind(path: Path) -> str:
    return path.relative_to(TESTS).parts[0]
