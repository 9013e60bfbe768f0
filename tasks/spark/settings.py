"""What Spark may use here, from the environment (pure)

- LOGBOOM_SPARK_MASTER: local[*] (the default: two cores at most), local[N], spark://..., k8s://..., yarn; or sc://host:port for a
  Spark Connect server that somebody else runs
- LOGBOOM_SPARK_DRIVER_MEMORY: heap of our Spark Connect server, such as 1g (the default) or 512m
- LOGBOOM_SPARK_IDLE_MINUTES: how long our server stays without work; default 10
- LOGBOOM_REPORTS_AT_ONCE: how many reports run side by side in it (`webapp.appliance.environment`)
- LOGBOOM_DATA_DIR: where the socket and scratch space lie

Memory: all reports share that one heap; beside it Spark holds some 150 MiB for its classes and code, and for each task at a time
a Python worker of some 100 MiB. What the reports themselves keep is bounded in `webapp.appliance.plan` (REPORT_MEMORY_KIB each).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from remoting.errors import SettingsError
from webapp.appliance.environment import read_reports_at_once
from webapp.appliance.place import DEFAULT_DATA_DIR

LOCAL_CORES = 2
# A task whose Python worker was killed is done again; one that fails by itself fails as often, and soon.
TASK_FAILURES = 4
_MEMORY = re.compile(r"(\d{1,6})([mg])", re.IGNORECASE)
_LOCAL = re.compile(r"local(?:\[(\d+)\])?")
_MASTER = re.compile(r"local(\[(\*|\d{1,4})\])?|(spark|k8s|sc)://\S+|yarn")


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """The settings of one installation."""

    data_dir: Path
    master: str
    driver_memory_mb: int
    idle_stop_ms: int
    reports_at_once: int

    @classmethod
    def read(cls, variables: Mapping[str, str], cores: int) -> SparkSettings:
        """Read and check. Raises SettingsError with the rule."""
        master = variables.get("LOGBOOM_SPARK_MASTER") or "local[*]"
        if not _MASTER.fullmatch(master):
            known = "local[*], local[N], spark://..., k8s://..., yarn or sc://..."
            raise SettingsError(f"LOGBOOM_SPARK_MASTER is {master!r}; it must be {known}")
        memory = variables.get("LOGBOOM_SPARK_DRIVER_MEMORY") or "1g"
        parsed = _MEMORY.fullmatch(memory)
        megabytes = int(parsed[1]) * (1024 if parsed[2].lower() == "g" else 1) if parsed else 0
        if megabytes < 512:
            raise SettingsError(f"LOGBOOM_SPARK_DRIVER_MEMORY is {memory!r}; it must be at least 512m, such as 1g")
        idle = variables.get("LOGBOOM_SPARK_IDLE_MINUTES") or "10"
        if not idle.isdecimal() or not 1 <= int(idle) <= 100_000:
            raise SettingsError(f"LOGBOOM_SPARK_IDLE_MINUTES is {idle!r}; it must be a whole number of at least 1")
        at_once = read_reports_at_once(variables)
        data_dir = Path(variables.get("LOGBOOM_DATA_DIR") or DEFAULT_DATA_DIR)
        if master in ("local", "local[*]"):
            # The brokers live on the same machine: one report takes two cores at most. Each further one finds a place for a
            # task of its own, so that a small one does not wait until a task of a big one ends.
            master = f"local[{max(1, min(LOCAL_CORES, cores)) + at_once - 1}]"
        return cls(data_dir, master, megabytes, int(idle) * 60_000, at_once)

    @property
    def is_external(self) -> bool:
        """Whether somebody else runs the Spark Connect server."""
        return self.master.startswith("sc://")

    @property
    def is_local(self) -> bool:
        """Whether everything of Spark runs on this machine, with this directory and this Python."""
        return self.master.startswith("local")

    @property
    def task_master(self) -> str:
        """The master as Spark is told: on this machine a task that failed is tried again, as a cluster does by itself."""
        if not (local := _LOCAL.fullmatch(self.master)):
            return self.master
        return f"local[{local[1] or 1},{TASK_FAILURES}]"

    @property
    def socket_path(self) -> Path:
        """Where reports ask for Spark."""
        return self.data_dir / "run" / "spark.sock"

    @property
    def state_path(self) -> Path:
        """What the Spark process publishes about itself."""
        return self.data_dir / "run" / "spark.json"

    @property
    def scratch_dir(self) -> Path:
        """Spark's working files; emptied at each start."""
        return self.data_dir / "reports" / "spark"

    @property
    def most_memory_bytes(self) -> int:
        """Above this the server and its Python workers are started anew as soon as nobody uses them."""
        return (2 * self.driver_memory_mb + 1536) * 1024 * 1024
