"""A short run of the real thing in every test run, where network namespaces can be made: four scenarios from one seed.

It is a program of its own, because it moves into a network namespace and starts daemons there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.addresses import CLIENTS, Link
from tests.chaos.impair import Impairment
from tests.chaos.namespaces import RunDirectory, existing_nodes, sweep_leftovers, why_not
from tests.chaos.network import Network
from tests.chaos.scenarios import SHORT
from tests.support.cluster import ROOT

NAMESPACES_MISSING = why_not()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(NAMESPACES_MISSING is not None, reason=str(NAMESPACES_MISSING)),
]


def test_kill_freeze_and_partition_of_the_master_and_the_end_of_all_controllers(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.chaos", "--only", "short", "--seed", "7", "--report", str(tmp_path)]
    done = subprocess.run(
        [*command, "--fault-s", "3", "--heal-s", "1", "--pause-s", "0.012"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    scenarios = json.loads((tmp_path / "report.json").read_text())["scenarios"]
    assert [each["scenario"] for each in scenarios] == list(SHORT)
    assert all(each["faults"] >= 1 and each["evidence"] >= 2 and each["ok"] > 200 for each in scenarios)
    assert (tmp_path / "timeline.html").stat().st_size > 10_000


def test_links_are_impaired_one_by_one_and_whole_again_after() -> None:
    sweep_leftovers()
    directory = RunDirectory()
    try:
        network = Network(directory.prefix, seed=1)
        try:
            cut, slow, lossy, whole = Link("b0", "b1"), Link("b1", "b0"), Link(CLIENTS, "c0"), Link("b0", "b2")
            links = [cut, slow, lossy, whole]
            assert set(network.probe(links, 20).values()) == {20}
            network.impair({cut: Impairment(loss=1), slow: Impairment(delay_ms=400), lossy: Impairment(loss=0.8)})
            early = network.probe(links, 50, 0.2)
            assert (early[cut], early[slow], early[whole]) == (0, 0, 50)
            assert 0 < early[lossy] < 25
            late = network.probe([slow], 20, 1.0)
            assert late[slow] == 20, "delayed, not lost"
            network.heal()
            assert set(network.probe(links, 20).values()) == {20}
            counters = network.counters()
            assert counters[cut]["dropped"] == counters[cut]["seen"] > 0
            assert whole not in counters
        finally:
            network.close()
    finally:
        directory.remove()
    assert not existing_nodes(directory.prefix)
    assert not directory.path.exists()


def test_what_a_killed_run_left_is_removed_and_a_living_run_is_left_alone() -> None:
    program = (
        "import os, sys; from tests.chaos.namespaces import RunDirectory; from tests.chaos.network import Network\n"
        "run = RunDirectory(); network = Network(run.prefix, 1); print(run.prefix, flush=True); sys.stdin.read()"
    )
    living = RunDirectory()
    try:
        run = subprocess.Popen(
            [sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert run.stdout is not None
        prefix = run.stdout.readline().strip()
        assert existing_nodes(prefix)
        assert prefix not in sweep_leftovers(), "it lives"
        run.kill()
        run.communicate()
        assert prefix in sweep_leftovers()
        assert not existing_nodes(prefix)
        assert living.path.exists()
    finally:
        living.remove()
