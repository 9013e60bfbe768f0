"""Many stories: what they did, counted apart for light and for full ones, and a soak that goes on where the last one ended.

A soak keeps its place and every failing seed in a directory. A story that fails is made as short as it still fails, and written
there as a text: the promise that broke, what had to go wrong for it, and what happened, event by event.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.sim.cluster import SimCluster, Story
from tests.sim.coverage import Pair, table
from tests.sim.light import LIGHT_CHANGES, LIGHT_FAULTS, LightStory
from tests.sim.rotting import RotStory
from tests.sim.shrink import shrink, shrink_light
from tests.sim.timed_light import TimedLightStory
from tests.sim.world import Violation

CHANGES = ("master", "replica", "fenced", "join", "leave", "leader", "roll", "checkpoint")
LIGHT_PER_FULL = 10  # of a soak's stories
_STATE = "state.json"


@dataclass
class LightCounts:
    """What many light stories did."""

    stories: int = 0
    steps: int = 0
    cpu_s: float = 0.0
    operations: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)
    pairs: Counter[Pair] = field(default_factory=Counter)
    failed: dict[int, str] = field(default_factory=dict)

    def take(self, seed: int) -> LightStory:
        """Tell one; the story as it ended."""
        began = time.process_time()
        story = LightStory(seed)
        try:
            story.run()
        except Violation as error:
            self.failed[seed] = str(error)
        self.cpu_s += time.process_time() - began
        self.stories += 1
        self.steps += story.steps
        for name, count in story.did.items():
            (self.faults if name in LIGHT_FAULTS else self.operations)[name] += count
        self.changes += story.coverage.changes
        self.pairs += story.coverage.pairs
        return story

    def report(self) -> str:
        lines = _lines("light", self.stories, self.steps, self.cpu_s)
        lines += _counters(self, ("operations", "faults", "changes"))
        lines += ["each fault near each change of role:", table(self.pairs, LIGHT_CHANGES, LIGHT_FAULTS)]
        return "\n".join([*lines, _failures("light", self.failed)])


@dataclass
class FullCounts:
    """What many stories of whole clusters did."""

    stories: int = 0
    steps: int = 0
    cpu_s: float = 0.0
    restarted: int = 0
    looked_up: int = 0
    moods: Counter[str] = field(default_factory=Counter)
    ingredients: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)
    network: Counter[str] = field(default_factory=Counter)
    beside: Counter[str] = field(default_factory=Counter)
    disks: Counter[str] = field(default_factory=Counter)
    pairs: Counter[Pair] = field(default_factory=Counter)
    failed: dict[int, str] = field(default_factory=dict)

    def take(self, story: Story) -> SimCluster:
        """Tell one; the cluster as it ended."""
        began = time.process_time()
        cluster, violation = run(story)
        self.cpu_s += time.process_time() - began
        if violation is not None:
            self.failed[story.seed] = str(violation)
        self.stories += 1
        self.steps += cluster.world.steps
        self.restarted += cluster.restarted
        self.looked_up += cluster.promises.looked_up
        self.moods[cluster.injector.mood] += 1
        self.ingredients.update(cluster.ingredients)
        self.faults += cluster.injector.counters
        for (kind, outcome), count in cluster.history.operations.items():
            self.operations[f"{kind} {outcome}"] += count
        self.network += cluster.network.counters
        for counters in cluster.disk_counters():
            self.disks += Counter({name: getattr(counters, name) for name in counters.__slots__})
        self.changes += cluster.coverage.changes
        self.beside += cluster.coverage.beside
        self.pairs += cluster.coverage.pairs
        return cluster

    def report(self) -> str:
        lines = _lines("full", self.stories, self.steps, self.cpu_s)
        again = f"{self.restarted} started everything again at the end"
        lines.append(f"{again}; {self.looked_up} records were looked for on disks")
        lines += _counters(
            self, ("moods", "ingredients", "operations", "faults", "changes", "network", "beside", "disks")
        )
        lines += ["each fault near each change:", table(self.pairs, CHANGES, sorted(self.faults))]
        return "\n".join([*lines, _failures("full", self.failed)])


def run(story: Story) -> tuple[SimCluster, Violation | None]:
    """Tell a story of a whole cluster; the promise that was broken, if any."""
    cluster = SimCluster(story)
    try:
        cluster.run()
    except Violation as violation:
        return cluster, violation
    return cluster, None


class Soak:
    """Stories without end. `directory` keeps where it is, and a text for each story that failed."""

    def __init__(self, directory: Path, mood: str | None) -> None:
        self.light = LightCounts()
        self.full = FullCounts()
        self._directory = directory
        self._mood = mood
        directory.mkdir(parents=True, exist_ok=True)
        state = directory / _STATE
        known: dict[str, Any] = json.loads(state.read_text()) if state.exists() else {}
        self.next_seeds: dict[str, int] = {"light": 0, "full": 0, "rot": 0, "timers": 0} | known.get("next_seeds", {})
        self.told: Counter[str] = Counter()  # light stories of rot, and of timers
        self.failing: list[dict[str, Any]] = known.get("failing", [])

    def go_on(self, minutes: float) -> None:
        """Tell stories for so long, some light ones for each full one."""
        end = time.monotonic() + minutes * 60
        while time.monotonic() < end:
            self._tell_full(self._next("full"))
            for _ in range(LIGHT_PER_FULL):
                self._tell_light(self._next("light"))
                self._tell_of("rot", RotStory(self._next("rot")))
                self._tell_of("timers", TimedLightStory(self._next("timers")))
            self._save()

    def report(self) -> str:
        lines = [
            self.full.report(),
            "",
            self.light.report(),
            f"{self.told['rot']} stories of rot, {self.told['timers']} of timers",
            "",
        ]
        lines.append(f"the next seeds are {self.next_seeds['full']} and, of light stories, {self.next_seeds['light']}")
        for each in self.failing:
            lines.append(f"failing: {each['kind']} seed {each['seed']}: {each['promise']} (see {each['text']})")
        return "\n".join(lines)

    def _next(self, kind: str) -> int:
        seed = self.next_seeds[kind]
        self.next_seeds[kind] = seed + 1
        return seed

    def _tell_full(self, seed: int) -> None:
        story = Story(seed, self._mood)
        self.full.take(story)
        if seed in self.full.failed:
            promise = self.full.failed[seed]
            self._keep("full", seed, promise, lambda: tell_short(story, promise))

    def _tell_light(self, seed: int) -> None:
        self.light.take(seed)
        if seed in self.light.failed:
            promise = self.light.failed[seed]
            self._keep("light", seed, promise, lambda: tell_short_light(seed, promise))

    def _tell_of(self, kind: str, story: RotStory | TimedLightStory) -> None:
        self.told[kind] += 1
        try:
            story.run()
        except Violation as violation:
            self._keep(kind, story.seed, str(violation), lambda: "\n".join(story.trace))

    def _keep(self, kind: str, seed: int, promise: str, text: Callable[[], str]) -> None:
        path = self._directory / f"{kind}-{seed}.txt"
        entry = {"kind": kind, "seed": seed, "mood": self._mood, "promise": promise, "text": str(path)}
        self.failing.append(entry)
        self._save()  # before the search for a shorter one, which takes long
        print(f"{promise}\nwritten to {path}", flush=True)
        path.write_text(text())

    def _save(self) -> None:
        content = {"next_seeds": self.next_seeds, "failing": self.failing}
        path = self._directory / _STATE
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(content, indent=1))
        temporary.replace(path)


def tell_short(story: Story, promise: str, progress: Callable[[str], None] = lambda _: None) -> str:
    """The shortest story that breaks the promise as this one does, for people."""
    story = shrink(story, promise, progress)
    cluster, violation = run(story)
    plan = [fault for fault in cluster.injector.plan if fault.index not in story.without_faults]
    happened = [f"  {fault.kind}{f' after the next {fault.aim}' if fault.aim else ''}" for fault in plan]
    clients = [client.name for client in cluster.clients]
    return "\n".join(
        [
            f"BROKEN  {violation or promise}",
            f"TOLD BY {story}",
            f"WITH    {len(cluster.brokers)} brokers, {len(cluster.controllers)} controllers, mood {cluster.injector.mood}",
            f"CLIENTS {' '.join(clients) or 'none'}",
            "FAULTS",
            *(happened or ["  none"]),
            "WHAT HAPPENED (milliseconds, and what)",
            *cluster.world.trace,
            "",
        ]
    )


def tell_short_light(seed: int, promise: str) -> str:
    """The same of a light story."""
    without = shrink_light(seed, promise)
    story = LightStory(seed, without=without)
    story.is_traced = True
    broken: Violation | None = None
    try:
        story.run()
    except Violation as violation:
        broken = violation
    return "\n".join(
        [
            f"BROKEN  {broken or promise}",
            f"TOLD BY light seed {seed} without the events {sorted(without)}",
            "WHAT HAPPENED (milliseconds, event, [master epoch set], and of each broker role/epoch flushed/end of its log)",
            *story.trace,
            "",
        ]
    )


def as_json(counts: LightCounts | FullCounts) -> dict[str, object]:
    """The counts, pairs by a name of both."""
    pairs = {f"{change}/{fault}": count for (change, fault), count in sorted(counts.pairs.items())}
    return {**vars(counts), "pairs": pairs}


def _lines(kind: str, stories: int, steps: int, cpu_s: float) -> list[str]:
    rate = stories / cpu_s if cpu_s else 0.0
    steps_rate = steps / cpu_s if cpu_s else 0.0
    return [
        f"{stories} {kind} stories, {steps} steps, {cpu_s:.0f} s of CPU: {rate:.2f} stories and {steps_rate:.0f} steps a second"
    ]


def _counters(counts: LightCounts | FullCounts, titles: tuple[str, ...]) -> list[str]:
    lines = []
    for title in titles:
        counter: Counter[str] = getattr(counts, title)
        if counter:
            lines.append(f"{title}: " + ", ".join(f"{name} {count}" for name, count in sorted(counter.items())))
    return lines


def _failures(kind: str, failed: dict[int, str]) -> str:
    return f"{len(failed)} {kind} stories broke a promise{': ' if failed else ''}{sorted(failed) or ''}"
