"""Simulated clusters from the command line.

    make sim SEED=n                          tell one story and print it: who did what when, faults, roles, offsets
    make sim SEED=n ARGS="--shrink"          leave out faults and clients as long as it still fails, then print the rest
    make sim-soak MINUTES=n                  new seeds for so long; prints what was injected, done and found
    python -m tests.sim --light ...          the same with light stories: replication cores alone, one event at a time
    python -m tests.sim --mutants            break the rules one by one: the promises must be seen to break

A failing seed is told again exactly by its number, as long as the code is the same.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.sim.cluster import SimCluster, Story
from tests.sim.faults import MOODS
from tests.sim.light import LightStory
from tests.sim.mutants import FULL, LIGHT
from tests.sim.shrink import shrink
from tests.sim.world import Violation


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.sim", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, help="tell this story alone and print its trace")
    parser.add_argument(
        "--shrink", action="store_true", help="with --seed: make a failing story as short as it still fails"
    )
    parser.add_argument("--seeds", type=int, default=10, help="tell that many stories (%(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (%(default)s)")
    parser.add_argument("--minutes", type=float, help="go on with new seeds for so long")
    parser.add_argument("--mood", choices=sorted(MOODS), help="what kind of faults (from the seed)")
    parser.add_argument("--light", action="store_true", help="light stories")
    parser.add_argument("--mutants", action="store_true", help="enter every mutant; each must be found")
    parser.add_argument("--json", type=Path, help="write the counts there as well")
    parser.add_argument("--verbose", action="store_true", help="let the daemons log")
    options = parser.parse_args()
    if not options.verbose:
        logging.disable(logging.CRITICAL)
    if options.mutants:
        return _find_mutants()
    if options.seed is not None:
        return _tell_light(options.seed) if options.light else _tell(options.seed, options.mood, options.shrink)
    return _soak(options)


def _tell(seed: int, mood: str | None, shrinking: bool) -> int:
    """One story, with its trace."""
    story = Story(seed, mood)
    cluster, violation = run(story)
    if violation is not None and shrinking:
        story = shrink(story, str(violation), progress=print)
        cluster, violation = run(story)
        print(f"left of it: {story}")
    print("\n".join(cluster.world.trace))
    kept = f"seed {seed}: every promise was kept"
    print(f"{violation or kept} (fingerprint {cluster.world.fingerprint:08x}, {cluster.world.steps} steps)")
    return 1 if violation else 0


def _tell_light(seed: int) -> int:
    story = LightStory(seed)
    story.is_traced = True
    try:
        story.run()
    except Violation as violation:
        print("\n".join(story.trace))
        print(violation)
        return 1
    print("\n".join(story.trace))
    print(f"seed {seed}: every promise was kept")
    return 0


def _find_mutants() -> int:
    missed = 0
    for mutant in (*LIGHT, *FULL):
        began = time.process_time()
        found = mutant.find()
        missed += found is None
        took = f"{time.process_time() - began:6.1f} s"
        print(f"{mutant.name:28} {took}  " + (f"seed {found[0]}: {found[1]}" if found else "NOT FOUND"), flush=True)
    return 1 if missed else 0


def _soak(options: argparse.Namespace) -> int:
    counts = Counts()
    began = time.process_time()
    for seed in _seeds(options):
        if options.light:
            counts.take_light(seed)
        else:
            counts.take(Story(seed, options.mood))
    counts.cpu_seconds = time.process_time() - began
    print(counts.report())
    if options.json is not None:
        options.json.write_text(json.dumps(counts.as_json(), indent=1))
    return 1 if counts.failed else 0


def _seeds(options: argparse.Namespace) -> Iterator[int]:
    if options.minutes is None:
        yield from range(options.first, options.first + options.seeds)
        return
    deadline = time.monotonic() + options.minutes * 60
    seed = options.first
    while time.monotonic() < deadline:
        yield seed
        seed += 1


def run(story: Story) -> tuple[SimCluster, Violation | None]:
    """Tell a story; the promise that was broken, if any."""
    cluster = SimCluster(story)
    try:
        cluster.run()
    except Violation as violation:
        return cluster, violation
    return cluster, None


class Counts:
    """What many stories did."""

    def __init__(self) -> None:
        self.stories = self.steps = self.restarted = self.looked_up = 0
        self.cpu_seconds = 0.0
        self.faults: Counter[str] = Counter()
        self.moods: Counter[str] = Counter()
        self.operations: Counter[str] = Counter()
        self.network: Counter[str] = Counter()
        self.disks: Counter[str] = Counter()
        self.failed: dict[int, str] = {}

    def take(self, story: Story) -> None:
        cluster, violation = run(story)
        self.stories += 1
        self.steps += cluster.world.steps
        self.restarted += cluster.restarted
        self.looked_up += cluster.promises.looked_up
        self.moods[cluster.injector.mood] += 1
        self.faults += cluster.injector.counters
        self.operations += Counter(
            {f"{kind} {outcome}": n for (kind, outcome), n in cluster.history.operations.items()}
        )
        self.network += cluster.network.counters
        disks = [node.disk for node in cluster.nodes] + [disk for broker in cluster.brokers for disk in broker.disks]
        for counters in [disk.counters for disk in disks]:
            self.disks += Counter({name: getattr(counters, name) for name in counters.__slots__})
        self._note(story.seed, violation, "")

    def take_light(self, seed: int) -> None:
        story = LightStory(seed)
        violation = None
        try:
            story.run()
        except Violation as error:
            violation = error
        self.stories += 1
        self.steps += story.steps
        self.operations += story.did
        self._note(seed, violation, ' ARGS="--light"')

    def _note(self, seed: int, violation: Violation | None, how: str) -> None:
        if violation is not None:
            self.failed[seed] = str(violation)
            print(f"{violation}\ntell it again with: make sim SEED={seed}{how}", flush=True)

    def as_json(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items()}

    def report(self) -> str:
        per_second = self.stories / self.cpu_seconds if self.cpu_seconds else 0.0
        lines = [
            f"{self.stories} stories, {self.steps} steps, {self.cpu_seconds:.0f} s of CPU: {per_second:.1f} stories and "
            f"{self.steps / self.cpu_seconds if self.cpu_seconds else 0:.0f} steps a second on one core",
            f"{self.restarted} started everything again at the end; {self.looked_up} records were looked for on disks",
        ]
        for title in ("moods", "faults", "operations", "network", "disks"):
            counts: Counter[str] = getattr(self, title)
            if counts:
                lines.append(f"{title}: " + ", ".join(f"{name} {n}" for name, n in sorted(counts.items())))
        lines.append(f"{len(self.failed)} broke a promise{': ' if self.failed else ''}{sorted(self.failed) or ''}")
        return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
