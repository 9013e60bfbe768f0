"""What a pull with tags costs the broker beside one of all messages: CPU time of a pull, and of a message.

    python -m tests.bench.tagged_pulls [--pairs N] [--seconds S]

Four connections pull a queue each along, one pull in flight. Of the messages, which are small, nearly all have one of two tags,
one of thirty a third, and one of a thousand a fourth. The rows are medians of rounds; in a round each filter has its turn. A pull
looks at up to 800 messages for 32 that are wanted. Where none is, the client is told to go on behind them: that counts, too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.bench.harness import load_program, pull_program, run_frames
from tests.bench.processes import cpu_seconds, wait_at_rest
from tests.bench.send_frames import MARK, Frame
from tests.bench.sends import BACKGROUND, NO_INDEX, broker
from tests.support.workload import call_until

TOPIC: Final = "Tagged"
QUEUES: Final = 4
FILTERS: Final = ("*", "even || odd || few || rare", "even || few", "few", "rare", "none")
_PERIOD: Final = 1000
_SEND_S: Final = 3.0
_BODY_BYTES: Final = 100


class Cost(NamedTuple):
    """Of a filter's turn: what a pull took of the broker's CPU time, and a message; and how many messages a pull got."""

    pull_us: float
    message_us: float
    messages: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each turn (%(default)s)")
    options = parser.parse_args()
    run(options.pairs, options.seconds)


def run(pairs: int, seconds: float) -> None:
    """Fill a topic and have each filter its turns."""
    with (
        load_program() as load,
        pull_program() as pull,
        broker(1, (*BACKGROUND, NO_INDEX)) as (cluster, address),
        tempfile.TemporaryDirectory() as directory,
    ):
        call_until(lambda: cluster.admin.create_topic(TOPIC, queues=QUEUES))
        frames = Path(directory) / "frames"
        frames.write_bytes(b"".join(_frame(number).packed() for number in range(QUEUES * _PERIOD)))
        run_frames(load, address, frames, seconds=_SEND_S)
        wait_at_rest(cluster.brokers[0].pid)
        costs: dict[str, list[Cost]] = {each: [] for each in FILTERS}
        for number in range(pairs + 1):  # the first one is not counted
            for each in FILTERS if number % 2 else FILTERS[::-1]:
                cost = _turn(pull, address, cluster.brokers[0].pid, each, seconds)
                if number:
                    costs[each].append(cost)
        ordinary = costs["*"]
        for each in FILTERS:
            _print(each, costs[each], ordinary)


def _turn(program: Path, address: str, pid: int, tags: str, seconds: float) -> Cost:
    host, port = address.rsplit(":", 1)
    words = (program, host, port, TOPIC, str(QUEUES), str(QUEUES), "1", str(seconds), "along", tags)
    before_s = cpu_seconds(pid)
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    used_us = (cpu_seconds(pid) - before_s) * 1e6
    found = json.loads(done.stdout)
    pulls = found["requests"] + found["others"]
    return Cost(used_us / pulls, used_us / max(1, found["messages"]), found["messages"] / pulls)


def _print(name: str, costs: Sequence[Cost], ordinary: Sequence[Cost]) -> None:
    ratios = sorted(each.pull_us / other.pull_us for each, other in zip(costs, ordinary, strict=True))
    pull_us, message_us, messages = (statistics.median(figures) for figures in zip(*costs, strict=True))
    print(
        f"{name:28} {pull_us:7.1f} us a pull of {messages:5.1f} messages, {message_us:7.2f} us a message;"
        f" a pull / one of all: {statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})",
        flush=True,
    )


def _frame(number: int) -> Frame:
    """Messages of a queue have tags in their turn."""
    queue_id, at = number % QUEUES, number // QUEUES
    tag = "rare" if at == 0 else "few" if at % 30 == 1 else ("even", "odd")[at % 2]
    ext = {
        **{"a": "bench", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0", "g": "1700000000000"},
        **{"h": "0", "i": f"TAGS\x01{tag}\x02UNIQ_KEY\x01{number:032X}\x02", "j": "0", "k": "false", "m": "false"},
    }
    header = {"code": 310, "extFields": ext, "flag": 0, "language": "JAVA", "opaque": MARK, "version": 479}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    body = bytes(_BODY_BYTES)
    return Frame(struct.pack(">iI", 4 + len(encoded) + len(body), len(encoded)) + encoded + body)


if __name__ == "__main__":
    main()
