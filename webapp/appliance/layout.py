"""Where everything lies inside the data directory of an appliance (pure)

One object per data directory; whoever needs a path asks it, so that `docs/ON_DISK.md` and the code name each place once.
Nothing here touches the disk: the supervisor makes the directories, each program makes its own files.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class _Below:
    """A path below the data directory."""

    def __init__(self, *parts: str) -> None:
        self._parts = parts

    def __get__(self, layout: DataLayout, owner: type[DataLayout]) -> Path:
        return layout.root.joinpath(*self._parts)


@dataclass(frozen=True, slots=True)
class DataLayout:
    """The paths below one data directory."""

    root: Path

    logs = _Below("logs")
    """One NAME.log per process, and NAME.log.1 .. after rotation."""
    run = _Below("run")
    """What is true only while the appliance runs: lock, state file, heartbeats."""
    secrets = _Below("secrets")
    """Generated secrets, each a file that only the owner may read."""
    reports = _Below("reports")
    """Report results in their downloadable forms, and Spark's scratch space."""
    controllers = _Below("controllers")
    brokers = _Below("brokers")
    groups = _Below("groups")
    """What people want of broker groups: `webapp.wishes`."""
    redis = _Below("redis")
    """Configuration, socket and working directory of the embedded Redis."""
    console_database = _Below("console.sqlite3")
    """The console's SQLite database; DATABASE_URL replaces it."""
    shape_file = _Below("appliance.json")
    """How many controllers, groups and replicas this directory was made with, and its tier."""
    lock_file = _Below("run", "lock")
    """Locked by the supervisor as long as it lives; holds its process id."""
    supervisor_file = _Below("run", "supervisor.json")
    """The supervisor's published state; see `webapp.appliance.state`."""
    secret_key_file = _Below("secrets", "secret-key")
    """Django's signing key."""
    redis_password_file = _Below("secrets", "redis-password")
    """Password of the embedded Redis."""
    redis_url_file = _Below("secrets", "redis-url")
    """Where the embedded Redis listens, its password included, for commands that a person starts."""
    cli_token_file = _Below("secrets", "cli-token")
    """The API token of this machine's command line."""
    audit_key_file = _Below("secrets", "audit-key")
    """What the console's audit trail is sealed with; LOGBOOM_AUDIT_KEY_FILE names another place."""
    replication_secret_file = _Below("secrets", "replication-secret")
    """What the components of the cluster know one another by."""
    first_user_file = _Below("secrets", "first-user")
    """NAME:PASSWORD of the first super user of the cluster's clients, for the controllers."""

    tls = _Below("tls")
    """The appliance's own certificates; see `webapp.appliance.certificates`."""
    tls_authority_file = _Below("tls", "ca.pem")
    """What clients that check certificates must trust."""
    tls_authority_key_file = _Below("tls", "ca.key")
    tls_certificate_file = _Below("tls", "server.pem")
    """What every port shows."""
    tls_key_file = _Below("tls", "server.key")

    def log_file(self, process: str) -> Path:
        """The log of one process, by its name in the plan."""
        return self.logs / f"{process}.log"

    def heartbeat_file(self, process: str) -> Path:
        """Touched by a process that has no port to ask; see `LOGBOOM_HEARTBEAT_FILE`."""
        return self.run / f"{process}.heartbeat"

    def controller(self, controller_id: str) -> Path:
        """Raft log and snapshots of one controller."""
        return self.controllers / controller_id

    def broker(self, process: str) -> Path:
        """Store of one broker replica."""
        return self.brokers / process

    def has_log(self, process: str) -> bool:
        """Whether a broker replica's store has messages, or had."""
        log = self.broker(process) / "commitlog"
        return log.is_dir() and any(log.iterdir())

    def mount(self, group: str, mount_id: str) -> Path:
        """Store of one mount of a broker group."""
        return self.mounts(group) / mount_id

    def mounts(self, group: str) -> Path:
        """Those of all mounts of a broker group."""
        return self.root / "mounts" / group

    def directories(self) -> list[Path]:
        """What must exist before anything starts, parents first."""
        daemons = [self.controllers, self.brokers]
        return [self.root, self.logs, self.run, self.secrets, self.tls, self.reports, self.redis, *daemons]
