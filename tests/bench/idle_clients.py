"""What gRPC clients cost that have nothing to do: each has a connection of its own, a telemetry stream and a receive that waits.

    python -m tests.bench.idle_clients [--clients N] [--seconds S]

Headers are those of the official clients: of every call some are new, and stay in the broker's header table. A receive waits
for as long as a broker lets it, then the client asks again; with --heartbeats, each says every ten seconds that it lives, as the
official clients do. What is counted
is the broker's own memory for one client, and its CPU time of a core while nothing is sent. Both ends are on this machine, and
each needs an open file for each client: a limit (`ulimit -n`) of some more than there are clients, for either process.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import resource
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import hpack
import uvloop

from brokerd.proxy.http2 import frames
from brokerd.proxy.protobuf import definition, service
from brokerd.proxy.status import Code
from remoting.exporter import MetricsSettings
from remoting.transport.client import split_address
from tests.bench.harness import ROOT, Row
from tests.bench.processes import cpu_seconds, memory_of
from tests.bench.sends import TOPIC, broker
from tests.support.cluster import eventually

CLIENTS: Final = 10_000
GOAL_BYTES: Final = 20 * 1024
GOAL_SHARE: Final = 0.05

_OF_A_GROUP: Final = 100
_AT_ONCE: Final = 200  # connections being made
_HEARTBEAT_S: Final = 10.0
_FILES: Final = 1000  # that a process has open besides its connections
_PATIENCE_S: Final = 120
_PARKED: Final = b"parked\n"
_HELD: Final = re.compile(r"^logboom_pops_held\{[^}]*\} (\d+)$", re.MULTILINE)
_ANSWERED: Final = re.compile(
    r'^logboom_grpc_calls_total\{(?=[^}]*method="ReceiveMessage")(?=[^}]*code="MESSAGE_NOT_FOUND")[^}]*\} (\d+)$',
    re.MULTILINE,
)


class IdleClient(asyncio.Protocol):
    """One client. `telemetry` is resolved when its settings were answered."""

    def __init__(self, number: int, *, heartbeats: bool) -> None:
        self._fields = [
            *((":method", "POST"), (":scheme", "http"), (":authority", "127.0.0.1:8081"), ("te", "trailers")),
            *(("content-type", "application/grpc"), ("user-agent", "grpc-java-netty/1.53.0")),
            *(("grpc-accept-encoding", "gzip"), ("x-mq-language", "JAVA"), ("x-mq-protocol", "v2")),
            ("x-mq-client-version", "5.2.0"),
            ("x-mq-client-id", f"host-{number % 97}@{number}@0@{uuid.uuid4().hex[:8]}"),
        ]
        self._group = f"idle-{number // _OF_A_GROUP}"
        self._heartbeats = heartbeats
        self._transport: Any = None
        self._encoder = hpack.Encoder()
        self._next_stream_id = 1
        self._receives: set[int] = set()
        self._rest = b""
        self.telemetry: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # ---- asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        settings = service.TelemetryCommand().settings
        settings.client_type = definition.ClientType.Value("SIMPLE_CONSUMER")
        settings.access_point.addresses.add(host="127.0.0.1", port=8081)
        settings.subscription.group.name = self._group
        settings.subscription.subscriptions.add(topic={"name": TOPIC}).expression.expression = "*"
        settings.user_agent.version = "5.2.0"
        settings.metric.on = False
        command = service.TelemetryCommand(settings=settings)
        self._transport.write(frames.PREFACE + frames.encode_settings([]))
        self._call("Telemetry", command.SerializeToString(), ends=False)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        position = 0
        while len(data) - position >= frames.FRAME_HEADER_BYTES:
            high, low, kind, flags, stream_id = frames.FRAME_HEADER.unpack_from(data, position)
            end = position + frames.FRAME_HEADER_BYTES + (high << 8 | low)
            if end > len(data):
                break
            if kind == frames.SETTINGS and not flags & frames.ACK:
                self._transport.write(frames.encode_frame(frames.SETTINGS, frames.ACK, 0))
            elif kind == frames.DATA and stream_id == 1 and not self.telemetry.done():
                self._settings_answered(data[position + frames.FRAME_HEADER_BYTES + 5 : end])
            elif kind == frames.HEADERS and flags & frames.END_STREAM and stream_id in self._receives:
                self._receives.remove(stream_id)
                self._receive()
            elif kind in (frames.RST_STREAM, frames.GOAWAY):
                raise RuntimeError("the broker gave up a call")
            position = end
        self._rest = data[position:]

    # ---- inside

    def _settings_answered(self, message: bytes) -> None:
        status = service.TelemetryCommand.FromString(message).status
        if status.code != Code.OK:
            raise RuntimeError(f"the settings were refused: {status.message}")
        self.telemetry.set_result(None)
        self._receive()
        if self._heartbeats:
            asyncio.get_running_loop().call_later(_HEARTBEAT_S, self._heartbeat)

    def _receive(self) -> None:
        request = service.ReceiveMessageRequest(group={"name": self._group}, batch_size=32)
        request.message_queue.topic.name = TOPIC
        request.filter_expression.expression = "*"
        request.invisible_duration.FromMilliseconds(30_000)
        request.long_polling_timeout.FromMilliseconds(20_000)
        self._receives.add(self._call("ReceiveMessage", request.SerializeToString(), ("grpc-timeout", "25S")))

    def _heartbeat(self) -> None:
        request = service.HeartbeatRequest(group={"name": self._group})
        request.client_type = definition.ClientType.Value("SIMPLE_CONSUMER")
        self._call("Heartbeat", request.SerializeToString(), ("grpc-timeout", "3S"))
        asyncio.get_running_loop().call_later(_HEARTBEAT_S, self._heartbeat)

    def _call(self, method: str, message: bytes, *more: tuple[str, str], ends: bool = True) -> int:
        stream_id = self._next_stream_id
        self._next_stream_id += 2
        path = (":path", f"/apache.rocketmq.v2.MessagingService/{method}")
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        of_call = (("x-mq-request-id", str(uuid.uuid4())), ("x-mq-date-time", now))
        block = self._encoder.encode([self._fields[0], path, *self._fields[1:], *of_call, *more])
        body = b"\0" + len(message).to_bytes(4) + message
        self._transport.write(
            frames.encode_frame(frames.HEADERS, frames.END_HEADERS, stream_id, block)
            + frames.encode_frame(frames.DATA, frames.END_STREAM if ends else 0, stream_id, body)
        )
        return stream_id


async def hold(address: str, clients: int, heartbeats: bool, seconds: float) -> None:
    """Connect them all, say so, and keep them for that time."""
    host, port = split_address(address)
    loop = asyncio.get_running_loop()
    for first in range(0, clients, _AT_ONCE):
        made = [
            loop.create_connection(partial(IdleClient, number, heartbeats=heartbeats), host, port)
            for number in range(first, min(first + _AT_ONCE, clients))
        ]
        for _, client in await asyncio.gather(*made):
            await asyncio.wait_for(client.telemetry, _PATIENCE_S)
    sys.stdout.buffer.write(_PARKED)
    sys.stdout.flush()
    await asyncio.sleep(seconds)


def run(clients: int = CLIENTS, seconds: float = 25.0, *, heartbeats: bool = False) -> list[Row]:
    """`seconds` is how long CPU time is counted: a receive waits for 20."""
    allow_files(clients + _FILES)
    settings = (f"grpc.max_connections={clients + _OF_A_GROUP}",)
    with broker(1, settings) as (cluster, address):
        pid = cluster.brokers[0].pid
        before = memory_of(pid)
        words = [sys.executable, "-m", __spec__.name, "--hold", cluster.grpc_addresses[0], str(clients)]
        words += ["--heartbeats"] * heartbeats
        with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                if process.stdout.readline() != _PARKED:
                    raise RuntimeError("the clients did not connect")
                eventually("every client's receive waits", lambda: receives_held(address) >= clients)
                after = memory_of(pid)
                answered = counted(address, _ANSWERED)
                began_s, used_s = time.monotonic(), cpu_seconds(pid)
                time.sleep(seconds)
                took_s = time.monotonic() - began_s
                share = (cpu_seconds(pid) - used_s) / took_s
                receives = (counted(address, _ANSWERED) - answered) / took_s
                later = memory_of(pid)
            finally:
                process.kill()
    rows = rows_of(clients, [each.anonymous_mb - before.anonymous_mb for each in (after, later)], share, receives)
    for row in rows:
        print(f"{row.name}: {row.figure}", flush=True)
    return rows


def receives_held(address: str) -> int:
    """How many receives wait at the broker, as its metrics say."""
    return counted(address, _HELD)


def counted(address: str, figure: re.Pattern[str]) -> int:
    """One of the broker's metrics; 0 while it is not there."""
    port = MetricsSettings().scrape_port(split_address(address)[1])
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=_PATIENCE_S) as answer:
        found = figure.search(answer.read().decode())
    return int(found[1]) if found is not None else 0


