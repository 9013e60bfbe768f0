"""What a message in flight costs the pop ledger: memory, and the time to write all of it into a snapshot.

    python -m tests.bench.in_flight [--only TEXT]

The ledger is filled as a replica fills it, from records as the log holds them, in a process of its own for each row. Tags and due
times differ from batch to batch, as those of different clients do.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import subprocess
import sys
import time
from typing import Final

import orjson

from brokerd.journal.journal import JournalSettings
from brokerd.journal.replay import encode_snapshot
from brokerd.pop import records
from brokerd.pop.ledger import PopLedger
from tests.bench.harness import ROOT, Row
from tests.bench.processes import memory_of

_MIB: Final = 1 << 20
_QUEUES: Final = 8
_START_MS: Final = 1_800_000_000_000
_GOALS: Final = {1: 200, 32: 30}  # batch size -> bytes a message


def fill(count: int, batch: int) -> PopLedger:
    """A ledger with so many messages in flight, in batches of that size."""
    ledger = PopLedger()
    rng = random.Random(count)
    offsets = [0] * _QUEUES
    for number in range(count // batch):
        queue_id = number % _QUEUES
        now_ms = _START_MS + number
        first = offsets[queue_id]
        offsets[queue_id] = end = first + batch
        pop = records.Pop(now_ms, 60_000, now_ms + 60_000, tag=rng.getrandbits(64))
        body = records.taken("orders-group", pop, [records.taken_batch("orders", queue_id, end, range(first, end))])
        ledger.apply(records.TAKEN, orjson.loads(orjson.dumps(body)))
    return ledger


def measure(count: int, batch: int) -> None:
    """Print bytes a message, and the milliseconds of a snapshot."""
    fill(1000, 1)
    gc.collect()
    before = memory_of(os.getpid()).anonymous_mb
    ledger = fill(count, batch)
    gc.collect()
    used = (memory_of(os.getpid()).anonymous_mb - before) * _MIB / count
    began = time.process_time()
    encode_snapshot(ledger, JournalSettings().snapshot_part_bytes)
    print(used, (time.process_time() - began) * 1000)


def run(only: str = "") -> list[Row]:
    rows = []
    for count in (100_000, 1_000_000):
        for batch, goal in _GOALS.items():
            name = f"in flight: {count:,} messages in batches of {batch}"
            if only in name:
                words = [sys.executable, "-m", "tests.bench.in_flight", "--measure", str(count), str(batch)]
                answer = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout.split()
                used, snapshot_ms = map(float, answer)
                figure = f"{used:.0f} B a message, a snapshot takes {snapshot_ms:.0f} ms"
                rows.append(Row(name, figure, f"<= {goal} B", used <= goal))
                print(f"{name}: {figure}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--measure", type=int, nargs=2, metavar=("COUNT", "BATCH"), help="one row, in this process")
    options = parser.parse_args()
    if options.measure:
        measure(*options.measure)
    else:
        run(options.only)


if __name__ == "__main__":
    main()
