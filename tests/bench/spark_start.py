"""How long a report waits for a Spark that sleeps, what Spark holds afterwards, and what a small report pays beside a big one.

    python -m tests.bench.spark_start [--starts N] [--other DIR]

A broker in this process answers from memory, so Spark's own time is what counts. Each start is a new `tasks.spark.server` and a
new client process; the time goes from asking for Spark to the first rows on the page. With `--other`, another checkout's Spark is
started in turn with ours. The cache directory is a new one: the first start is not counted, as it makes what later ones find.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.bench.harness import ROOT, Row
from tests.bench.processes import family_cpu_seconds, memory_of
from tests.unit.tasks.fake_cluster import FakeBroker

FIRST_ROW_GOAL_S: Final = 12.0
IDLE_GOAL_MB: Final = 800
BESIDE_GOAL: Final = 4.0

SMALL: Final = 6_000
BIG: Final = 400_000
_NOON_MS: Final = 1_769_860_800_000
_PATIENCE_S: Final = 300
_IDLE_S: Final = 75  # Spark ends Python workers that were idle for a minute

# A worker of the reports' queue without Celery and database: it prints a line of JSON when it is told something to do.
CLIENT: Final = """
import json, os, sys, threading, time
from pathlib import Path
from tasks.reports.context import Context, Stop
from tasks.reports.progress import Progress
from tasks.spark.session import Sessions
from tasks.spark.settings import SparkSettings

controller, sessions = sys.argv[1], Sessions()
settings = SparkSettings.read(os.environ, 2)
for number, line in enumerate(sys.stdin):
    topic = line.strip()
    from_s, times = time.monotonic(), {}
    def publish(rows):
        if list(rows) and "first_row_s" not in times:
            times["first_row_s"] = time.monotonic() - from_s
            print(json.dumps(times), flush=True)
    with sessions.use(settings, lambda text: None, lambda: False) as spark:
        times["ready_s"] = time.monotonic() - from_s
        from tasks.reports.throughput import job
        run_id = f"{os.getpid()}_{number}"
        parameters = {"topics": [topic], "start": None, "end": None, "minutes": 600, "top_keys": 3}
        result = job.run(Context(
            run_id=run_id, parameters=parameters, as_of_ms=1_769_867_000_000, controllers=[controller], spark=spark.session,
            tag=run_id, progress=Progress(), stop=Stop(), result_path=Path(os.environ["LOGBOOM_DATA_DIR"], run_id),
            publish=publish,
        ))
    times["done_s"] = time.monotonic() - from_s
    times["messages"] = sum(row.data["messages"] for row in result.rows if row.section == "throughput")
    print(json.dumps(times), flush=True)
