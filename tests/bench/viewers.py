"""Many people looking at the same page: how long from an announcement until all of them have it, and what that costs the console.

    python -m tests.bench.viewers [--viewers N] [--seconds S] [--console DIRECTORY]

A console of its own (Redis, daphne, an empty database), websockets as browsers open them, half of them by operators. A running
report takes ten steps a second, then the overview's snapshot changes once a second. A viewer who was sent several steps at once
has had to wait for each of them. The report is looked at over TLS as well, on the same port. `--console` measures another version
of the console, in a working tree of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import re
import shutil
import signal
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from remoting.transport.tls import client_context
from tests.bench.harness import ROOT, Row
from tests.bench.processes import cpu_seconds
from tests.support.ports import free_ports
from tests.support.redis import embedded
from webapp.appliance import certificates
from webapp.appliance.layout import DataLayout

VIEWERS: Final = 50
SECONDS: Final = 20
STEPS_PER_S: Final = 10
GOAL_MS: Final = 100.0

_ANNOUNCER: Final = ROOT / "tests/bench/announcer.py"
_PATIENCE_S: Final = 120.0
_REPORT_SEQ: Final = re.compile(rb'"seq": (\d+)')
_SNAPSHOT_SEQ: Final = re.compile(rb'"snapshot_seq": "(\d+)"')


@dataclass
class Console:
    """A running console and where it is."""

    directory: Path
    environment: dict[str, str]
    http_port: int
    pid: int


@contextmanager
def console(version: Path, *options: str) -> Iterator[Console]:
    """Start one of the version in this working tree, its server with these options, and stop it."""
    directory = Path(tempfile.mkdtemp(prefix="viewers"))
    http_port = free_ports(1)[0]
    redis = embedded(directory)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("LOGBOOM_", "DJANGO_"))},
        "LOGBOOM_DATA_DIR": str(directory),
        "REDIS_URL": redis.url,
        "LOGBOOM_CONTROLLERS": "127.0.0.1:1",
        "LOGBOOM_ADMIN_PASSWORD": "a boom of many logs",
        "DJANGO_SETTINGS_MODULE": "webapp.settings",
        "PYTHONPATH": str(version),
    }
    processes: list[subprocess.Popen[bytes]] = []

    def start(*words: str) -> subprocess.Popen[bytes]:
        with (directory / "log").open("ab") as log:
            process = subprocess.Popen(words, cwd=directory, env=environment, stdout=log, stderr=log)
        processes.append(process)
        return process

    try:
        start(*redis.argv)
        prepare = [sys.executable, "-m", "webapp.appliance.prepare"]
        subprocess.run(prepare, cwd=directory, env=environment, check=True, capture_output=True)
        server = "webapp.serving" if (version / "webapp" / "serving.py").exists() else "daphne"  # of an earlier version
        web = start(sys.executable, "-m", server, "-p", str(http_port), *options, "webapp.asgi:application")
        _wait_for(f"http://127.0.0.1:{http_port}/api/v1/health")
        yield Console(directory, environment, http_port, web.pid)
    finally:
        for process in reversed(processes):
            process.send_signal(signal.SIGTERM)
            process.wait(_PATIENCE_S)
        shutil.rmtree(directory)


def _wait_for(address: str) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while True:
        with suppress(urllib.error.URLError, ConnectionError, TimeoutError), urllib.request.urlopen(address, timeout=2):
            return
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{address} does not answer")
        time.sleep(0.1)


@dataclass
class Viewer:
    """One websocket. `received` is (number, when in nanoseconds) of each message."""

    received: list[tuple[int, int]] = field(default_factory=list)
    first: asyncio.Event = field(default_factory=asyncio.Event)

    async def look(
        self, port: int, path: str, cookie: str, number: re.Pattern[bytes], trust: ssl.SSLContext | None
    ) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
        scheme = "http" if trust is None else "https"
        try:
            head = (
                f"GET {path} HTTP/1.1",
                f"Host: 127.0.0.1:{port}",
                f"Origin: {scheme}://127.0.0.1:{port}",
                f"Cookie: {cookie}",
                *("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"),
                *("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "", ""),
            )
            writer.write("\r\n".join(head).encode())
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 101"), answer
            while True:
                text = await _frame(reader)
                at_ns = time.monotonic_ns()
                if (seq := _REPORT_SEQ.search(text)) is None:
                    continue  # only a sign of life
                writer.write(_masked(b'{"type": "ack", "seq": %s}' % seq[1]))
                found = number.search(text)
                assert found is not None, text[:200]
                self.received.append((int(found[1]), at_ns))
                self.first.set()
        finally:
            writer.close()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    """The text of the next message; the console sends each as one frame."""
    while True:
        first, length = await reader.readexactly(2)
        if length == 126:
            length = int.from_bytes(await reader.readexactly(2))
        elif length == 127:
            length = int.from_bytes(await reader.readexactly(8))
        payload = await reader.readexactly(length)
        assert first & 0x0F != 8, f"the console closed the connection: {payload!r}"
        if first == 0x81:
            return payload


def _masked(text: bytes) -> bytes:
    """A short text frame of a client; the mask that changes nothing is a mask, too."""
    assert len(text) < 126
    return bytes((0x81, 0x80 | len(text), 0, 0, 0, 0)) + text


@dataclass(frozen=True)
class Look:
    """What all viewers of one page met: milliseconds of each viewer and announcement, and the console's share of a core."""

    latencies_ms: Sequence[float]
    core_percent: float
    messages_per_viewer: float

    @property
    def p95_ms(self) -> float:
        return statistics.quantiles(self.latencies_ms, n=20)[-1]

    def row(self, name: str) -> Row:
        figure = (
            f"p50 {statistics.median(self.latencies_ms):.0f} ms, p95 {self.p95_ms:.0f} ms, "
            f"longest {max(self.latencies_ms):.0f} ms; {self.core_percent:.0f} % of a core; "
            f"{self.messages_per_viewer:.0f} messages each"
        )
        return Row(name, figure, f"p95 < {GOAL_MS:.0f} ms", self.p95_ms < GOAL_MS)


