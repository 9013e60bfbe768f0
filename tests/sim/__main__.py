"""`make sim SEED=n`: replay one simulated cluster and print its story; `python -m tests.sim --seeds N` runs many.

A failing seed prints the broken promise and the trace, and is told again exactly by its number.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter

from tests.sim.cluster import SimCluster, Violation


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this seed alone and print its trace")
    parser.add_argument("--seeds", type=int, default=10, help="run that many seeds (%(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (%(default)s)")
    parser.add_argument("--minutes", type=float, help="go on with new seeds for so long")
    parser.add_argument("--verbose", action="store_true", help="let the daemons log")
    options = parser.parse_args()
    if not options.verbose:
        logging.disable(logging.CRITICAL)
    if options.seed is not None:
        return _run_one(options.seed, print_trace=True)
    deadline = time.monotonic() + options.minutes * 60 if options.minutes else None
    faults: Counter[str] = Counter()
    acknowledged = steps = seed = failed = 0
    for seed in range(options.first, 1 << 62):
        if deadline is not None and time.monotonic() > deadline:
            break
        if deadline is None and seed >= options.first + options.seeds:
            break
        cluster = SimCluster(seed)
        try:
            cluster.run()
        except Violation as violation:
            failed += 1
            print(f"{violation}\nreplay it with: make sim SEED={seed}")
        faults += cluster.faults
        steps += cluster.world.steps
        acknowledged += sum(len(client.outcomes.acknowledged) for client in cluster.clients)
    print(
        f"{seed - options.first} schedules, {steps} steps, {faults.total()} faults ({dict(faults)}), "
        f"{acknowledged} sends acknowledged, {failed} failed"
    )
    return 1 if failed else 0


def _run_one(seed: int, *, print_trace: bool) -> int:
    cluster = SimCluster(seed)
    violation: Violation | None = None
    try:
        cluster.run()
    except Violation as error:
        violation = error
    if print_trace:
        print("\n".join(cluster.world.trace))
    print(violation or f"seed {seed}: every promise was kept ({cluster.faults.total()} faults)")
    return 1 if violation else 0


if __name__ == "__main__":
    sys.exit(main())
