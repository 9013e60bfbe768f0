"""How long a broker's event loop stands still when the console asks how it is, with many queues that a group consumes.

    python -m tests.bench.state_turns [--queues N]

The broker's handlers run in this process on a log in memory; what the loop runs at once is a turn, and CPU time is what it takes.
"""

from __future__ import annotations

import argparse
import time
from typing import Final

from brokerd.loop import tuning
from remoting import codes
from tests.bench.harness import Row
from tests.bench.ledger_turns import TimedTurns
from tests.support.remoting_broker import RemotingBroker

QUEUES: Final = 10_000
GOAL_MS: Final = 20.0

_OF_A_TOPIC: Final = 8


def run(queues: int = QUEUES) -> list[Row]:
    tuning.settle()
    turns = TimedTurns()
    broker = RemotingBroker(turns=turns)
    broker.become_master()
    broker.group()
    topics = [f"t{number}" for number in range(queues // _OF_A_TOPIC)]

    def send(topic: str) -> None:
        for queue_id in range(_OF_A_TOPIC):
            broker.send("", topic=topic, queue_id=queue_id)

    for topic in topics:
        broker.topic(topic, queues=_OF_A_TOPIC)
        send(topic)
        for queue_id in range(_OF_A_TOPIC):
            broker.metadata.commit_offset("g", topic, queue_id, 1, None)
    broker.metadata.commits.flush()
    turns.run(1000)
    rows = []
    for what in ("asked for the first time", "nothing changed", "every queue has a message more"):
        if what.startswith("every"):
            for topic in topics:
                send(topic)
            turns.run()
        turns.longest_ms()
        began_s, opaque = time.thread_time(), 0

        def ask() -> None:
            nonlocal opaque
            opaque = broker.send_request(codes.BROKER_STATE, {}, b"", broker.peer)

        turns.timed(ask)
        turns.run()
        took_ms = 1000 * (time.thread_time() - began_s)
        answer = broker.peer.answers[opaque]
        longest_ms = turns.longest_ms()
        row = Row(
            f"{queues:,} consumed queues: longest turn for BROKER_STATE, {what}",
            f"{longest_ms:.1f} ms (all {took_ms:.0f} ms, {len(answer.body):,} bytes)",
            f"<= {GOAL_MS:.0f} ms",
            longest_ms <= GOAL_MS,
        )
        rows.append(row)
        print(f"{row.name}: {row.figure}  {row.goal}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queues", type=int, default=QUEUES, help="of all topics together (%(default)s)")
    run(parser.parse_args().queues)


if __name__ == "__main__":
    main()
