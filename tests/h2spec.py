"""HTTP/2 conformance of the gRPC endpoint, judged by h2spec: python -m tests.h2spec (needs Go, or h2spec on PATH or in $H2SPEC).

Serves the endpoint over a broker in memory and runs h2spec's sections generic, http2 and hpack against it. Fails when a test
fails, and also when fewer tests ran than the suite has: a server that refuses everything would pass the rest by being skipped.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import sys
from pathlib import Path

from brokerd.proxy.proxy import GrpcProxy, ProxyOptions
from remoting.transport.client import RemotingClient
from tests.unit.brokerd.proxy.fakes import Alone, FakeBroker

MODULE = "github.com/summerwind/h2spec"
VERSION = "v2.2.1+incompatible"  # the last one that is a proper module version
SECTIONS = ("generic", "http2", "hpack")
LEAST_TESTS = 145

_BUILD_TIMEOUT_S = 300
_RUN_TIMEOUT_S = 300
_SUMMARY = re.compile(r"(\d+) tests, (\d+) passed, (\d+) skipped, (\d+) failed")


class Unavailable(Exception):
    """h2spec is not here and cannot be built; the text says why."""


async def find_h2spec() -> str:
    """The path of an h2spec program: $H2SPEC, PATH, one built earlier, or one built now from its Go module."""
    for candidate in (os.environ.get("H2SPEC"), shutil.which("h2spec")):
        if candidate:
            return candidate
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "logboom" / "h2spec"
    program = cache / "h2spec"
    if program.exists():
        return str(program)
    go = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
    if go is None:
        raise Unavailable("h2spec needs Go: install golang-go, or set H2SPEC to an h2spec program")
    process = await asyncio.create_subprocess_exec(
        go,
        "install",
        f"{MODULE}/cmd/h2spec@{VERSION}",
        env={**os.environ, "GOBIN": str(cache), "GOFLAGS": "-mod=mod"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output = await _output(process, _BUILD_TIMEOUT_S)
    if process.returncode:
        last = output.strip().splitlines()[-1:] or ["no output"]
        raise Unavailable(f"h2spec cannot be built from its Go module: {last[0]}")
    return str(program)


async def run_h2spec(program: str) -> tuple[str, tuple[int, int, int, int]]:
    """Its report, and (tests, passed, skipped, failed)."""
    broker = FakeBroker()
    proxy = GrpcProxy("127.0.0.1", 0, broker.services(), RemotingClient(), Alone(), ProxyOptions())
    await proxy.start()
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            *SECTIONS,
            *("--host", "127.0.0.1", "--port", str(proxy.endpoint.port), "--timeout", "15"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output = await _output(process, _RUN_TIMEOUT_S)
    finally:
        await proxy.close()
    summary = _SUMMARY.search(output)
    if summary is None:
        return output, (0, 0, 0, 0)
    tests, passed, skipped, failed = map(int, summary.groups())
    return output, (tests, passed, skipped, failed)


def verdict(counts: tuple[int, int, int, int]) -> str | None:
    """Why the counts are not good enough; None when they are."""
    tests, passed, skipped, failed = counts
    if failed:
        return f"{failed} of {tests} tests failed"
    if passed < LEAST_TESTS:
        return f"only {passed} tests passed and {skipped} were skipped; the suite has {LEAST_TESTS}"
    return None


async def _output(process: asyncio.subprocess.Process, timeout_s: float) -> str:
    try:
        async with asyncio.timeout(timeout_s):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        output, _ = await process.communicate()
        output += f"\nkilled after {timeout_s} s".encode()
    return output.decode("utf-8", "replace")


async def main() -> int:
    try:
        program = await find_h2spec()
    except Unavailable as reason:
        sys.stdout.write(f"skipped: {reason}\n")
        return 0
    output, counts = await run_h2spec(program)
    problem = verdict(counts)
    sys.stdout.write(output if problem else f"h2spec: {counts[1]} of {counts[0]} tests passed\n")
    if problem:
        sys.stdout.write(f"h2spec: {problem}\n")
    return 1 if problem else 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    sys.exit(asyncio.run(main()))
