"""Hours of a tier: write, upload, let the local files go, and read all of it again, round after round.

    python -m tests.tier.soak [--minutes N] [--round S] [--replicas N] [--faults SHARE] [--seed N]

Three controllers and brokers, or as many as are asked for, and a real S3 server behind a proxy that fails in all ways. Segments
are merged meanwhile, those of one topic to an archive. In each round producers send, then everything leaves the brokers' own
files. All messages since the begin are read by offset, with their checksums, and held against what the producers were told; some
of each queue are looked for by key and by time, too, and at the end all are. It ends with `N acknowledged, N read by offset, N
found by key and time`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from remoting.errors import LogboomError
from remoting.record.codec import Record
from remoting.tier.contents import Queue
from tests.support.cluster import Cluster
from tests.support.cold_reading import FILLER, SHORT_LIVES, make_cold, make_topic, send_filler
from tests.support.object_faults import FaultProxy, evenly
from tests.support.object_servers import S3Server, write_options
from tests.support.workload import History, Producer, check_queue
from tests.tier.found import Asking, check_found, read_back

BUCKET: Final = "soak"
TOPICS: Final = {"Plain": "+message.type=NORMAL", "Packed": "+message.type=NORMAL,+tier.archive=true"}
QUEUES: Final = tuple(Queue(topic, queue_id) for topic in TOPICS for queue_id in range(2))
_BODY_BYTES: Final = 1024
_PATIENCE_S: Final = 300.0
_FOUND_IN_A_ROUND: Final = 100  # of each queue
_ALL: Final = 1 << 60
# Segments are merged soon, as they would be in hours.
_MERGED: Final = ("tiers.segment_bytes=1048576",)


class Soak:
    """One cluster, and what was ever sent to it. `found` counts the messages that the last round looked for."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._histories: dict[Queue, list[History]] = {queue: [] for queue in QUEUES}
        self.rounds = self.found = 0
        self.read: Mapping[Queue, list[Record]] = {}

    @property
    def acknowledged(self) -> int:
        return sum(len(each.acknowledged) for histories in self._histories.values() for each in histories)

    def write(self, seconds: float) -> None:
        """Producers of all queues, so long; then nobody has it in own files."""
        self.rounds += 1
        producers = {
            queue: Producer(
                self._cluster.controller_addresses,
                queue.topic,
                f"{queue.topic}-{queue.queue_id}-{self.rounds}",
                queue.queue_id,
                _BODY_BYTES,
            )
            for queue in QUEUES
        }
        for producer in producers.values():
            producer.start()
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            try:
                send_filler(self._cluster)  # files are full sooner than the producers alone would fill them
            except LogboomError as error:
                print(f"the filler was not stored: {error}", flush=True)
            time.sleep(0.2)
        for queue, producer in producers.items():
            self._histories[queue].append(producer.stop())
        make_cold(self._cluster, _PATIENCE_S)

    def check(self, most: int) -> None:
        """Read all by offset, and look for so many of each queue. Raises AssertionError."""
        asking = Asking(self._cluster.admin, _PATIENCE_S)
        self.read = {queue: read_back(asking, queue) for queue in QUEUES}
        for queue, records in self.read.items():
            check_queue(records, self._histories[queue])
        self.found = sum(check_found(asking, queue, records, most) for queue, records in self.read.items())
        count = sum(map(len, self.read.values()))
        told = f"{count} read by offset, {self.found} found by key and time, {asking.failures} requests failed"
        print(f"round {self.rounds}: {told}", flush=True)


def run(root: Path, minutes: float, round_s: float, replicas: int, share: float, seed: int) -> int:
    """The exit code. Raises AssertionError for what is not as it should be."""
    end_s = time.monotonic() + 60 * minutes
    with S3Server() as server, FaultProxy(server.port, seed) as proxy:
        server.make_bucket(BUCKET)
        url, options = f"s3://{BUCKET}/logboom", write_options(root / "options", proxy.port)
        settings = [f"tiers.url={url}", f"tiers.options_path={options}", "tiers.request_timeout_ms=5000"]
        with Cluster(
            root / "cluster",
            controllers=replicas,
            replicas=replicas,
            broker_settings=[*settings, *SHORT_LIVES, *_MERGED],
        ) as cluster:
            cluster.start()
            make_topic(cluster, FILLER, attributes="+message.type=NORMAL,+tier.enable=false")
            for topic, attributes in TOPICS.items():
                make_topic(cluster, topic, queues=2, attributes=attributes)
            proxy.chances = evenly(share)
            soak = Soak(cluster)
            while time.monotonic() < end_s or not soak.rounds:
                soak.write(round_s)
                soak.check(_FOUND_IN_A_ROUND)
            soak.check(_ALL)
    count = sum(map(len, soak.read.values()))
    print(f"{soak.acknowledged} acknowledged, {count} read by offset, {soak.found} found by key and time", flush=True)
    return 0 if soak.acknowledged and soak.found == count >= soak.acknowledged else 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tier.soak", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="when the last round begins")
    parser.add_argument("--replicas", type=int, default=3, help="controllers, and brokers")
    parser.add_argument("--round", type=float, default=10.0, help="seconds of sends in a round")
    parser.add_argument(
        "--faults", type=float, default=0.05, help="the share of requests to the object store that fail"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the faults")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="logboom-tier-soak-"))
    try:
        return run(root, options.minutes, options.round, options.replicas, options.faults, options.seed)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    sys.exit(main())
