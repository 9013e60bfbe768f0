"""The environment variables of the appliance: names, meanings, defaults (pure)

There are two kinds. A person may set the first kind before `make up`; the supervisor hands it on. The supervisor sets the
second kind for the processes it starts. `webapp/settings.py` reads what the console needs through `Environment.read` (and names
a few more that concern its pages alone); Spark's are checked in `tasks/spark/settings.py`, the tier's where it is opened.

| variable | set by | meaning |
|---|---|---|
| LOGBOOM_ADMIN_PASSWORD | person | password of the first `admin`; generated and printed once when absent |
| REDIS_URL | person, else supervisor | Redis of tasks and live pages (`redis:`, `rediss:`, `unix:`); absent: an embedded one |
| DATABASE_URL | person | the console's database; absent: SQLite in the data directory |
| JAVA_HOME | person, else supervisor | Java 17 or newer for Spark |
| LOGBOOM_SPARK_MASTER | person | `local[*]` (default), `spark://`, `k8s://`, `yarn`, or `sc://` for Spark Connect |
| LOGBOOM_SPARK_DRIVER_MEMORY | person | heap of the Spark server, default `1g` |
| LOGBOOM_SPARK_IDLE_MINUTES | person | how long the Spark server stays without work, default 10 |
| LOGBOOM_TIER_URL | `up --tier`, else person | the brokers' `tiers.url`: reports read what is old there, topics are exported |
| LOGBOOM_TIER_OPTIONS | `up --tier-options`, else person | the file that they have as `tiers.options_path` |
| LOGBOOM_ALLOWED_HOSTS | person | further host names of this machine, for browsers and in the certificate, separated by commas |
| LOGBOOM_SECRET_KEY | person | Django's signing key; absent: a file in DATA/secrets |
| LOGBOOM_DATA_DIR | supervisor | the data directory, absolute |
| LOGBOOM_CONTROLLERS | supervisor | controller addresses `host:port`, separated by commas; name servers at the same time |
| LOGBOOM_HTTP | supervisor | `host:port` of the console |
| LOGBOOM_REPORTS_AT_ONCE | supervisor | how many reports run side by side, default 3 (`up --reports-at-once`) |
| LOGBOOM_JAVA_PROBLEM | supervisor | why Spark cannot run here, one sentence; absent when it can |
| LOGBOOM_CLUSTER_SECRET_FILE | supervisor | the file by which the components of the cluster know one another |
| LOGBOOM_TLS_CA | person, else `secure` | PEM: controllers and brokers are dialled with TLS and must show a certificate of it |
| LOGBOOM_TLS_CHECK_HOST | person | 0: a certificate of LOGBOOM_TLS_CA will do; else it has to name the address that is dialled |
| LOGBOOM_TLS_CERTIFICATE | person | the certificate that the console and its tasks show to them when they ask: a PEM file |
| LOGBOOM_TLS_KEY | person | its private key: a PEM file |
| LOGBOOM_SECURE_HOST | supervisor | by which address or name other machines reach the console, by HTTPS; absent: not at all |
| LOGBOOM_HEARTBEAT_FILE | supervisor | a process without a port touches it when ready, then at least every 10 seconds |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from remoting.errors import SettingsError
from webapp.appliance.layout import DataLayout
from webapp.appliance.place import DEFAULT_DATA_DIR

ADMIN_PASSWORD = "LOGBOOM_ADMIN_PASSWORD"
REDIS_URL = "REDIS_URL"
DATABASE_URL = "DATABASE_URL"
JAVA_HOME = "JAVA_HOME"
SPARK_MASTER = "LOGBOOM_SPARK_MASTER"
SPARK_DRIVER_MEMORY = "LOGBOOM_SPARK_DRIVER_MEMORY"
SPARK_IDLE_MINUTES = "LOGBOOM_SPARK_IDLE_MINUTES"
TIER_URL = "LOGBOOM_TIER_URL"
TIER_OPTIONS = "LOGBOOM_TIER_OPTIONS"
ALLOWED_HOSTS = "LOGBOOM_ALLOWED_HOSTS"
SECRET_KEY = "LOGBOOM_SECRET_KEY"
DATA_DIR = "LOGBOOM_DATA_DIR"
CONTROLLERS = "LOGBOOM_CONTROLLERS"
HTTP = "LOGBOOM_HTTP"
JAVA_PROBLEM = "LOGBOOM_JAVA_PROBLEM"
REPORTS_AT_ONCE = "LOGBOOM_REPORTS_AT_ONCE"
HEARTBEAT_FILE = "LOGBOOM_HEARTBEAT_FILE"
CLUSTER_SECRET = "LOGBOOM_CLUSTER_SECRET_FILE"
SECURE_HOST = "LOGBOOM_SECURE_HOST"
TLS_CA = "LOGBOOM_TLS_CA"
TLS_CHECK_HOST = "LOGBOOM_TLS_CHECK_HOST"
TLS_CERTIFICATE = "LOGBOOM_TLS_CERTIFICATE"
TLS_KEY = "LOGBOOM_TLS_KEY"

DEFAULT_CONTROLLERS = "127.0.0.1:9876,127.0.0.1:9877,127.0.0.1:9878"
DEFAULT_HTTP = "127.0.0.1:8000"
DEFAULT_REDIS_URL = "redis://127.0.0.1:6379/0"
DEFAULT_REPORTS_AT_ONCE = 3
MOST_REPORTS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Environment:
    """The variables as the console sees them, with defaults filled in."""

    data: DataLayout
    controllers: tuple[str, ...]
    http: str
    redis_url: str | None
    database_url: str | None
    secret_key: str | None
    allowed_hosts: tuple[str, ...]
    reports_at_once: int
    secure_host: str | None

    @classmethod
    def read(cls, variables: Mapping[str, str]) -> Environment:
        """Read from the process environment (or a test's own mapping); an empty value counts as absent."""
        return cls(
            data=DataLayout(Path(variables.get(DATA_DIR) or DEFAULT_DATA_DIR)),
            controllers=_split(variables.get(CONTROLLERS) or DEFAULT_CONTROLLERS),
            http=variables.get(HTTP) or DEFAULT_HTTP,
            redis_url=variables.get(REDIS_URL) or None,
            database_url=variables.get(DATABASE_URL) or None,
            secret_key=variables.get(SECRET_KEY) or None,
            allowed_hosts=tuple(
                dict.fromkeys((*_split(variables.get(ALLOWED_HOSTS) or ""), *filter(None, (_host(variables),))))
            ),
            reports_at_once=read_reports_at_once(variables),
            secure_host=_host(variables),
        )


def _host(variables: Mapping[str, str]) -> str | None:
    """As a browser names it."""
    host = variables.get(SECURE_HOST) or None
    return f"[{host}]" if host and ":" in host else host


def read_reports_at_once(variables: Mapping[str, str]) -> int:
    """How many reports run side by side. Raises SettingsError with the rule."""
    text = variables.get(REPORTS_AT_ONCE) or str(DEFAULT_REPORTS_AT_ONCE)
    if not text.isdecimal() or not 1 <= int(text) <= MOST_REPORTS_AT_ONCE:
        raise SettingsError(
            f"{REPORTS_AT_ONCE} is {text!r}; it must be a whole number from 1 to {MOST_REPORTS_AT_ONCE}"
        )
    return int(text)


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
