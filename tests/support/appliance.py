"""`manage.py up` as a person runs it: real daemons, a real Redis, the console and its workers, on ports that are free."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from tests.support.cluster import ROOT, Process, eventually
from webapp.appliance import state, status
from webapp.appliance.layout import DataLayout

START_S = 120
STOP_S = 10

# Distances from a base port that is free with all of them: controllers, brokers with replication, gRPC, console
CONTROLLER, BROKER, GRPC, HTTP = 0, 10, 50, 60
USED = (0, 1, 2, 10, 11, 20, 21, 30, 31, 50, 51, 52, 60)


def free_base() -> int:
    """A base port below the range from which the system hands out ports by itself."""
    for base in random.sample(range(20_000, 32_000, 100), 100):
        with suppress(OSError), ExitStack() as held:
            for distance in USED:
                held.enter_context(socket.create_server(("127.0.0.1", base + distance)))
            return base
    raise AssertionError("no free block of ports")


class Appliance:
    """One `manage.py up` after the other on the same data directory and ports."""

    def __init__(self, root: Path, *arguments: str) -> None:
        self.layout = DataLayout(root / "data")
        self._root = root
        self._runs = 0
        self.base = base = free_base()
        self.arguments = ["--data", str(self.layout.root), "--http", f"127.0.0.1:{base + HTTP}"]
        for option, distance in (
            ("--controller-port", CONTROLLER),
            ("--broker-port", BROKER),
            ("--grpc-port", GRPC),
        ):
            self.arguments += [option, str(base + distance)]
        self.arguments += arguments
        self.process = self.next_process()

    def next_process(self) -> Process:
        """Of another start."""
        self._runs += 1
        return Process("up", ["manage.py", "up", *self.arguments], self._root / f"up-{self._runs}.txt")

    @property
    def said(self) -> str:
        return self.process.log_text()

    def start(self) -> None:
        self.process = self.next_process()
        self.process.start()
        self.wait_healthy()

    def wait_healthy(self) -> None:
        def healthy() -> bool:
            assert self.process.is_running, self.said
            return "Ctrl-C stops everything." in self.said and self.status()[0] == 0

        eventually("the appliance is healthy", healthy, START_S)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        os.kill(self.process.pid, number)
        eventually("the supervisor ended", lambda: not self.process.is_running, 2 * STOP_S)
        assert self.process.exit_code is not None
        return self.process.exit_code

    def manage(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, "LOGBOOM_DATA_DIR": str(self.layout.root)}
        return subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=ROOT,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )

    def status(self) -> tuple[int, dict[str, Any]]:
        content = asyncio.run(status.gather(self.layout))
        return status.EXIT_CODES[content["status"]], content

    def children(self) -> dict[str, dict[str, Any]]:
        content = state.read(self.layout)
        assert content is not None
        return {process["name"]: process for process in content["processes"]}