async def look_at(
    running: Console,
    path: str,
    cookies: Sequence[str],
    number: re.Pattern[bytes],
    *announcing: str,
    trust: ssl.SSLContext | None = None,
) -> Look:
    """Open a websocket for each cookie, over TLS when there is something to trust; announce, and wait until everybody has had the
    last announcement."""
    viewers = [Viewer() for _ in cookies]
    looking = []
    async with asyncio.TaskGroup() as group:
        async with asyncio.timeout(_PATIENCE_S):
            for viewer, cookie in zip(viewers, cookies, strict=True):
                looking.append(group.create_task(viewer.look(running.http_port, path, cookie, number, trust)))
                await viewer.first.wait()
        announced, core_percent = await _announce(running, announcing)
        last = max(announced)
        async with asyncio.timeout(_PATIENCE_S):
            while any(viewer.received[-1][0] < last for viewer in viewers):
                await asyncio.sleep(0.01)
        for task in looking:
            task.cancel()
    latencies_ms = [
        (next(at for seq, at in viewer.received if seq >= step) - announced_ns) / 1e6
        for viewer in viewers
        for step, announced_ns in announced.items()
    ]
    return Look(latencies_ms, core_percent, statistics.mean(len(viewer.received) for viewer in viewers))


async def _announce(running: Console, words: Sequence[str]) -> tuple[dict[int, int], float]:
    """When each number was announced, and the console's share of a core from the first to the last of them."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(_ANNOUNCER), *words, cwd=running.directory, env=running.environment, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    announced: dict[int, int] = {}
    began_s = used_s = 0.0
    async for line in process.stdout:
        number, at_ns = line.split()
        announced[int(number)] = int(at_ns)
        if len(announced) == 1:
            began_s, used_s = time.monotonic(), cpu_seconds(running.pid)
    share = (cpu_seconds(running.pid) - used_s) / (time.monotonic() - began_s)
    assert await process.wait() == 0, "the announcer failed"
    return announced, share * 100


def run(viewers: int = VIEWERS, seconds: float = SECONDS, version: Path = ROOT) -> list[Row]:
    """The rows of both pages."""
    rows = []
    with tempfile.TemporaryDirectory() as made:
        layout = DataLayout(Path(made))
        certificates.keep_fresh(layout, (), datetime.datetime.now(datetime.UTC))
        files = str(layout.tls_certificate_file), str(layout.tls_key_file)
        trust = client_context(str(layout.tls_authority_file), check_host=True)
        rows += _rows(viewers, seconds, version, files, trust)
    return rows


def _rows(viewers: int, seconds: float, version: Path, files: tuple[str, str], trust: ssl.SSLContext) -> list[Row]:
    rows = []
    with console(version, "--certificate", files[0], "--key", files[1]) as running:
        prepare = [sys.executable, str(_ANNOUNCER), "prepare", str(viewers)]
        said = subprocess.run(
            prepare, cwd=running.directory, env=running.environment, check=True, capture_output=True, text=True
        )
        prepared = json.loads(said.stdout)
        cookies: list[str] = prepared["cookies"]
        pages = {
            f"{viewers} viewers of a report, {STEPS_PER_S} steps a second": (
                f"/ws/report-runs/{prepared['run']}",
                _REPORT_SEQ,
                ("steps", prepared["run"], str(int(seconds * STEPS_PER_S)), str(STEPS_PER_S)),
            ),
            f"{viewers} viewers of the overview, a snapshot a second": (
                "/ws/snapshot?view=landing",
                _SNAPSHOT_SEQ,
                ("snapshots", str(int(seconds)), "1"),
            ),
        }
        for name, (path, number, announcing) in pages.items():
            look = asyncio.run(look_at(running, path, cookies, number, *announcing))
            rows.append(look.row(name))
            print(f"{name}: {rows[-1].figure}", flush=True)
            if number is _REPORT_SEQ:  # snapshots begin to count again with each announcer
                tls = asyncio.run(look_at(running, path, cookies, number, *announcing, trust=trust))
                ratio = Row(f"{name}: processor time with TLS / without", f"{tls.core_percent / look.core_percent:.2f}")
                for row in (tls.row(f"{name}, over TLS"), ratio):
                    rows.append(row)
                    print(f"{row.name}: {row.figure}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--viewers", type=int, default=VIEWERS, help="how many look (%(default)s)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long there is news (%(default)s)")
    parser.add_argument("--console", type=Path, default=ROOT, help="the working tree of the console that is measured")
    options = parser.parse_args()
    run(options.viewers, options.seconds, options.console.resolve())


if __name__ == "__main__":
    main()
