"""Where everything lies inside the data directory of an appliance (pure)

One object per data directory; whoever needs a path asks it, so that `docs/ON_DISK.md` and the code name each place once.
Nothing here touches the disk: the supervisor makes the directories, each program makes its own files.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PROJECT_DIR = Path(__file__).resolve().parents[2]
DEFAULT_DATA_DIR = PROJECT_DIR / "data"


@dataclass(frozen=True, slots=True)
class DataLayout:
    """The paths below one data directory."""

    root: Path

    @property
    def logs(self) -> Path:
        """One NAME.log per process, and NAME.log.1 .. after rotation."""
        return self.root / "logs"

    @property
    def run(self) -> Path:
        """What is true only while the appliance runs: lock, state file, heartbeats."""
        return self.root / "run"

    @property
    def secrets(self) -> Path:
        """Generated secrets, each a file that only the owner may read."""
        return self.root / "secrets"

    @property
    def reports(self) -> Path:
        """Report results in their downloadable forms, and Spark's scratch space."""
        return self.root / "reports"

    @property
    def redis(self) -> Path:
        """Working directory of the embedded Redis."""
        return self.root / "redis"

    @property
    def console_database(self) -> Path:
        """The console's SQLite database; DATABASE_URL replaces it."""
        return self.root / "console.sqlite3"

    @property
    def shape_file(self) -> Path:
        """How many controllers, groups and replicas this directory was made with."""
        return self.root / "appliance.json"

    @property
    def lock_file(self) -> Path:
        """Locked by the supervisor as long as it lives; holds its process id."""
        return self.run / "lock"

    @property
    def supervisor_file(self) -> Path:
        """The supervisor's published state; see `webapp.appliance.state`."""
        return self.run / "supervisor.json"

    @property
    def secret_key_file(self) -> Path:
        """Django's signing key."""
        return self.secrets / "secret-key"

    @property
    def redis_password_file(self) -> Path:
        """Password of the embedded Redis."""
        return self.secrets / "redis-password"

    @property
    def redis_url_file(self) -> Path:
        """Where the embedded Redis listens, its password included, for commands that a person starts."""
        return self.secrets / "redis-url"

    @property
    def cli_token_file(self) -> Path:
        """The API token of this machine's command line."""
        return self.secrets / "cli-token"

    @property
    def replication_secret_file(self) -> Path:
        """What the components of the cluster know one another by."""
        return self.secrets / "replication-secret"

    @property
    def first_user_file(self) -> Path:
        """NAME:PASSWORD of the first super user of the cluster's clients, for the controllers."""
        return self.secrets / "first-user"

    def log_file(self, process: str) -> Path:
        """The log of one process, by its name in the plan."""
        return self.logs / f"{process}.log"

    def heartbeat_file(self, process: str) -> Path:
        """Touched by a process that has no port to ask; see `LOGBOOM_HEARTBEAT_FILE`."""
        return self.run / f"{process}.heartbeat"

    def controller(self, controller_id: str) -> Path:
        """Raft log and snapshots of one controller."""
        return self.root / "controllers" / controller_id

    def broker(self, process: str) -> Path:
        """Store of one broker replica."""
        return self.root / "brokers" / process

    def directories(self) -> list[Path]:
        """What must exist before anything starts, parents first."""
        return [
            self.root,
            self.logs,
            self.run,
            self.secrets,
            self.reports,
            self.redis,
            self.root / "controllers",
            self.root / "brokers",
        ]
