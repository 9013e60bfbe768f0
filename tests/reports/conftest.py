"""One real Spark for all tests here: our own server process, started once, and a session on it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.spark.session import Sessions
from tasks.spark.settings import SparkSettings
from tests.support.leash import leashed

ROOT = Path(__file__).resolve().parents[2]


class SparkProcess:
    """`python -m tasks.spark.server` on a data directory of its own.

    It has no cache directory: to write down the classes of its JVM, as the first server of a user does when it ends, takes longer
    than all reports here. `test_archive` has a small program do that.
    """

    def __init__(self, data_dir: Path, **variables: str) -> None:
        self.log = data_dir / "spark.log"
        self.environ = {**os.environ, "LOGBOOM_DATA_DIR": str(data_dir), **variables}
        self.settings = SparkSettings.read(self.environ, 2)
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                leashed([sys.executable, "-m", "tasks.spark.server"]),  # dies also when the test run is killed
                cwd=ROOT,
                env={name: value for name, value in self.environ.items() if name not in ("HOME", "XDG_CACHE_HOME")},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait(10)


@pytest.fixture(scope="session")
def spark_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkProcess]:
    process = SparkProcess(tmp_path_factory.mktemp("spark"))
    try:
        eventually_there(process.settings.socket_path)
        yield process
    finally:
        process.close()


@pytest.fixture(scope="session")
def spark_sessions() -> Iterator[Sessions]:
    sessions = Sessions()
    yield sessions
    sessions.close()


@pytest.fixture
def spark(spark_process: SparkProcess, spark_sessions: Sessions) -> Iterator[Any]:
    """A Spark session that works; the same one for all tests."""
    with spark_sessions.use(spark_process.settings, lambda _: None, lambda: False) as handle:
        yield handle.session


def eventually_there(path: Path) -> None:
    from tests.support.cluster import eventually

    eventually(f"{path.name} is there", path.exists, 30)
