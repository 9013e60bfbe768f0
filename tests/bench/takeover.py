"""How long a killed master keeps receives waiting, with many messages in flight and with none, in pairs.

    python -m tests.bench.takeover [--pairs N] [--messages N]

Two clusters of three controllers and three brokers; in one of them a consumer group has taken messages one by one, over remoting
POP, and acknowledges none. The masters are killed in turn. The time is from the kill to the first receive of another group, on
another topic, that another broker answers with a message; one receiver per broker tries all the time. Before each kill all three
brokers are in sync.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.errors import LogboomError
from tests.bench.harness import Row
from tests.bench.revival import fill, hide
from tests.bench.sends import TOPIC
from tests.support.cluster import Cluster, eventually
from tests.support.workload import call_until

MESSAGES: Final = 100_000
PAIRS: Final = 7
GOAL_MS: Final = 50.0

_OTHER: Final = "Next"
_NEXT_MESSAGES: Final = 2000
_HIDDEN_MS: Final = 10 * 3_600_000
_BETWEEN_S: Final = 0.001
_TIMEOUT_MS: Final = 1000
_REJOIN_S: Final = 120
_PATIENCE_S: Final = 60.0


class Receivers:
    """One per broker but the master, each on its connection; `first` is when one of them got a message."""

    def __init__(self, addresses: list[str]) -> None:
        self.first_s: float | None = None
        self._got = threading.Event()
        self._threads = [threading.Thread(target=self._receive, args=(address,)) for address in addresses]
        for thread in self._threads:
            thread.start()

    def wait(self) -> float:
        """When the first message came. Raises TimeoutError."""
        came = self._got.wait(_PATIENCE_S)
        self._got.set()
        for thread in self._threads:
            thread.join()
        if not came or self.first_s is None:
            raise TimeoutError(f"no message in {_PATIENCE_S:.0f} s")
        return self.first_s

    def _receive(self, address: str) -> None:
        while not self._got.is_set():
            try:
                with SocketConnection(address) as connection:
                    while not self._got.is_set():
                        if _pop(connection):
                            self.first_s = time.monotonic()
                            self._got.set()
                        time.sleep(_BETWEEN_S)
            except (LogboomError, OSError):
                time.sleep(_BETWEEN_S)


def _pop(connection: SocketConnection) -> bool:
    """Whether there was a message; replicas refuse."""
    ext = {
        **{
            "consumerGroup": "next",
            "topic": _OTHER,
            "queueId": "-1",
            "maxMsgNums": "1",
            "invisibleTime": str(_HIDDEN_MS),
        },
        **{"pollTime": "0", "initMode": "0", "bornTime": str(time.time_ns() // 1_000_000)},
    }
    refusals = (codes.SERVICE_NOT_AVAILABLE, codes.SYSTEM_ERROR, codes.TOPIC_NOT_EXIST, codes.POLLING_TIMEOUT)
    answer = connection.call(codes.POP_MESSAGE, ext, timeout_ms=_TIMEOUT_MS, accept=(codes.SUCCESS, *refusals))
    return answer.code == codes.SUCCESS


def _prepared(stack: ExitStack, messages: int) -> Cluster:
    """A cluster with so many messages in flight."""
    directory = Path(tempfile.mkdtemp(prefix="bench"))
    stack.callback(shutil.rmtree, directory)
    settings = (f"pop.max_in_flight_per_group={2 * MESSAGES}",)
    cluster = stack.enter_context(Cluster(directory, broker_settings=settings))
    cluster.start()
    cluster.wait_in_sync(3, timeout_s=_REJOIN_S)
    for topic in (TOPIC, _OTHER):
        call_until(lambda topic=topic: cluster.admin.create_topic(topic, queues=8))
        eventually(f"the route of {topic}", lambda topic=topic: bool(cluster.admin.queue_offsets(topic)))
    address = cluster.broker_addresses[cluster.master()]
    fill(address, _NEXT_MESSAGES, _OTHER)
    if messages:
        fill(address, messages)
        hide(address, messages, 1, lambda _: _HIDDEN_MS)
    return cluster


def _kill(cluster: Cluster) -> float:
    """From the kill of the master to the next receive, in milliseconds."""
    cluster.wait_in_sync(3, timeout_s=_REJOIN_S)
    master = cluster.master()
    others = [address for number, address in enumerate(cluster.broker_addresses) if number != master]
    receivers = Receivers(others)
    time.sleep(1)  # the receivers are connected, and the killed broker's successor has nothing else to do
    began_s = time.monotonic()
    cluster.brokers[master].kill()
    took_ms = 1000 * (receivers.wait() - began_s)
    cluster.brokers[master].start()
    return took_ms


def run(pairs: int = PAIRS, messages: int = MESSAGES) -> list[Row]:
    with ExitStack() as stack:
        empty, full = _prepared(stack, 0), _prepared(stack, messages)
        times: list[tuple[float, float]] = []
        for number in range(pairs):
            first, second = (empty, full) if number % 2 == 0 else (full, empty)
            one, two = _kill(first), _kill(second)
            times.append((one, two) if first is empty else (two, one))
            print(f"pair {number + 1}: empty {times[-1][0]:.0f} ms, full {times[-1][1]:.0f} ms", flush=True)
        medians = [statistics.median(each) for each in zip(*times, strict=True)]
        more_ms = statistics.median(full_ms - empty_ms for empty_ms, full_ms in times)
        row = Row(
            f"kill of the master to the next receive with {messages:,} singles in flight, {pairs} pairs",
            f"{more_ms:+.0f} ms; medians {medians[1]:.0f} and {medians[0]:.0f} ms, load {os.getloadavg()[0]:.1f}",
            f"<= {GOAL_MS:+.0f} ms",
            more_ms <= GOAL_MS,
        )
        print(f"{row.name}: {row.figure}  {row.goal}", flush=True)
        return [row]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=PAIRS, help="of kills (%(default)s)")
    parser.add_argument("--messages", type=int, default=MESSAGES, help="in flight (%(default)s)")
    options = parser.parse_args()
    run(options.pairs, options.messages)


if __name__ == "__main__":
    main()
