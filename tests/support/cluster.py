"""A cluster of real processes on loopback, for tests that kill, freeze and restart them.

Each process has its own session, log file and data directory; everything started is killed at `close`, also when a test fails.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from remoting.access.secret_file import load_secrets
from remoting.client.blocking import AdminClient
from remoting.errors import LogboomError
from remoting.transport.identity import component_identity
from tests.support.documents import document
from tests.support.forked import PROGRAMS, Forked, fork
from tests.support.ports import free_ports

IS_TEST = "PYTEST_VERSION" in os.environ  # what is measured is a process of its own, which shares nothing

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]


def comes_true(condition: Callable[[], object], timeout_s: float) -> bool:
    """Whether the condition gives something true in time; a question that fails is asked again."""
    try:
        eventually("it comes true", condition, timeout_s)
    except AssertionError:
        return False
    return True


def eventually(what: str, condition: Callable[[], T | None], timeout_s: float = 60) -> T:
    """Wait until the condition gives something true and return it; fail with `what` when it does not in time."""
    deadline = time.monotonic() + timeout_s
    last: BaseException | None = None
    while time.monotonic() < deadline:
        try:
            result = condition()
        except LogboomError as error:
            last, result = error, None
        if result:
            return result
        time.sleep(0.02)
    raise AssertionError(f"not within {timeout_s} s: {what}" + (f" (last error: {last})" if last else ""))


def make_secret(directory: Path) -> Path:
    """A file with a replication secret."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "replication-secret"
    path.touch(mode=0o600)
    path.write_text(secrets.token_hex(32))
    return path


