"""h2load, the compiled HTTP/2 load generator of Debian's nghttp2-client, as a gRPC client that repeats one request.

It counts HTTP answers and does not read gRPC statuses, so who uses it counts what was stored.
"""

from __future__ import annotations

import gzip
import re
import shutil
import struct
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.bench.harness import Sample
from tests.bench.processes import cpu_seconds

_SERVICE: Final = "apache.rocketmq.v2.MessagingService"
_HEADERS: Final = (
    "content-type: application/grpc",
    "te: trailers",
    "user-agent: grpc-python-asyncio/1.76.0 grpc-c/51.0.0 (linux; chttp2)",
    "x-mq-language: PYTHON",
    "x-mq-client-id: bench@1@0@abcdefgh",
    "x-mq-client-version: 5.1.1",
    "x-mq-protocol: v2",
    "x-mq-date-time: 20260101T000000Z",
    "x-mq-request-id: 01234567-89ab-cdef-0123-456789abcdef",
)
_FINISHED: Final = re.compile(r"^finished in ([0-9.]+)(us|ms|s|m),", re.MULTILINE)
_REQUESTS: Final = re.compile(
    r"^requests: .* (\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout", re.MULTILINE
)
_UNIT_S: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}
_WARM_UP: Final = 2000


@dataclass(frozen=True)
class Run:
    """One run: how long it took, how many requests were answered, and each one's latency in order of size."""

    seconds: float
    succeeded: int
    latencies_us: list[int]


@dataclass(frozen=True)
class GrpcLoad:
    """Calls of one method with one request message, `connections` x `streams` at a time, for about `seconds`; with more headers,
    compressed as gRPC does it, or over TLS."""

    method: str
    message: bytes
    connections: int
    streams: int
    seconds: float
    headers: tuple[str, ...] = ()
    is_compressed: bool = False
    is_secure: bool = False

    def __call__(self, address: str, pid: int) -> tuple[Sample, int]:
        """Warm up, then measure; returns the sample and the calls of both together. `pid` is the server's."""
        warm_up = self.run(address, min(_WARM_UP, 250 * self.connections * self.streams))
        requests = max(1000, int(self.seconds * warm_up.succeeded / warm_up.seconds))
        before_s = cpu_seconds(pid)
        run = self.run(address, requests)
        used_s = cpu_seconds(pid) - before_s
        latencies = run.latencies_us
        sample = Sample(
            run.succeeded / run.seconds,
            latencies[len(latencies) // 2],
            latencies[len(latencies) * 99 // 100],
            used_s * 1e6 / run.succeeded,
        )
        return sample, warm_up.succeeded + run.succeeded

    def run(self, address: str, requests: int) -> Run:
        """Exactly so many calls. One that is not answered with HTTP's 200 is an error."""
        program = shutil.which("h2load")
        if program is None:
            raise RuntimeError("h2load is missing; install Debian's nghttp2-client")
        with tempfile.TemporaryDirectory() as directory:
            body, latencies = Path(directory) / "body", Path(directory) / "latencies"
            message = gzip.compress(self.message) if self.is_compressed else self.message
            body.write_bytes(struct.pack(">BI", self.is_compressed, len(message)) + message)
            headers = (*_HEADERS, *self.headers, *(("grpc-encoding: gzip",) if self.is_compressed else ()))
            scheme = "https" if self.is_secure else "http"
            arguments = [
                *(program, "-n", str(requests), "-c", str(self.connections), "-m", str(self.streams)),
                *(word for header in headers for word in ("-H", header)),
                *("-d", str(body), "--log-file", str(latencies), f"{scheme}://{address}/{_SERVICE}/{self.method}"),
            ]
            output = subprocess.run(arguments, check=True, capture_output=True, text=True, timeout=120).stdout
            finished, counted = _FINISHED.search(output), _REQUESTS.search(output)
            if finished is None or counted is None:
                raise RuntimeError(f"h2load said something else than expected:\n{output}")
            succeeded, *unsuccessful = map(int, counted.groups())
            if any(unsuccessful) or succeeded != requests:
                raise RuntimeError(f"not every call was answered:\n{output}")
            took_us = sorted(int(line.split("\t")[2]) for line in latencies.read_text().splitlines())
        return Run(float(finished[1]) * _UNIT_S[finished[2]], succeeded, took_us)
