"""A worker: carries out the tasks of one queue, in processes of its own.

    python -m tasks.worker --queue NAME (--processes N | --at-most N) [--most-memory-kib M]

It is Celery's program without its command line, whose other commands load a quarter of what a worker holds. `celery -A tasks
worker` is the same with more options. Workers tell one another nothing: that is nothing to us, and the queues for it, which
expire, would be kept by scripts in Redis.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

from tasks.app import DEFAULT_QUEUE, REPORTS_QUEUE


def options(arguments: Sequence[str]) -> dict[str, Any]:
    """The command line as Celery's worker takes it. Ends the process with a sentence when it cannot be understood."""
    parser = argparse.ArgumentParser(prog="python -m tasks.worker", description="Carry out the tasks of one queue.")
    parser.add_argument("--queue", required=True, choices=(DEFAULT_QUEUE, REPORTS_QUEUE))
    count = parser.add_mutually_exclusive_group(required=True)
    count.add_argument("--processes", type=_positive, metavar="N", help="that are always there")
    count.add_argument("--at-most", type=_positive, metavar="N", help="processes, which are there while there is work")
    parser.add_argument(
        "--most-memory-kib", type=_positive, metavar="M", help="with more one is replaced after its task"
    )
    chosen = parser.parse_args(arguments)
    return {
        "hostname": f"{chosen.queue}@{os.uname().nodename}",
        "queues": chosen.queue,
        "concurrency": chosen.processes,
        "autoscale": (chosen.at_most, 0) if chosen.at_most else None,
        "max_memory_per_child": chosen.most_memory_kib,
        "without_gossip": True,
        "without_mingle": True,
        "without_heartbeat": True,  # of events; the supervisor sees another one (`tasks.heartbeat`)
        "loglevel": logging.INFO,
    }


def _positive(word: str) -> int:
    number = int(word)
    if number < 1:
        raise ValueError(word)
    return number


def main() -> None:
    """Run until SIGTERM or SIGINT."""
    from tasks.app import app

    worker = app.Worker(**options(sys.argv[1:]))
    worker.start()
    sys.exit(worker.exitcode)


if __name__ == "__main__":
    main()