def rows_of(clients: int, more_mb: Sequence[float], share: float, receives: float) -> list[Row]:
    """`receives` ended in a second: fewer than were asked for where the clients do not get their share of the machine."""
    at_once, later = (int(each * 1024 * 1024 / clients) for each in more_mb)
    return [
        Row(
            f"{clients:,} idle gRPC clients: memory of one",
            f"{at_once:,} bytes when all are there, {later:,} later",
            f"<= {GOAL_BYTES:,}",
            max(at_once, later) <= GOAL_BYTES,
        ),
        Row(
            f"{clients:,} idle gRPC clients: CPU time",
            f"{100 * share:.1f} % of a core for {receives:.0f} receives a second",
            f"<= {100 * GOAL_SHARE:.0f} %",
            share <= GOAL_SHARE,
        ),
    ]


def allow_files(wanted: int) -> None:
    """Raise this process's limit, and that of those it starts. Raises RuntimeError where it is not allowed to."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise RuntimeError(f"{wanted} open files are needed, and {hard} are allowed: raise the hard limit (ulimit -Hn)")
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=CLIENTS, help="how many (%(default)s)")
    parser.add_argument("--seconds", type=float, default=25.0, help="how long CPU time is counted (%(default)s)")
    parser.add_argument("--heartbeats", action="store_true", help="let the clients say that they live, too")
    parser.add_argument("--hold", nargs=2, metavar=("HOST:PORT", "CLIENTS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.hold:
        uvloop.run(hold(options.hold[0], int(options.hold[1]), options.heartbeats, 10 * 60))
    else:
        run(options.clients, options.seconds, heartbeats=options.heartbeats)


if __name__ == "__main__":
    main()
