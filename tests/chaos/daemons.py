"""The daemons of a run, each in its node's namespace, and what the kernel says of their processes."""

from __future__ import annotations

import random
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from remoting.client.blocking import AdminClient
from tests.chaos.addresses import GRPC_PORT, HA_PORT, broker_address, controller_address, ip_of
from tests.chaos.diskfault import DiskFault
from tests.chaos.network import Network
from tests.chaos.rot import Rot
from tests.chaos.shim import together
from tests.chaos.wallclock import WallClock
from tests.support.cluster import Cluster, Process, eventually, make_secret
from tests.support.documents import document

GROUP: Final = "broker-a"
# Small files: rolls and fillers happen under every fault.
SEGMENT_BYTES: Final = 8 << 20
START_LIMIT_S: Final = 60


class Daemon(Process):
    """A process in a namespace. `stopped_on_purpose` is what the checks take for the harness's own doing."""

    def __init__(
        self, name: str, namespace: str, arguments: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> None:
        super().__init__(name, arguments, log, environment=environment, namespace=namespace)
        self.stopped_on_purpose = False
        self.exits_by_itself: list[int] = []

    def start(self) -> None:
        self.note_exit()
        self.stopped_on_purpose = False
        super().start()

    def strike(self) -> None:
        """kill -9 without waiting, for several at one moment; `kill` waits for the end."""
        self.note_exit()
        self.stopped_on_purpose = True
        self._signal(signal.SIGKILL)

    def kill(self) -> None:
        self.note_exit()
        self.stopped_on_purpose = True
        super().kill()

    def terminate(self, timeout_s: float = 15) -> int:
        self.note_exit()
        self.stopped_on_purpose = True
        return super().terminate(timeout_s)

    def await_exit(self, limit_s: float) -> int | None:
        """Wait for the end that a fault is to bring about, which is no finding then; the exit code, None when it goes on."""
        assert self._process is not None
        try:
            code: int | None = self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        self.stopped_on_purpose = True
        return code

    def note_exit(self) -> None:
        """Remember an end that nobody asked for."""
        if self._process is not None and not self.is_running and not self.stopped_on_purpose:
            self.exits_by_itself.append(self._process.returncode)
            self.stopped_on_purpose = True

    def thread_states(self) -> list[str]:
        """The kernel's letter for each thread (R, S, D, T ...); empty when the process is gone or only waits to be reaped."""
        return thread_states(self.pid)

    @property
    def is_gone(self) -> bool:
        return not self.thread_states()

    @property
    def is_stopped(self) -> bool:
        states = self.thread_states()
        return bool(states) and set(states) == {"T"}

    @property
    def log_path(self) -> Path:
        return self._log


def thread_states(pid: int) -> list[str]:
    """The state letter of every thread of a process that still lives."""
    states = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            # the program's name, in parentheses, may have blanks: the state is the first field after it
            states.append((task / "stat").read_text().rpartition(") ")[2][0])
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [] if set(states) <= {"Z", "X"} else states


class ChaosCluster(Cluster):
    """Controllers c0.. and brokers b0.. of one group; the last `learners` of the brokers never enter the sync-state set.

    The base class asks and waits; where the processes are and how they are started is this class's own.
    """

    def __init__(
        self,
        root: Path,
        network: Network,
        *,
        controllers: int = 3,
        replicas: int = 3,
        learners: int = 0,
        data_directories: Mapping[str, Path] | None = None,
        clocks: bool = False,
        disk_faults: bool = False,
        segment_bytes: int = SEGMENT_BYTES,
        broker_settings: Sequence[str] = (),
        seed: str = "",
    ) -> None:
        """`seed` draws what rots."""
        self.data = root
        self._secret = make_secret(root)
        self.segment_bytes = segment_bytes
        self._broker_settings = [f"store.segment_size_bytes={segment_bytes}", *broker_settings]
        self.network = network
        self.controller_names = [f"c{n}" for n in range(controllers)]
        self.broker_names = [f"b{n}" for n in range(replicas + learners)]
        self.learner_names = self.broker_names[replicas:]
        self.controller_addresses = [controller_address(name) for name in self.controller_names]
        self.broker_addresses = [broker_address(name) for name in self.broker_names]
        self.grpc_addresses = [f"{ip_of(name)}:{GRPC_PORT}" for name in self.broker_names]
        self._replicas = replicas
        self.data_directories = {name: root / name for name in (*self.controller_names, *self.broker_names)}
        self.data_directories.update(data_directories or {})
        share = {name: (number, len(self.broker_names)) for number, name in enumerate(self.broker_names)}
        self.rots = {
            name: Rot(directory, random.Random(f"{seed} {name}"), segment_bytes, share.get(name, (0, 1)))
            for name, directory in self.data_directories.items()
        }
        logs = root / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        names = [*self.controller_names, *self.broker_names]
        self.clocks = {name: WallClock(root, name) for name in names if clocks}
        self.disks = {name: DiskFault(root, name) for name in names if disk_faults}
        self.daemons: dict[str, Daemon] = {}
        for name in self.controller_names:
            self.daemons[name] = self._daemon(name, self._controller_arguments(name), logs)
        for name in self.broker_names:
            self.daemons[name] = self._daemon(name, self._broker_arguments(name), logs)
        self.controllers = [self.daemons[name] for name in self.controller_names]
        self.brokers = [self.daemons[name] for name in self.broker_names]
        self.admin = AdminClient(self.controller_addresses, timeout_ms=1000)
        self.guests = []

    def _daemon(self, name: str, arguments: list[str], logs: Path) -> Daemon:
        shims = [shim.environment for shim in (self.clocks.get(name), self.disks.get(name)) if shim is not None]
        return Daemon(name, self.network.namespace(name), arguments, logs / f"{name}.log", together(shims))

    def _controller_arguments(self, name: str) -> list[str]:
        peers = ",".join(f"{each}={controller_address(each)}" for each in self.controller_names)
        return ["-m", "controllerd", "--id", name, "--peers", peers, "--data", str(self.data_directories[name])]

    def _broker_arguments(self, name: str) -> list[str]:
        host = ip_of(name)
        settings = list(self._broker_settings)
        if name in self.learner_names:
            settings.append("replication.learner=true")
        return [
            *("-m", "brokerd", "--name", GROUP, "--listen", broker_address(name)),
            *("--ha-listen", f"{host}:{HA_PORT}", "--grpc-listen", f"{host}:{GRPC_PORT}"),
            *("--controllers", ",".join(self.controller_addresses), "--data", str(self.data_directories[name])),
            *("--replication-secret", str(self._secret)),
            *(word for each in settings for word in ("--set", each)),
        ]

    def start(self) -> None:
        for process in self.processes:
            process.start()
        eventually("a group that is whole, or a daemon that ended", self._whole_or_ended, START_LIMIT_S)
        for daemon in self.daemons.values():
            assert daemon.is_running, f"{daemon.name} ended at the start: {daemon.log_text()[-1500:]}"

    def _whole_or_ended(self) -> bool:
        if not all(daemon.is_running for daemon in self.daemons.values()):
            return True
        group = self.group()
        return group is not None and bool(group.get("masterBrokerId")) and len(group["syncStateSet"]) >= self._replicas

    @property
    def replica_count(self) -> int:
        """How many members the sync-state set has when all is well."""
        return self._replicas

    def confirmed(self, name: str) -> int:
        """Up to where every member has the log, as far as this broker knows."""
        return int(document(self.admin.broker_state(broker_address(name)))["confirmOffset"])

    def master_name(self) -> str:
        return self.broker_names[self.master()]

    def leader_name(self) -> str:
        return self.controller_names[self.leader()]

    def exits_by_themselves(self) -> dict[str, list[int]]:
        for daemon in self.daemons.values():
            daemon.note_exit()
        return {name: daemon.exits_by_itself for name, daemon in self.daemons.items() if daemon.exits_by_itself}
