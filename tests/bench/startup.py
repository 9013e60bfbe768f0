"""How long `manage.py up` takes to "healthy" when everything is installed: once with new data, then with existing data.

    python -m tests.bench.startup [--starts N]

The whole appliance (three controllers, three brokers, Redis, console, workers) with its own ports and data directory. The time
counts from the program's start to its word "healthy"; the phases are what it says on the way.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Final

from tests.bench.harness import ROOT, Row
from tests.bench.processes import family_cpu_seconds

GOAL_S: Final = 20.0

_PATIENCE_S: Final = 120
# distances from one base port: controllers, brokers, gRPC, console
_OPTIONS: Final = {"--controller-port": 0, "--broker-port": 10, "--grpc-port": 50}
_HTTP: Final = 60
_USED: Final = (0, 1, 2, 10, 11, 20, 21, 30, 31, 50, 51, 52, 60)


def run(starts: int) -> list[float]:
    """The seconds of the first start (new data) and of `starts` further ones (existing data)."""
    directory = Path(tempfile.mkdtemp(prefix="bench"))
    try:
        words = command_line(directory / "data")
        took = [
            start_once(words, "new data" if number == 0 else f"existing data, start {number}")
            for number in range(starts + 1)
        ]
        print(f"existing data: median {statistics.median(took[1:]):.1f} s to healthy (goal {GOAL_S:.0f} s)", flush=True)
        return took
    finally:
        shutil.rmtree(directory)


def start_once(words: list[str], what: str) -> float:
    """Start, wait for "healthy", stop; the seconds until then."""
    print(f"{what}:", flush=True)
    began_s = time.monotonic()
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    try:
        took_s = wait_healthy(process.stdout, began_s)
        used_s = family_cpu_seconds(process.pid)
        print(f"    {took_s:6.1f} s measured from outside, {used_s:.1f} s of CPU time in all processes", flush=True)
        return took_s
    finally:
        process.send_signal(signal.SIGTERM)
        process.stdout.read()  # until it has stopped everything
        process.wait(_PATIENCE_S)


def wait_healthy(output: IO[str], began_s: float) -> float:
    """Read what `manage.py up` says until it is "healthy"; the seconds since it began."""
    said = []
    for line in output:
        said.append(line)
        if line.startswith("["):
            print("    " + line.rstrip(), flush=True)
        if line.rstrip().endswith("] healthy"):
            return time.monotonic() - began_s
        if "not healthy after" in line:
            break
    raise RuntimeError("the appliance did not become healthy; it said:\n" + "".join(said))


def command_line(data: Path) -> list[str]:
    """`manage.py up` with a data directory and ports of its own."""
    base = _free_base()
    ports = [word for option, distance in _OPTIONS.items() for word in (option, str(base + distance))]
    return [sys.executable, "manage.py", "up", "--data", str(data), "--http", f"127.0.0.1:{base + _HTTP}", *ports]


def _free_base() -> int:
    """A base port that is free with everything that goes with it, below the ports that the system hands out by itself."""
    for base in random.sample(range(20_000, 32_000, 100), 100):
        with suppress(OSError), ExitStack() as held:
            for distance in _USED:
                held.enter_context(socket.create_server(("127.0.0.1", base + distance)))
            return base
    raise RuntimeError("no free block of ports between 20000 and 32000")


def rows(took: list[float]) -> list[Row]:
    """What the final table says of a run."""
    median = statistics.median(took[1:])
    return [
        Row("manage.py up to healthy, new data", f"{took[0]:.1f} s"),
        Row("manage.py up to healthy, existing data", f"{median:.1f} s", f"< {GOAL_S:.0f} s", median < GOAL_S),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=2, help="starts with existing data")
    run(parser.parse_args().starts)


if __name__ == "__main__":
    main()
