"""Simulated clusters from the command line.

    make sim SEED=n                          tell one story and print it: who did what when, faults, roles, offsets
    make sim SEED=n ARGS="--shrink"          leave out faults and clients as long as it still fails, then print the rest
    make sim-soak MINUTES=n                  new seeds for so long; prints what was injected, done and found. The next soak
                                             goes on there; what failed is kept as a text, as short as it still fails
    python -m tests.sim --light ...          the same with light stories: replication cores alone, one event at a time
    python -m tests.sim --rot --seeds n      light stories of disks that rot: logs, queues, indexes, and what repairs them
    python -m tests.sim --timers --seeds n   light stories of timers: sent, rolled, recalled and delivered by masters that change
    make mutants                             break the rules one by one: the promises must be seen to break

A failing seed is told again exactly by its number, as long as the code is the same.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path

from tests.sim.cluster import Story
from tests.sim.faults import MOODS
from tests.sim.light import LightStory
from tests.sim.registry import find_all
from tests.sim.rotting import RotStory
from tests.sim.soak import FullCounts, LightCounts, Soak, as_json, run, tell_short, tell_short_light
from tests.sim.timed_light import TimedLightStory
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
    parser.add_argument(
        "--minutes", type=float, help="go on for so long where the last soak ended, with stories of both kinds"
    )
    parser.add_argument(
        "--state", type=Path, default=Path("build/sim-soak"), help="where soaks keep that (%(default)s)"
    )
    parser.add_argument("--mood", choices=sorted(MOODS), help="what kind of faults (from the seed)")
    parser.add_argument("--light", action="store_true", help="light stories")
    parser.add_argument("--rot", action="store_true", help="stories of rot")
    parser.add_argument("--timers", action="store_true", help="light stories of timers")
    parser.add_argument("--mutants", nargs="*", metavar="NAME", help="break every rule, or these; each must be found")
    parser.add_argument("--json", type=Path, help="write the counts there as well")
    parser.add_argument("--verbose", action="store_true", help="let the daemons log")
    options = parser.parse_args()
    if not options.verbose:
        logging.disable(logging.CRITICAL)
    if options.mutants is not None:
        return 1 if find_all(options.mutants) else 0
    if options.rot or options.timers:
        first = options.first if options.seed is None else options.seed
        seeds = range(first, first + (options.seeds if options.seed is None else 1))
        return _count_of("rot", RotStory, seeds) if options.rot else _count_of("timers", TimedLightStory, seeds)
    if options.seed is not None:
        return (
            _tell_light(options.seed, options.shrink)
            if options.light
            else _tell(options.seed, options.mood, options.shrink)
        )
    return _soak(options) if options.minutes is not None else _count(options)


def _tell(seed: int, mood: str | None, shrinking: bool) -> int:
    """One story, with its trace."""
    story = Story(seed, mood)
    cluster, violation = run(story)
    if violation is not None and shrinking:
        print(tell_short(story, str(violation), progress=print))
        return 1
    print("\n".join(cluster.world.trace))
    kept = f"seed {seed}: every promise was kept"
    print(f"{violation or kept} (fingerprint {cluster.world.fingerprint:08x}, {cluster.world.steps} steps)")
    return 1 if violation else 0


def _tell_light(seed: int, shrinking: bool) -> int:
    story = LightStory(seed)
    story.is_traced = True
    try:
        story.run()
    except Violation as violation:
        if shrinking:
            print(tell_short_light(seed, str(violation)))
            return 1
        print("\n".join(story.trace))
        print(violation)
        return 1
    print("\n".join(story.trace))
    print(f"seed {seed}: every promise was kept")
    return 0


def _count_of(what: str, make: Callable[[int], RotStory | TimedLightStory], seeds: range) -> int:
    """Light stories of something; what happened in those that break a promise."""
    failed = []
    for seed in seeds:
        story = make(seed)
        try:
            story.run()
        except Violation:
            failed.append(seed)
            print("\n".join(story.trace), flush=True)
    print(f"{len(failed)} of {len(seeds)} stories of {what} broke a promise{': ' if failed else ''}{failed or ''}")
    return 1 if failed else 0


def _soak(options: argparse.Namespace) -> int:
    """Stories for so long, from where the last soak ended."""
    soak = Soak(options.state, options.mood)
    soak.go_on(options.minutes)
    print(soak.report())
    return 1 if soak.failing else 0


def _count(options: argparse.Namespace) -> int:
    """These stories, of one kind."""
    counts: LightCounts | FullCounts = LightCounts() if options.light else FullCounts()
    how = ' ARGS="--light"' if options.light else ""
    for seed in range(options.first, options.first + options.seeds):
        if isinstance(counts, LightCounts):
            counts.take(seed)
        else:
            counts.take(Story(seed, options.mood))
        if seed in counts.failed:
            print(f"{counts.failed[seed]}\ntell it again with: make sim SEED={seed}{how}", flush=True)
    print(counts.report())
    if options.json is not None:
        options.json.write_text(json.dumps(as_json(counts), indent=1))
    return 1 if counts.failed else 0


if __name__ == "__main__":
    sys.exit(main())
