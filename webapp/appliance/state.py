"""The supervisor's published state: DATA/run/supervisor.json.

Written by the supervisor alone, replaced as a whole at each change; read by the console and by `status`. The file
outlives a killed supervisor, so a reader believes it only while the lock file is locked.

    {"version": 1, "state": "starting" | "running" | "stopping" | "stopped", "pid": 4711,
     "started_at": "2026-01-31T12:00:00.000Z", "http": "127.0.0.1:8000", "https": null | "logs.example.com:8443",
     "controllers": ["127.0.0.1:9876"], "grpc": ["127.0.0.1:8081"], "redis": "Valkey 9.1.2 (bundled)",
     "processes": [
       {"name": "broker-a-1", "kind": "broker", "state": "running", "pid": 4712, "restarts": 0, "address": "127.0.0.1:10911",
        "log": "/data/logs/broker-a-1.log", "since": "2026-01-31T12:00:00.000Z", "group": null | "broker-a",
        "why": null | "what it lacks",
        "last_exit": null | {"code": -9, "text": "was killed by SIGKILL", "at": "2026-01-31T12:00:00.000Z"}}]}
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from webapp.appliance import environment
from webapp.appliance.environment import Environment
from webapp.appliance.layout import DataLayout

VERSION = 1


def timestamp(now: datetime | None = None) -> str:
    """RFC 3339, UTC, with milliseconds."""
    return (now or datetime.now(UTC)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def publish(path: Path, content: dict[str, Any]) -> None:
    """Replace a file of JSON; a reader sees the old or the new content, never a part."""
    draft = path.with_name(f"{path.name}.draft")
    draft.write_text(json.dumps(content, indent=1))
    os.replace(draft, path)


def read(layout: DataLayout) -> dict[str, Any] | None:
    """What the running supervisor of this data directory last published; None when none runs there."""
    if not is_locked(layout.lock_file):
        return None
    try:
        content = json.loads(layout.supervisor_file.read_text())
    except FileNotFoundError:
        return None
    if not isinstance(content, dict) or content.get("version") != VERSION:
        return None
    return content


def find_running(variables: Mapping[str, str]) -> dict[str, str]:
    """Where the appliance of this environment's data directory listens, as variables; none when it does not run."""
    layout = Environment.read(variables).data
    content = read(layout)
    if content is None:
        return {}
    return {
        environment.HTTP: content["http"],
        environment.CONTROLLERS: ",".join(content["controllers"]),
        **dialling(layout, content),
    }


def dialling(layout: DataLayout, content: Mapping[str, Any]) -> dict[str, str]:
    """What whoever dials the daemons of a running appliance has to know, as variables."""
    return {environment.TLS_CA: str(layout.tls_authority_file)} if content.get("https") else {}


def is_locked(lock_file: Path) -> bool:
    """Whether a supervisor holds the data directory."""
    try:
        descriptor = os.open(lock_file, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