class Process:
    """One daemon: started again with the same arguments and data after it died."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        log: Path,
        *,
        program: str = sys.executable,
        environment: Mapping[str, str] | None = None,
        namespace: str = "",
    ) -> None:
        """`environment` is what it finds in its environment besides ours; it runs in the network namespace, if one is named."""
        self.name = name
        self.starts = 0
        self._command = [program, *arguments]
        self._environment = environment or {}
        self._namespace = namespace
        self._log = log
        self._process: subprocess.Popen[bytes] | Forked | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        assert self._process is not None
        return self._process.poll()

    def start(self) -> None:
        assert not self.is_running, f"{self.name} runs already"
        self.starts += 1
        match self._command:
            case [sys.executable, "-m", name, *arguments] if IS_TEST and name in PROGRAMS and not self._environment:
                self._process = fork(f"{name}.__main__", arguments, ROOT, self._log, self._namespace)
            case command:
                # `ip netns exec` becomes the program that it starts, so the process id is the daemon's own
                inside = ["ip", "netns", "exec", self._namespace] if self._namespace else []
                with open(self._log, "ab") as log:
                    self._process = subprocess.Popen(
                        [*inside, *command],
                        cwd=ROOT,
                        env={**os.environ, **self._environment},
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self._signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait(60)

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def terminate(self, timeout_s: float = 60) -> int:
        """SIGTERM; returns the exit code."""
        self._signal(signal.SIGTERM)
        assert self._process is not None
        return self._process.wait(timeout_s)

    def log_text(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def _signal(self, number: int) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, number)

    def close(self) -> None:
        if self.is_running:
            self.thaw()
            self.kill()


class Cluster:
    """Controllers and groups of brokers, all on loopback. `brokers` has those of the first group, then those of the next."""

    def __init__(
        self,
        root: Path,
        *,
        controllers: int = 3,
        replicas: int = 3,
        groups: Sequence[str] = ("broker-a",),
        broker_settings: Sequence[str] = (),
        controller_settings: Sequence[str] = (),
        broker_environments: Mapping[int, Mapping[str, str]] = MappingProxyType({}),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.groups = tuple(groups)
        self._replicas = replicas
        replicas *= len(groups)
        ports = free_ports(controllers + 2 * replicas)
        self.controller_addresses = [f"127.0.0.1:{port}" for port in ports[:controllers]]
        # a broker listens two below its port, too, if nobody else does
        self.broker_addresses = [f"127.0.0.1:{port + 2}" for port in free_ports(replicas, in_a_row=3)]
        self.ha_addresses = ha = [f"127.0.0.1:{port}" for port in ports[controllers : controllers + replicas]]
        self.grpc_addresses = [f"127.0.0.1:{port}" for port in ports[controllers + replicas :]]
        self.data = root
        self.secret_file = secret = make_secret(root)
        peers = ",".join(f"n{n}={address}" for n, address in enumerate(self.controller_addresses))
        logs = root / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        self.controllers = [
            Process(
                f"n{n}",
                [
                    *("-m", "controllerd", "--id", f"n{n}", "--peers", peers, "--data", str(root / f"n{n}")),
                    *("--cluster-secret", str(secret)),
                    *(word for assignment in controller_settings for word in ("--set", assignment)),
                ],
                logs / f"n{n}.log",
            )
            for n in range(controllers)
        ]
        self.brokers = [
            Process(
                f"b{n}",
                [
                    *("-m", "brokerd", "--name", groups[n // self._replicas], "--listen", self.broker_addresses[n]),
                    *("--ha-listen", ha[n], "--grpc-listen", self.grpc_addresses[n]),
                    *("--controllers", ",".join(self.controller_addresses), "--data", str(root / f"b{n}")),
                    *("--cluster-secret", str(secret)),
                    *(word for assignment in broker_settings for word in ("--set", assignment)),
                ],
                logs / f"b{n}.log",
                environment=broker_environments.get(n),
            )
            for n in range(replicas)
        ]
        self._tls = tls
        self.admin: AdminClient
        self.use_secret(load_secrets(secret)[0].decode())
        self.guests: list[Process] = []  # what a test started besides, to be ended with the rest

    def use_secret(self, secret: str) -> None:
        """Ask the cluster under this secret from now on."""
        self.identity = component_identity((secret.encode(),), self._tls)
        self.admin = AdminClient(self.controller_addresses, timeout_ms=2000, identity=self.identity)

    @property
    def processes(self) -> list[Process]:
        return [*self.controllers, *self.brokers]

    def start(self) -> None:
        """Start everything and wait until there is a master with all replicas in its sync-state set."""
        for process in self.processes:
            process.start()
        self._wait_for_all()

    def make_whole(self) -> None:
        """Start again and thaw what a test may have left dead or frozen, and wait as after the start."""
        for process in self.processes:
            if process.is_running:
                process.thaw()
            else:
                process.start()
        self._wait_for_all()

    def _wait_for_all(self) -> None:
        for name in self.groups:
            self.wait_in_sync(self._replicas, name=name)

    def group(self, name: str | None = None) -> dict[str, Any] | None:
        """A broker group as the controllers see it (the first one without a name), None while nobody registered."""
        groups: list[dict[str, Any]] = document(self.admin.cluster_view())["groups"]
        return next((each for each in groups if name in (None, each["brokerName"])), None)

    def wait_in_sync(self, count: int, timeout_s: float = 120, *, name: str | None = None) -> dict[str, Any]:
        """Wait until there is a live master and `count` members in the sync-state set."""

        def reached() -> dict[str, Any] | None:
            group = self.group(name)
            if group is None or not group.get("masterBrokerId") or len(group["syncStateSet"]) < count:
                return None
            alive = {each["brokerId"] for each in group["replicas"] if each["alive"]}
            return group if set(group["syncStateSet"]) <= alive else None

        return eventually(f"a master with {count} members in sync", reached, timeout_s)

    def master(self, name: str = "broker-a") -> int:
        """The index of the broker that is a group's master; waits for one."""

        def found() -> tuple[int] | None:
            address = self.admin.masters().get(name)
            return (self.broker_addresses.index(address),) if address in self.broker_addresses else None

        return eventually("a master", found)[0]

    def leader(self) -> int:
        """The index of the controller that leads; waits for one."""

        def found() -> tuple[int] | None:
            for each in document(self.admin.cluster_view())["controllers"]:
                if each.get("leader") and each["address"] in self.controller_addresses:
                    return (self.controller_addresses.index(each["address"]),)
            return None

        return eventually("a controller leader", found)[0]

    def close(self) -> None:
        for process in reversed([*self.processes, *self.guests]):
            process.close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
