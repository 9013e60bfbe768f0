"""The environment variables of the appliance: names, meanings, defaults (pure)

There are two kinds. A person may set the first kind before `make up`; the supervisor hands it on. The supervisor sets the
second kind for the processes it starts. `webapp/settings.py` reads them through `Environment.read`; everything under `tasks`
gets them from Django's settings or from its own process environment by the same names.

| variable | set by | meaning |
|---|---|---|
| LOGBOOM_ADMIN_PASSWORD | person | password of the first `admin`; generated and printed once when absent |
| REDIS_URL | person, else supervisor | Redis for Celery and channels; absent: an embedded one |
| DATABASE_URL | person | the console's database; absent: SQLite in the data directory |
| JAVA_HOME | person, else supervisor | Java 17 or newer for Spark |
| LOGBOOM_SPARK_MASTER | person | `local[*]` (default), `spark://`, `k8s://`, `yarn`, or `sc://` for Spark Connect |
| LOGBOOM_SPARK_DRIVER_MEMORY | person | memory of a report's driver, default `1g` |
| LOGBOOM_ALLOWED_HOSTS | person | further host names under which browsers reach the console, separated by commas |
| LOGBOOM_SECRET_KEY | person | Django's signing key; absent: a file in DATA/secrets |
| LOGBOOM_DATA_DIR | supervisor | the data directory, absolute |
| LOGBOOM_CONTROLLERS | supervisor | controller addresses `host:port`, separated by commas; name servers at the same time |
| LOGBOOM_HTTP | supervisor | `host:port` of the console |
| LOGBOOM_JAVA_PROBLEM | supervisor | why Spark cannot run here, one sentence; absent when it can |
| LOGBOOM_HEARTBEAT_FILE | supervisor | a process without a port touches it when ready, then at least every 10 seconds |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from webapp.appliance.layout import DEFAULT_DATA_DIR, DataLayout

ADMIN_PASSWORD = "LOGBOOM_ADMIN_PASSWORD"
REDIS_URL = "REDIS_URL"
DATABASE_URL = "DATABASE_URL"
JAVA_HOME = "JAVA_HOME"
SPARK_MASTER = "LOGBOOM_SPARK_MASTER"
SPARK_DRIVER_MEMORY = "LOGBOOM_SPARK_DRIVER_MEMORY"
ALLOWED_HOSTS = "LOGBOOM_ALLOWED_HOSTS"
SECRET_KEY = "LOGBOOM_SECRET_KEY"
DATA_DIR = "LOGBOOM_DATA_DIR"
CONTROLLERS = "LOGBOOM_CONTROLLERS"
HTTP = "LOGBOOM_HTTP"
JAVA_PROBLEM = "LOGBOOM_JAVA_PROBLEM"
HEARTBEAT_FILE = "LOGBOOM_HEARTBEAT_FILE"

DEFAULT_CONTROLLERS = "127.0.0.1:9876,127.0.0.1:9877,127.0.0.1:9878"
DEFAULT_HTTP = "127.0.0.1:8000"
DEFAULT_REDIS_URL = "redis://127.0.0.1:6379/0"


@dataclass(frozen=True, slots=True)
class Environment:
    """The variables as one process sees them, with defaults filled in."""

    data: DataLayout
    controllers: tuple[str, ...]
    http: str
    redis_url: str
    database_url: str | None
    secret_key: str | None
    allowed_hosts: tuple[str, ...]
    spark_master: str
    spark_driver_memory: str
    java_home: str | None
    java_problem: str | None
    heartbeat_file: Path | None

    @classmethod
    def read(cls, variables: Mapping[str, str]) -> Environment:
        """Read from the process environment (or a test's own mapping); an empty value counts as absent."""
        heartbeat_file = variables.get(HEARTBEAT_FILE)
        return cls(
            data=DataLayout(Path(variables.get(DATA_DIR) or DEFAULT_DATA_DIR)),
            controllers=_split(variables.get(CONTROLLERS) or DEFAULT_CONTROLLERS),
            http=variables.get(HTTP) or DEFAULT_HTTP,
            redis_url=variables.get(REDIS_URL) or DEFAULT_REDIS_URL,
            database_url=variables.get(DATABASE_URL) or None,
            secret_key=variables.get(SECRET_KEY) or None,
            allowed_hosts=_split(variables.get(ALLOWED_HOSTS) or ""),
            spark_master=variables.get(SPARK_MASTER) or "local[*]",
            spark_driver_memory=variables.get(SPARK_DRIVER_MEMORY) or "1g",
            java_home=variables.get(JAVA_HOME) or None,
            java_problem=variables.get(JAVA_PROBLEM) or None,
            heartbeat_file=Path(heartbeat_file) if heartbeat_file else None,
        )


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