os._exit(0)
"""


class Client:
    """A process that runs reports."""

    def __init__(self, checkout: Path, environ: dict[str, str], controller: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CLIENT, controller],
            cwd=checkout,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self, topic: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(topic + "\n")
        self.process.stdin.flush()

    def wait_for_rows(self) -> None:
        """Until the report has shown its first rows."""
        self._read()

    def end(self) -> dict[str, Any]:
        """Until the report is done: its times."""
        return self._read()

    def run(self, topic: str) -> dict[str, Any]:
        self.begin(topic)
        self.wait_for_rows()
        return self.end()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        times: dict[str, Any] = json.loads(self.process.stdout.readline())
        return times

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


class Spark:
    """One `tasks.spark.server` of a checkout, on a data directory of its own."""

    def __init__(self, checkout: Path, directory: Path, controller: str) -> None:
        self.checkout, self.controller = checkout, controller
        (directory / "data" / "run").mkdir(parents=True, exist_ok=True)
        self.environ = {
            **os.environ,
            "LOGBOOM_DATA_DIR": str(directory / "data"),
            "XDG_CACHE_HOME": str(directory / "cache"),
            "PYTHONPATH": str(checkout),
        }
        self.log = directory / "spark.log"
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tasks.spark.server"], cwd=checkout, env=self.environ, stdout=log, stderr=log
            )
        _wait_for(directory / "data" / "run" / "spark.sock")

    def client(self) -> Client:
        return Client(self.checkout, self.environ, self.controller)

    def resident_mb(self) -> tuple[float, float]:
        """RSS and PSS of the server process and all below it."""
        memory = [memory_of(pid) for pid in family(self.process.pid)]
        return sum(each.resident_mb for each in memory), sum(each.shared_once_mb for each in memory)

    def stop_idle(self) -> None:
        """As it stops when nobody needs it: the JVM is asked to end and has the time that it wants."""
        state = json.loads((Path(self.environ["LOGBOOM_DATA_DIR"]) / "run" / "spark.json").read_bytes())
        os.kill(state["jvm_pid"], signal.SIGTERM)
        deadline_s = time.monotonic() + _PATIENCE_S
        while Path(f"/proc/{state['jvm_pid']}").exists() and time.monotonic() < deadline_s:
            time.sleep(0.1)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(30)


def family(pid: int) -> list[int]:
    found = [pid]
    for each in found:
        for children in Path(f"/proc/{each}/task").glob("*/children"):
            with suppress(FileNotFoundError, ProcessLookupError):  # a thread that ended meanwhile
                found += map(int, children.read_text().split())
    return found


def _wait_for(path: Path) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while not path.exists():
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"{path} does not appear")
        time.sleep(0.05)


@contextmanager
def cluster() -> Iterator[FakeBroker]:
    with FakeBroker(answer_most=500) as broker:
        for topic, count in (("small", SMALL), ("big", BIG)):
            broker.add_topic(topic, 4)
            for index in range(count):
                properties = {"KEYS": "often" if index % 3 else f"k{index}"}
                broker.store(
                    topic, index % 4, b"x" * (index % 200), properties, at_ms=_NOON_MS + 20 * index % 5_000_000
                )
        yield broker


@dataclass(frozen=True)
class Start:
    """One cold start: seconds to a session that works, to the first rows, to the result; CPU seconds of all; MB at rest."""

    ready_s: float
    first_row_s: float
    done_s: float
    cpu_s: float
    second_s: float
    rss_mb: float = 0.0
    pss_mb: float = 0.0

    def __str__(self) -> str:
        idle = f", idle RSS {self.rss_mb:.0f} MB, PSS {self.pss_mb:.0f} MB" if self.rss_mb else ""
        return (
            f"session {self.ready_s:.1f} s, first rows {self.first_row_s:.1f} s, result {self.done_s:.1f} s, "
            f"{self.cpu_s:.1f} s of CPU time; the next report {self.second_s:.1f} s{idle}"
        )


def start_once(checkout: Path, directory: Path, broker: FakeBroker, *, idle: bool = False) -> Start:
    """Start, run the small report twice, look at the memory if asked, stop."""
    spark = Spark(checkout, directory, broker.address)
    client = spark.client()
    try:
        before_s = family_cpu_seconds(os.getpid())
        first = client.run("small")
        cpu_s = family_cpu_seconds(os.getpid()) - before_s
        second = client.run("small")
        assert first["messages"] == second["messages"] == SMALL, (first, second)
        rss_mb = pss_mb = 0.0
        if idle:
            time.sleep(_IDLE_S)
            rss_mb, pss_mb = spark.resident_mb()
        spark.stop_idle()
    finally:
        client.close()
        spark.close()
    return Start(first["ready_s"], first["first_row_s"], first["done_s"], cpu_s, second["done_s"], rss_mb, pss_mb)


def beside(checkout: Path, directory: Path, broker: FakeBroker, times: int) -> list[float]:
    """How many times longer a small report takes while a big one reads, by two worker processes."""
    spark = Spark(checkout, directory, broker.address)
    small, big = spark.client(), spark.client()
    try:
        for _ in range(3):
            small.run("small")
        big.run("small")
        alone_s = statistics.median(small.run("small")["done_s"] for _ in range(3))
        big.begin("big")
        big.wait_for_rows()
        ratios = [small.run("small")["done_s"] / alone_s for _ in range(times)]
        took_s = big.end()["done_s"]
        print(f"    alone {alone_s:.1f} s, the big one took {took_s:.1f} s, beside it {ratios}", flush=True)
        return ratios
    finally:
        small.close()
        big.close()
        spark.close()


def run(starts: int, other: Path | None = None) -> list[Row]:
    """The rows of the table."""
    found: dict[Path, list[Start]] = {ROOT: [], **({other: []} if other is not None else {})}
    with cluster() as broker, tempfile.TemporaryDirectory(prefix="bench") as directory:
        homes = {checkout: Path(directory, str(number)) for number, checkout in enumerate(found)}
        for checkout in found:
            print(f"{checkout.name}, first: {start_once(checkout, homes[checkout], broker)}", flush=True)
        for number in range(starts):
            for checkout, measured in found.items():
                measured.append(start_once(checkout, homes[checkout], broker, idle=number == starts - 1))
                print(f"{checkout.name}: {measured[-1]}", flush=True)
        ratio = max(beside(ROOT, homes[ROOT], broker, 2))
    ours = found[ROOT]
    first_s = statistics.median(each.first_row_s for each in ours)
    rows = [
        Row(
            "Spark asleep to first rows",
            f"{first_s:.1f} s",
            f"<= {FIRST_ROW_GOAL_S:.0f} s",
            first_s <= FIRST_ROW_GOAL_S,
        ),
        Row("Spark idle", f"RSS {ours[-1].rss_mb:.0f} MB", f"<= {IDLE_GOAL_MB} MB", ours[-1].rss_mb <= IDLE_GOAL_MB),
        Row("small report beside a big one", f"{ratio:.1f} x alone", f"<= {BESIDE_GOAL:.0f} x", ratio <= BESIDE_GOAL),
    ]
    if other is not None:
        theirs_s = statistics.median(each.first_row_s for each in found[other])
        rows.append(Row(f"the same of {other.name}", f"{theirs_s:.1f} s, RSS {found[other][-1].rss_mb:.0f} MB"))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=3, help="cold starts of each (%(default)s)")
    parser.add_argument("--other", type=Path, help="another checkout to start in turn")
    options = parser.parse_args()
    for row in run(options.starts, options.other and options.other.absolute()):
        print(row.name, row.figure, row.goal, "" if row.met is None else "met" if row.met else "MISSED")


if __name__ == "__main__":
    main()
