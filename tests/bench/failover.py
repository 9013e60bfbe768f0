"""How long a killed master stops the sends: kill -9 to the first send that succeeds, with default settings.

    python -m tests.bench.failover [--kills N]

Three controllers, three brokers. One raw sender knows the brokers' addresses, nothing else, and tries them in turn. Before each
kill the group is whole: three members in sync. At the end every acknowledged message must be there, and nothing else. What the
daemons logged meanwhile is printed for every kill that took longer than the goal.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.errors import ConnectionLost, RequestError, RequestTimeout
from remoting.message import encode_properties
from tests.bench.harness import Row
from tests.support.cluster import Cluster, eventually
from tests.support.workload import History, call_until, check_queue, read_queue

TOPIC: Final = "Failover"
MEDIAN_GOAL_S: Final = 0.5
LONGEST_GOAL_S: Final = 1.5

_PADDING: Final = b"x" * 1000
_PAUSE_S: Final = 0.005  # after a broker took no message
_PATIENCE_S: Final = 30
_UNKNOWN: Final = (codes.FLUSH_DISK_TIMEOUT, codes.FLUSH_SLAVE_TIMEOUT)


class Sender(threading.Thread):
    """Sends one message after the other to whichever broker takes it; never sends a body twice."""

    def __init__(self, brokers: Sequence[str]) -> None:
        super().__init__(name="sender", daemon=True)
        self.history = History()
        self._brokers = list(brokers)
        self._turn = 0
        self._count = 0
        self._connection: SocketConnection | None = None
        self._stopping = threading.Event()
        self._lost = ""  # the broker whose successor is waited for
        self._recovered = threading.Event()
        self._recovered_s = 0.0

    def expect_loss(self, broker: str) -> None:
        """The next success at another broker than this one is the one to note."""
        self._recovered.clear()
        self._lost = broker

    def wait_for_successor(self) -> float:
        """When the first send was acknowledged by another broker than the one expected to be lost."""
        if not self._recovered.wait(_PATIENCE_S):
            raise AssertionError(f"no send succeeded within {_PATIENCE_S} s")
        return self._recovered_s

    def stop(self) -> History:
        self._stopping.set()
        self.join(_PATIENCE_S)
        assert not self.is_alive(), "the sender hangs"
        return self.history

    def run(self) -> None:
        while not self._stopping.is_set():
            connection = self._connected()
            if connection is None or not self._send_one(connection):
                self._try_next()
        if self._connection is not None:
            self._connection.close()

    def _connected(self) -> SocketConnection | None:
        if self._connection is None:
            try:
                self._connection = SocketConnection(self._brokers[self._turn], timeout_ms=1000)
            except ConnectionLost:
                return None
        return self._connection

    def _try_next(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._turn = (self._turn + 1) % len(self._brokers)
        self._stopping.wait(_PAUSE_S)

    def _send_one(self, connection: SocketConnection) -> bool:
        """Whether the broker acknowledged a message."""
        self._count += 1
        body = b"sender:%d:%b" % (self._count, _PADDING)
        ext = {
            **{"a": "bench", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0"},
            **{
                "i": encode_properties({"UNIQ_KEY": f"S{self._count:020d}"}).decode(),
                "j": "0",
                "k": "false",
                "m": "false",
            },
        }
        try:
            answer = connection.call(
                codes.SEND_MESSAGE_V2, ext, body, timeout_ms=6000, accept=(codes.SUCCESS, *_UNKNOWN)
            )
        except RequestError as error:
            if "is unknown" in error.message:  # the role changed while the message waited
                self.history.unknown.add(body)
            else:
                self.history.refused += 1
            return False
        except (ConnectionLost, RequestTimeout):
            self.history.unknown.add(body)
            return False
        if answer.code != codes.SUCCESS:
            self.history.unknown.add(body)
            return False
        self.history.acknowledged[body] = int(answer.ext["queueId"]), int(answer.ext["queueOffset"])
        if not self._recovered.is_set() and connection.address != self._lost:
            self._recovered_s = time.monotonic()
            self._recovered.set()
        return True


def run(kills: int) -> list[float]:
    """The seconds of each kill, in order."""
    directory = Path(tempfile.mkdtemp(prefix="bench"))
    try:
        with Cluster(directory) as cluster:
            cluster.start()
            call_until(lambda: cluster.admin.create_topic(TOPIC, queues=1))
            eventually("the topic's route", lambda: bool(cluster.admin.queue_offsets(TOPIC)))
            sender = Sender(cluster.broker_addresses)
            sender.start()
            eventually("the first sends", lambda: len(sender.history.acknowledged) > 20)
            took = [kill_master(cluster, sender, number + 1) for number in range(kills)]
            history = sender.stop()
            check_queue(read_queue(cluster.admin, TOPIC, 0), [history])
            print_summary(took, history)
            return took
    finally:
        shutil.rmtree(directory)


def kill_master(cluster: Cluster, sender: Sender, number: int) -> float:
    """Kill the master and bring it back; the seconds until a send succeeded again."""
    master = cluster.master()
    sender.expect_loss(cluster.broker_addresses[master])
    killed_at = datetime.now(UTC)
    killed_s = time.monotonic()
    cluster.brokers[master].kill()
    took_s = sender.wait_for_successor() - killed_s
    print(f"kill {number:2}: {cluster.brokers[master].name} was master, {took_s * 1000:.0f} ms", flush=True)
    if took_s > MEDIAN_GOAL_S:
        print_logs(cluster, killed_at)
    cluster.brokers[master].start()
    cluster.wait_in_sync(len(cluster.brokers), timeout_s=60)
    return took_s


def print_logs(cluster: Cluster, since: datetime) -> None:
    """What the daemons logged since a moment, in one order."""
    # log lines begin with a local time that sorts as text
    first = since.astimezone().strftime("%Y-%m-%d %H:%M:%S,") + f"{since.microsecond // 1000:03}"
    lines = [
        f"    {line[:23]} {process.name} {line[24:]}"
        for process in cluster.processes
        for line in process.log_text().splitlines()
        if line[:23] >= first
    ]
    print("\n".join(sorted(lines)), flush=True)


def print_summary(took: Sequence[float], history: History) -> None:
    median, longest = statistics.median(took), max(took)
    print(
        f"{len(took)} kills: median {median * 1000:.0f} ms (goal {MEDIAN_GOAL_S * 1000:.0f}), "
        f"longest {longest * 1000:.0f} ms (goal {LONGEST_GOAL_S * 1000:.0f}); "
        f"{len(history.acknowledged)} sends acknowledged and all there, {len(history.unknown)} of unknown outcome",
        flush=True,
    )


def rows(took: Sequence[float]) -> list[Row]:
    """What the final table says of a run."""
    name = f"kill of the master to the next send, {len(took)} kills"
    median, longest = statistics.median(took), max(took)
    return [
        Row(f"{name}: median", f"{median * 1000:.0f} ms", f"<= {MEDIAN_GOAL_S * 1000:.0f} ms", median <= MEDIAN_GOAL_S),
        Row(
            f"{name}: longest",
            f"{longest * 1000:.0f} ms",
            f"<= {LONGEST_GOAL_S * 1000:.0f} ms",
            longest <= LONGEST_GOAL_S,
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    run(parser.parse_args().kills)


if __name__ == "__main__":
    main()
