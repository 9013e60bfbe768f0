"""Whether broker groups add up: sends to one, two, four and eight groups at once, each broker on a small processor of its own.

    python -m tests.bench.groups [--groups N ...] [--share S] [--seconds S] [--rounds N]

A machine with a processor for each group is stood in for by a share of one for each broker, which the kernel holds it to (a
control group; needs root). So all of it is slower in proportion, and what groups share shows: the controllers, the disk, memory.
What a group with a whole processor does is in `sends`. All groups are loaded at once, 1 x 64, 1 KiB, flush in the background.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from tests.bench.harness import Row, Sample, load_program, run_load
from tests.bench.processes import cpu_seconds
from tests.bench.sends import BACKGROUND, TOPIC, check_stored
from tests.support.cluster import Cluster, eventually
from tests.support.workload import call_until

GROUPS: Final = (1, 2, 4, 8)
SHARE: Final = 0.08
QUEUES: Final = 8
GOAL: Final = 0.9  # of as many times the rate of one
_PERIOD_US: Final = 20_000
_ROOT: Final = Path("/sys/fs/cgroup")


@contextmanager
def held_to(pid: int, share: float) -> Iterator[None]:
    """A process has this share of one processor. Raises OSError where control groups cannot be made."""
    quota_us = int(share * _PERIOD_US)
    is_unified = (_ROOT / "cgroup.controllers").exists()
    group = (_ROOT if is_unified else _ROOT / "cpu") / f"bench-{os.getpid()}-{pid}"
    group.mkdir()
    try:
        if is_unified:
            (group / "cpu.max").write_text(f"{quota_us} {_PERIOD_US}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota_us))
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        (group.parent / "cgroup.procs").write_text(str(pid))
        group.rmdir()


def measure(program: Path, groups: int, share: float, seconds: float) -> Sample:
    """The rate of all groups together, and the CPU time of a message."""
    names = [f"broker-{chr(ord('a') + n)}" for n in range(groups)]
    directory = Path(tempfile.mkdtemp(prefix="bench"))
    try:
        with (
            Cluster(directory, controllers=1, replicas=1, groups=names, broker_settings=BACKGROUND) as cluster,
            ExitStack() as held,
            ThreadPoolExecutor(groups) as pool,
        ):
            cluster.start()
            call_until(lambda: cluster.admin.create_topic(TOPIC, queues=QUEUES))
            eventually(
                "every group has its queues",
                lambda: len(cluster.admin.queue_offsets(TOPIC)) == QUEUES * groups,
            )
            for broker in cluster.brokers:
                held.enter_context(held_to(broker.pid, share))
            before_s = sum(cpu_seconds(broker.pid) for broker in cluster.brokers)
            loads = [
                pool.submit(run_load, program, address, TOPIC, queues=QUEUES, seconds=seconds)
                for address in cluster.broker_addresses
            ]
            found = [load.result() for load in loads]
            used_s = sum(cpu_seconds(broker.pid) for broker in cluster.brokers) - before_s
            acknowledged = sum(count for _, count in found)
            check_stored(acknowledged, lambda: sum(each.max_offset for each in cluster.admin.queue_offsets(TOPIC)))
            return Sample(sum(sample.rate for sample, _ in found), cpu_us=used_s * 1e6 / acknowledged)
    finally:
        shutil.rmtree(directory)


def run(groups: Sequence[int], share: float, seconds: float, rounds: int) -> list[Row]:
    """Every number of groups in turn, so often; medians, beside the first number of groups."""
    try:
        with load_program() as program:
            found: dict[int, list[Sample]] = {count: [] for count in groups}
            for _ in range(rounds):
                for count in groups:
                    found[count].append(measure(program, count, share, seconds))
    except PermissionError as error:
        return [Row("groups, each on a share of a processor", f"not measured: {error}; run it as root")]
    rows = []
    rates = {count: statistics.median(each.rate for each in samples) for count, samples in found.items()}
    first = groups[0]
    for count, samples in found.items():
        ratio = rates[count] / rates[first] * first / count
        cpu_us = statistics.median(each.cpu_us for each in samples)
        figure = f"{rates[count]:.0f}/s, {ratio:.2f} of {count} times one; {cpu_us:.1f} us of CPU a message"
        name = f"{count} groups, each broker on {share:.0%} of a processor"
        rows.append(Row(name, figure, f">= {GOAL}", ratio >= GOAL))
        print(f"{name:58} {figure}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, nargs="*", default=list(GROUPS), help="how many (%(default)s)")
    parser.add_argument("--share", type=float, default=SHARE, help="of a processor, for each broker (%(default)s)")
    parser.add_argument("--seconds", type=float, default=4, help="how long each measurement lasts (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of which a row is the median (%(default)s)")
    options = parser.parse_args()
    run(options.groups, options.share, options.seconds, options.rounds)


if __name__ == "__main__":
    main()
