"""A console of real processes for the browser: Redis, daphne, and a hand that feeds snapshots; Debian's Chromium looks at it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.beside import Beside
from tests.support.forked import Forked, fork
from tests.support.ports import free_ports
from tests.support.redis import embedded
from webapp.appliance.bootstrap import PROGRAMS
from webapp.channel_layer import ScriptlessChannelLayer

PROJECT = Path(__file__).resolve().parents[2]
CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, PROGRAMS["chromium"][0])), None)
PASSWORD = "a boom of many logs"
START_DEADLINE_S = 120.0


def wait_until(condition: Callable[[], bool], what: str, deadline_s: float = START_DEADLINE_S) -> None:
    """Await a named condition."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {deadline_s} s")
        time.sleep(0.05)


class Console:
    """The running console. `feed` writes a snapshot as the collector does."""

    def __init__(self, directory: Path) -> None:
        self.http_port = free_ports(1)[0]
        self._redis = embedded(directory)
        self.address = f"http://127.0.0.1:{self.http_port}"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("LOGBOOM_", "DJANGO_"))},
            "LOGBOOM_DATA_DIR": str(directory),
            "REDIS_URL": self._redis.url,
            "LOGBOOM_CONTROLLERS": "127.0.0.1:1",
            "LOGBOOM_ADMIN_PASSWORD": PASSWORD,
            "DJANGO_SETTINGS_MODULE": "tests.browser.settings",
            "PYTHONPATH": str(PROJECT),
        }
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes] | Forked] = []
        self._beside = Beside(self.environment, directory / "django.log")
        self.cookies: list[Any] = []  # of the administrator, once a tab has logged in
        self.is_up = False
        self.sequence = 0
        self._document: dict[str, Any] | None = None
        self._feeding = threading.Lock()
        self._stopping = threading.Event()
        self._feeder = threading.Thread(target=self._keep_feeding, daemon=True)

    def start(self) -> None:
        with open(self._directory / "redis.log", "ab") as log:
            self._processes.append(subprocess.Popen(self._redis.argv, cwd=self._directory, stdout=log, stderr=log))
        assert self._fork("prepare").wait(START_DEADLINE_S) == 0, (self._directory / "prepare.log").read_text()
        self.start_web()
        self._feeder.start()

    def django(self, code: str) -> str:
        """Run code where Django is set up, and give back what it printed."""
        return self._beside.run(code)

    def everything_kept(self) -> bytes:
        """What is in the console's database with its log, and in Redis."""
        files = [path.read_bytes() for path in self._directory.rglob("console.sqlite3*")]
        assert files, "the database is there"
        store = redis.Redis.from_url(self._redis.url)
        values = [store.dump(key) or b"" for key in store.scan_iter()]
        store.close()
        return b"".join([*files, *values])

    def feed(self, document: dict[str, Any]) -> None:
        """Let the collector see this from now on; a `pinned` one is written once, as by a collector that died."""
        with self._feeding:
            self._document = document
            self._write()

    def _keep_feeding(self) -> None:
        while not self._stopping.wait(1.0):
            with self._feeding:
                if self._document is not None and not self._document.get("pinned"):
                    self._write()

    def _write(self) -> None:
        """Write a snapshot and announce it, as the collector does."""
        assert self._document is not None
        self.sequence += 1
        document = {**self._document, "seq": self.sequence}
        if not document.get("pinned"):
            document["as_of"] = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        store = redis.Redis.from_url(self._redis.url)
        store.set("logboom:snapshot", json.dumps(document))
        store.close()

        async def announce() -> None:
            layer = ScriptlessChannelLayer(hosts=[self._redis.url], prefix="logboom:channels")
            await layer.group_send("snapshot", {"type": "snapshot.changed", "seq": self.sequence})
            await layer.close_pools()

        # in a thread: Playwright keeps an event loop in this one
        thread = threading.Thread(target=lambda: asyncio.run(announce()))
        thread.start()
        thread.join()

    def stop_web(self) -> None:
        self.is_up = False
        self._end(self._processes.pop())

    def freeze_web(self) -> None:
        """Let it answer nothing, with all its connections open, as behind a network that is gone."""
        os.kill(self._processes[-1].pid, signal.SIGSTOP)

    def thaw_web(self) -> None:
        os.kill(self._processes[-1].pid, signal.SIGCONT)

    def start_web(self) -> None:
        self._processes.append(self._fork("daphne", "-p", str(self.http_port), "webapp.asgi:application"))
        wait_until(self._answers, "the console answers")
        self.is_up = True

    def stop(self) -> None:
        self._stopping.set()
        if self._feeder.is_alive():
            self._feeder.join()
        self._beside.close()
        for process in reversed(self._processes):
            self._end(process)
        self._processes.clear()

    def _fork(self, program: str, *arguments: str) -> Forked:
        log = self._directory / f"{program}.log"
        return fork("tests.browser.copies", [program, *arguments], self._directory, log, environment=self.environment)

    def _end(self, process: subprocess.Popen[bytes] | Forked) -> None:
        os.kill(process.pid, signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait(10)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.address}/api/v1/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False


@pytest.fixture(scope="package")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    running = Console(tmp_path_factory.mktemp("console"))
    try:
        running.start()
        yield running
    finally:
        running.stop()


@pytest.fixture(
    scope="package"
)  # while Playwright runs, an event loop runs in the main thread: other tests could start none
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    assert CHROMIUM, "the browser tests need Chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()
