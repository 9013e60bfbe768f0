"""Plays scenarios one after the other on one network, and collects their verdicts and records."""

from __future__ import annotations

import random
import shutil
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tests.chaos.addresses import CLIENTS
from tests.chaos.checks import Aftermath
from tests.chaos.clients import PAUSE_S
from tests.chaos.daemons import SEGMENT_BYTES, ChaosCluster
from tests.chaos.history import History
from tests.chaos.namespaces import RunDirectory, enter, sweep_leftovers
from tests.chaos.network import Network
from tests.chaos.scenarios import Scenario
from tests.chaos.stage import Stage
from tests.chaos.verdict import Verdict, judge

SMALL_DISK_BYTES: Final = 48 << 20
# A file is made before it is needed: with small ones the log comes to the end of what it has while the disk is full, and most
# of it is in files that are read, not mapped.
SMALL_SEGMENT_BYTES: Final = 128 << 10
BROKE: Final = "BROKE OFF"


@dataclass(frozen=True)
class Options:
    """How long, how often, from which seed; and settings of all brokers that are not the defaults."""

    fault_s: float = 8.0
    heal_s: float = 12.0
    rounds: int = 1
    seed: int = 1
    broker_settings: tuple[str, ...] = ()
    pause_s: float = PAUSE_S


@dataclass(frozen=True)
class Played:
    """One scenario that was played: its verdict, and what it is drawn from."""

    verdict: Verdict
    history: History
    aftermath: Aftermath
    began_s: float
    ended_s: float
    log: Sequence[str]


def play_all(
    scenarios: Sequence[Scenario], options: Options, keep_logs: Path, say: Callable[[str], None]
) -> Iterator[Played]:
    """Yields each scenario when it is over; everything that was made goes at the end, whatever happens."""
    for prefix in sweep_leftovers():
        say(f"removed what a killed run had left ({prefix})")
    directory = RunDirectory()
    try:
        network = Network(directory.prefix, options.seed)
        try:
            # from here on this thread, and every thread and process that it starts, is where the clients are
            enter(network.namespace(CLIENTS))
            for scenario in scenarios:
                yield play(scenario, options, network, directory.path / scenario.id, keep_logs, say)
        finally:
            network.close()
    finally:
        directory.remove()


def play(
    scenario: Scenario, options: Options, network: Network, directory: Path, keep_logs: Path, say: Callable[[str], None]
) -> Played:
    """One scenario from an empty cluster to the verdict."""
    log: list[str] = []

    def tell(line: str) -> None:
        log.append(line)
        say(line)

    # a scenario's faults depend on the seed and its name only, so that it is the same alone and among others
    rng = random.Random(f"{options.seed} {scenario.id}")
    directory.mkdir(parents=True)
    tell(
        f"{scenario.id}: {scenario.title} (seed {options.seed}, {options.rounds} x {options.fault_s:g} s + {options.heal_s:g} s)"
    )
    began_s = time.monotonic()
    history, aftermath, broken = History(), Aftermath(), ""
    with _disks(scenario, directory) as disks:
        cluster = ChaosCluster(
            directory,
            network,
            controllers=scenario.controllers,
            learners=scenario.learners,
            data_directories=disks,
            clocks=scenario.clocks,
            disk_faults=scenario.disk_faults,
            segment_bytes=SMALL_SEGMENT_BYTES if scenario.small_files else SEGMENT_BYTES,
            broker_settings=(*scenario.settings, *options.broker_settings),
            seed=f"{options.seed} {scenario.id}",
        )
        stage = Stage(cluster, rng, options.fault_s, options.heal_s, options.pause_s, tell)
        history = stage.history
        try:
            stage.start()
            for number in range(1, options.rounds + 1):
                scenario.play(stage, f"{scenario.id} #{number}")
            aftermath = stage.finish()
        except Exception as error:  # noqa: BLE001 - a scenario that breaks off is a finding, and the others still count
            broken = "".join(traceback.format_exception(error)[-3:])
        finally:
            stage.close()
        ended_s = time.monotonic()
        verdict = judge(scenario, history, aftermath)
        if broken:
            # the checks need an end that never came: only how it broke off is told, and nothing was looked for in the logs
            verdict = replace(verdict, problems={BROKE: [broken]}, lost=0)
        if not verdict.passed:
            kept = keep_logs / f"{scenario.id}-{options.seed}"
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(directory / "logs", kept)
            tell(f"the daemons' logs are in {kept}")
    shutil.rmtree(directory, ignore_errors=True)
    for name, found in verdict.problems.items():
        for problem in found:
            tell(f"  {name}: {problem}")
    tell(f"{scenario.id}: {'passed' if verdict.passed else 'FAILED'} after {ended_s - began_s:.0f} s")
    return Played(verdict, history, aftermath, began_s, ended_s, log)


@contextmanager
def _disks(scenario: Scenario, directory: Path) -> Iterator[dict[str, Path]]:
    """Data directories that are not in the run's own: a file system of a few megabytes, where a scenario wants one."""
    if not scenario.small_disk:
        yield {}
        return
    mount = directory / "small"
    mount.mkdir()
    _run("mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_BYTES}", "tmpfs", str(mount))
    try:
        yield {"b0": mount / "data"}
    finally:
        _run("umount", str(mount))


def _run(*words: Any) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)
