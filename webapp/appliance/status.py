"""The command `status`: is the appliance up, what runs, what is wrong; for people and, with --json, for scripts.

Three sources: what the supervisor of the data directory published, the console's GET /api/v1/health, and what each broker says of
its replica number and its role, which may change at any time. Exit codes: 0 healthy, 1 degraded (some process is not running, or
the console says so), 2 down, 3 bad options.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from remoting.facts.words import BrokerRole, Health
from webapp.appliance import environment, probes, state
from webapp.appliance.layout import DataLayout
from webapp.appliance.lifecycle import State
from webapp.appliance.place import COMMAND, DEFAULT_DATA_DIR
from webapp.appliance.plan import Kind

EXIT_CODES = {Health.HEALTHY: 0, Health.DEGRADED: 1, Health.DOWN: 2}

_DEADLINE_S = 3


def main(arguments: Sequence[str], stream: TextIO | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(
        prog=f"{COMMAND} status",
        description="Say whether the appliance of a data directory is healthy.",
        epilog="Exit code: 0 healthy, 1 degraded, 2 down, 3 bad options.",
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(os.environ.get(environment.DATA_DIR) or DEFAULT_DATA_DIR),
        metavar="DIR",
        help="the data directory (default: LOGBOOM_DATA_DIR, else %(default)s)",
    )
    try:
        options = parser.parse_args(arguments)
    except SystemExit as stop:
        return 3 if stop.code else 0
    layout = DataLayout(options.data.expanduser().absolute())
    if layout.replication_secret_file.exists():
        os.environ.setdefault(
            environment.CLUSTER_SECRET, str(layout.replication_secret_file)
        )  # the brokers may want it
    for name, value in state.dialling(layout, state.read(layout) or {}).items():
        os.environ.setdefault(name, value)
    content = asyncio.run(gather(layout))
    out = sys.stdout if stream is None else stream
    out.write(json.dumps(content, indent=1) + "\n" if options.json else _as_text(content))
    return EXIT_CODES[content["status"]]


async def gather(layout: DataLayout) -> dict[str, Any]:
    """The whole answer: status, the reason if not healthy, the console's verdict, the supervisor's state."""
    supervisor = state.read(layout)
    if supervisor is None:
        return {
            "status": Health.DOWN,
            "reason": f"no appliance runs on {layout.root}",
            "console": None,
            "supervisor": None,
        }
    console: Mapping[str, Any] | None = None
    complaint = None
    try:
        async with asyncio.timeout(_DEADLINE_S):
            console = await probes.http_get_json(supervisor["http"], "/api/v1/health")
    except (OSError, ValueError, TimeoutError) as error:
        complaint = f"the console does not answer ({str(error) or 'no answer in time'})"
    status, reason = _judge(supervisor, console, complaint)
    replicas = await asyncio.gather(*(_replica(process) for process in supervisor["processes"]))
    processes = [
        {**process, "replica": replica} for process, replica in zip(supervisor["processes"], replicas, strict=True)
    ]
    supervisor = {**supervisor, "processes": processes}
    return {"status": status, "reason": reason, "console": console, "supervisor": supervisor}


async def _replica(process: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a broker is in its group, by its own word; None of other processes, and when it does not answer."""
    if process["kind"] != Kind.BROKER or process["pid"] is None:
        return None
    told = await probes.told_state(process["address"])
    if told is None:
        return None
    wrong = [each for each in (told.stale_view, told.controllers_error, told.last_error) if each]
    if told.scrub is not None and told.scrub.unrepaired:
        wrong.append(f"{len(told.scrub.unrepaired)} parts of its log are damaged, and not repaired yet")
    return {"group": told.broker_name, "id": told.broker_id, "role": told.role, "problem": "; ".join(wrong) or None}


def _judge(
    supervisor: Mapping[str, Any], console: Mapping[str, Any] | None, complaint: str | None
) -> tuple[Health, str | None]:
    if supervisor["state"] in ("stopping", "stopped"):
        return Health.DOWN, "the appliance is stopping"
    expected = (State.RUNNING, State.RETIRED, State.HELD)
    missing = [process["name"] for process in supervisor["processes"] if process["state"] not in expected]
    verdict = None if console is None else console.get("status")
    if verdict == Health.DOWN:
        return Health.DOWN, "the console says that the cluster is down"
    if complaint is not None:
        return Health.DEGRADED, complaint
    if missing:
        return Health.DEGRADED, f"not running: {', '.join(missing)}"
    if verdict != Health.HEALTHY:
        return Health.DEGRADED, "the console says that the cluster is degraded; its first page says why"
    return Health.HEALTHY, None


def _as_text(content: Mapping[str, Any]) -> str:
    reason = content["reason"]
    lines = [content["status"] if reason is None else f"{content['status']}: {reason}"]
    supervisor = content["supervisor"]
    if supervisor is not None:
        https = supervisor.get("https")
        where = f"https://{supervisor['http']}/ and https://{https}/" if https else f"http://{supervisor['http']}/"
        lines.append(f"console {where}, supervisor process {supervisor['pid']}")
        if redis := supervisor.get("redis"):  # a supervisor of an older version does not say
            lines.append(f"Redis: {redis}")
        roles = [_role(process["replica"]) for process in supervisor["processes"]]
        width = max(map(len, roles), default=0)
        lines += [_row(process, role, width) for process, role in zip(supervisor["processes"], roles, strict=True)]
    return "\n".join(lines) + "\n"


def _role(replica: Mapping[str, Any] | None) -> str:
    if replica is None:
        return ""
    return f"replica {replica['id']}" + ("" if replica["role"] == BrokerRole.REPLICA else f", {replica['role']}")


def _row(process: Mapping[str, Any], role: str, width: int) -> str:
    parts = [f"  {process['name']:<16} {process['state']:<12}"]
    if width:
        parts.append(f"{role:<{width}}")
    if process["pid"]:
        parts.append(f"pid {process['pid']:<7}")
    if process["address"]:
        parts.append(process["address"])
    if process["restarts"]:
        parts.append(f"restarts {process['restarts']}")
    if process["last_exit"]:
        parts.append(f"last time it {process['last_exit']['text']} at {process['last_exit']['at']}")
    if process.get("group") and process.get("why"):
        parts.append(process["why"])
    replica = process["replica"]
    if replica is not None and replica["problem"]:
        parts.append(f"it says: {replica['problem']}")
    return "  ".join(parts).rstrip()
