"""Tiny processes for the supervisor to look after, and a listener that tests can wait on."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from webapp.appliance.layout import DataLayout
from webapp.appliance.plan import HeartbeatProbe, Kind, Plan, ProcessSpec, StopStage

DEADLINE_S = 60

# argv: name, heartbeat file, protocol file. Says it is ready, then waits; says so when it is told to stop.
POLITE = """
import signal, sys
from pathlib import Path
name, heartbeat, protocol = sys.argv[1:4]
def stop(number, frame):
    with open(protocol, "a") as file:
        file.write(name + "\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
Path(heartbeat).touch()
while True:
    signal.pause()
"""

# Ignores SIGTERM.
STUBBORN = """
import signal, sys
from pathlib import Path
signal.signal(signal.SIGTERM, signal.SIG_IGN)
Path(sys.argv[2]).touch()
while True:
    signal.pause()
"""

# Starts a grandchild that ignores SIGTERM, writes its process id into the protocol file, then behaves like POLITE.
PARENT = (
    """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.signal(15, signal.SIG_IGN); signal.pause()"])
with open(sys.argv[3], "a") as file:
    file.write(str(child.pid) + "\\n")
"""
    + POLITE
)

# Ends at once and says why.
CRASHING = "import sys; sys.exit('no luck today')"


# Says that it is not needed any more.
RETIRING = "import sys; print('the group goes on without me', file=sys.stderr); sys.exit(3)"


def spec(
    layout: DataLayout,
    name: str,
    program: str = POLITE,
    stage: StopStage = StopStage.FRONT,
    after: tuple[str, ...] = (),
    kind: Kind = Kind.WORKER,
) -> ProcessSpec:
    """A process of the plan that runs one of the programs above."""
    heartbeat = layout.heartbeat_file(name)
    argv = (sys.executable, "-S", "-c", program, name, str(heartbeat), str(protocol_file(layout)))
    return ProcessSpec(name, kind, argv, HeartbeatProbe(heartbeat), stage, after)


def protocol_file(layout: DataLayout) -> Path:
    """Where the programs write."""
    return layout.root / "protocol"


def protocol(layout: DataLayout) -> list[str]:
    """What they wrote."""
    path = protocol_file(layout)
    return path.read_text().split() if path.exists() else []


def plan(*processes: ProcessSpec) -> Plan:
    """A plan of those processes alone."""
    return Plan(processes, env={}, http="127.0.0.1:1", controllers=(), grpc_endpoints=())


@dataclass(frozen=True)
class Event:
    """Something that the supervisor told."""

    what: str
    name: str
    detail: Any


class Recorder:
    """In the place of the terminal; `wait` returns the next event of a kind, skipping others."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._queue: asyncio.Queue[Event] = asyncio.Queue()

    def ready(self, name: str, restarts: int) -> None:
        self._told(Event("ready", name, restarts))

    def exited(self, name: str, how: str, last_words: str | None, restart_in_ms: int) -> None:
        self._told(Event("exited", name, (how, last_words, restart_in_ms)))

    def unstartable(self, name: str, reason: str) -> None:
        self._told(Event("unstartable", name, reason))

    def retired(self, name: str, last_words: str | None) -> None:
        self._told(Event("retired", name, last_words))

    async def wait(self, what: str, name: str) -> Event:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                event = await self._queue.get()
                if (event.what, event.name) == (what, name):
                    return event

    def _told(self, event: Event) -> None:
        self.events.append(event)
        self._queue.put_nowait(event)
