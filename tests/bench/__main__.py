"""All benchmarks in one run, and one table of what they found beside the goals.

    python -m tests.bench [NAME ...] [--pairs N] [--seconds S] [--kills N] [--freezes N] [--minutes M] [--json FILE]

Names are those of the modules: sends, send_variants, access, grpc_sends, grpc_send_variants, receive_ack, pop_ack, bulk_reads,
replication, catch_up, failover, memory, in_flight, idle, idle_clients, revival, revival_turns, ledger_turns, held_turns,
placement_turns, state_turns, timers, copies, timers_lateness, timers_enqueue, timers_due, timers_pending, many_queues, groups,
startup, viewers, spark_start, tiers, exported_reads. Three take long and run only when they are named: `replication`, which
measures Apache RocketMQ as well, `timers_due` with its million and `timers_pending` with its ten million timers. When the time is
up, the benchmarks that were not begun are left out, and the table says so. The exit code is 0 whether goals are met or not: a
run on a shared machine is read, not obeyed.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from tests.bench import (
    access,
    bulk_reads,
    catch_up,
    copies,
    exported_reads,
    failover,
    groups,
    grpc_send_variants,
    grpc_sends,
    held_turns,
    idle,
    idle_clients,
    in_flight,
    ledger_turns,
    many_queues,
    memory,
    placement_turns,
    pop_ack,
    receive_ack,
    replication,
    revival,
    revival_turns,
    send_variants,
    sends,
    spark_start,
    startup,
    state_turns,
    tiers,
    timers,
    timers_due,
    timers_enqueue,
    timers_lateness,
    timers_pending,
    viewers,
)
from tests.bench.harness import Row

_ONLY_NAMED = frozenset({"replication", "timers_due", "timers_pending"})
_MESSAGES_PER_SECOND = 10_000  # how many messages a receive benchmark gets for each second that a send benchmark lasts


def benchmarks(options: argparse.Namespace) -> Mapping[str, Callable[[], list[Row]]]:
    """Name -> what to run, in the order of running."""
    messages = int(options.seconds * _MESSAGES_PER_SECOND)
    return {
        "sends": lambda: [pairs.row for pairs in sends.run(options.pairs, options.seconds)],
        "send_variants": lambda: send_variants.run(options.pairs, options.seconds / 4),
        "access": lambda: access.run(options.pairs, options.seconds),
        "grpc_sends": lambda: [pairs.row for pairs in grpc_sends.run(options.pairs, options.seconds)],
        "grpc_send_variants": lambda: grpc_send_variants.run(options.pairs, options.seconds / 4),
        "receive_ack": lambda: [pairs.row for pairs in receive_ack.run(options.pairs, messages)],
        "pop_ack": lambda: pop_ack.run(messages),
        "bulk_reads": lambda: bulk_reads.run(options.pairs, 10 * messages),
        "replication": lambda: replication.run(options.pairs, options.seconds, options.pairs, options.warm_up),
        "catch_up": lambda: [catch_up.run(options.pairs, options.megabytes).row],
        "failover": lambda: failover.run(options.kills, options.freezes, options.freezes, options.freezes),
        "memory": lambda: [reading.row for reading in memory.run(options.sends)],
        "in_flight": in_flight.run,
        "idle": lambda: idle.run(idle.TOPICS, idle.SECONDS),
        "idle_clients": lambda: idle_clients.run(options.clients),
        "revival": lambda: revival.run(),
        "revival_turns": lambda: revival_turns.run(messages),
        "ledger_turns": lambda: ledger_turns.run(),
        "held_turns": lambda: held_turns.run(),
        "placement_turns": lambda: placement_turns.run(),
        "state_turns": lambda: state_turns.run(),
        "timers": lambda: timers.run(),
        "copies": lambda: copies.run(),
        "timers_lateness": lambda: timers_lateness.run(),
        "timers_enqueue": lambda: timers_enqueue.run(options.pairs, options.seconds),
        "timers_due": lambda: timers_due.run(pairs=options.pairs),
        "timers_pending": lambda: timers_pending.run(pairs=options.pairs),
        "many_queues": lambda: [
            *many_queues.run(options.topics),
            *many_queues.run_sends(options.pairs, 10 * options.seconds),
        ],
        "groups": lambda: groups.run(groups.GROUPS, groups.SHARE, options.seconds, options.pairs),
        "startup": lambda: startup.rows(startup.run(options.starts)),
        "viewers": lambda: viewers.run(options.viewers),
        "spark_start": lambda: spark_start.run(options.pairs),
        "tiers": lambda: tiers.run(options.pairs, options.seconds, options.megabytes // 5),
        "exported_reads": lambda: exported_reads.run(options.pairs, 10 * messages),
    }


def print_table(rows: Sequence[Row]) -> None:
    names = max(len(row.name) for row in rows)
    figures = max(len(row.figure) for row in rows)
    print()
    for row in rows:
        verdict = "" if row.met is None else "  met" if row.met else "  MISSED"
        print(f"{row.name:{names}}  {row.figure:{figures}}  {row.goal}{verdict}".rstrip(), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which benchmarks; all when none is named")
    parser.add_argument("--pairs", type=int, default=3, help="pairs of each row that compares two (%(default)s)")
    parser.add_argument("--seconds", type=float, default=3, help="how long a load lasts (%(default)s)")
    parser.add_argument(
        "--warm-up", type=float, default=20, help="seconds of load before Apache RocketMQ is measured (%(default)s)"
    )
    parser.add_argument("--megabytes", type=int, default=1000, help="length of the log that is copied (%(default)s)")
    parser.add_argument("--kills", type=int, default=20, help="kills of the master (%(default)s)")
    parser.add_argument(
        "--freezes", type=int, default=5, help="freezes of the master, of a replica, and partitions (%(default)s)"
    )
    parser.add_argument("--sends", type=int, default=200_000, help="sends before memory is read again (%(default)s)")
    parser.add_argument("--topics", type=int, default=1250, help="topics of 8 queues at a start (%(default)s)")
    parser.add_argument(
        "--starts", type=int, default=1, help="starts of the appliance with existing data (%(default)s)"
    )
    parser.add_argument(
        "--viewers", type=int, default=viewers.VIEWERS, help="people who look at the same page (%(default)s)"
    )
    parser.add_argument(
        "--clients", type=int, default=idle_clients.CLIENTS, help="gRPC clients that are idle at once (%(default)s)"
    )
    parser.add_argument("--minutes", type=float, default=25, help="begin no benchmark after this time (%(default)s)")
    parser.add_argument("--json", type=Path, help="write the table's rows to this file, too")
    options = parser.parse_args()
    known = benchmarks(options)
    unknown = sorted(set(options.names) - set(known))
    if unknown:
        parser.error(f"no benchmark is named {', '.join(unknown)}; there are {', '.join(known)}")
    deadline_s = time.monotonic() + options.minutes * 60
    rows: list[Row] = []
    for name in options.names or [name for name in known if name not in _ONLY_NAMED]:
        if time.monotonic() > deadline_s:
            rows.append(Row(name, f"not measured: {options.minutes:g} minutes were over"))
        else:
            rows += known[name]()
    print_table(rows)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
