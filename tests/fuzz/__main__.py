"""Throw hostile input at a broker for a while; a new seed every few seconds.

    python -m tests.fuzz [--minutes N] [--seed N]

The broker must live, answer every whole request once, log no exception, serve an honest client all the time, and not grow: in a
run of ten minutes or more, what its own memory falls back to in the last third may be 5 % above the most of the first. The most
of the last third says less: what is freed is kept for a while.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.bench.processes import memory_of
from tests.fuzz.throw import throw
from tests.support.cluster import Cluster

_SECONDS: Final = 10.0
_MOST_GROWTH: Final = 1.05
_LONG_MINUTES: Final = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5, help="how long (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="the first one (%(default)s)")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="fuzz"))
    failures: list[str] = []
    try:
        with Cluster(directory, controllers=1, replicas=1) as cluster:
            cluster.start()
            process, until_s, seed = cluster.brokers[0], time.monotonic() + options.minutes * 60, options.seed
            memories: list[float] = []
            while time.monotonic() < until_s and not failures:
                seen = asyncio.run(throw(cluster.broker_addresses[0], cluster.admin, seed, _SECONDS))
                failures += seen.violations
                if "Traceback" in process.log_text() or not process.is_running:
                    failures.append(f"seed {seed}: {process.log_text()[-3000:]}")
                    break
                memories.append(memory_of(process.pid).anonymous_mb)
                print(
                    f"seed {seed}: {seen.requests} whole requests, {seen.answers} answers, {seen.damaged} damaged ones or noise, "
                    f"{seen.closed_on_noise} connections closed, {seen.honest_sends} honest sends, {memories[-1]:.1f} MB",
                    flush=True,
                )
                seed += 1
            if options.minutes >= _LONG_MINUTES:
                third = max(1, len(memories) // 3)
                early_mb, late_mb = max(memories[:third], default=0.0), min(memories[-third:], default=0.0)
                if late_mb > early_mb * _MOST_GROWTH:
                    failures.append(f"memory grew from {early_mb:.1f} to {late_mb:.1f} MB")
    finally:
        shutil.rmtree(directory)
    print("\n".join(failures) or "nothing was found")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
