"""Hours of a tier: write, upload, let the local files go, and read all of it again, round after round.

    python -m tests.tier.soak [--minutes N] [--round S] [--messages N] [--replicas N] [--faults SHARE] [--seed N] [--harm HOW]

Three controllers and brokers, or as many as are asked for, and a real S3 server behind a proxy that fails in all ways. Segments
are merged meanwhile, those of one topic to an archive. In each round producers send, then everything leaves the brokers' own
files. All messages since the begin are read by offset, with their checksums, and held against what the producers were told; some
of each queue are looked for by key and by time, too, and at the end all are. Some 15 to 60 are found in a second, by what the S3
server has of the processors; so there are 900 messages for each minute, or `--messages`, about, shared by all rounds: then the
end takes no longer than the rounds did. It ends with `N acknowledged, N read by offset, N found by key and time`.

With `--harm` an object of the index of keys is changed before all are looked for: `bytes`, so that its checksums are wrong, or
`items`, so that they are right and one message is named by another one's place. That has to end with an AssertionError.
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

from brokerd.tiers.settings import TierSettings
from remoting.errors import LogboomError
from remoting.record.codec import Record
from remoting.tier.contents import Queue
from tests.support.cluster import Cluster
from tests.support.cold_reading import FILLER, SHORT_LIVES, make_cold, make_topic, send_filler
from tests.support.object_faults import FaultProxy, evenly
from tests.support.object_servers import S3Server, write_options
from tests.support.workload import History, Producer, check_queue
from tests.tier.found import Asking, check_found, read_back
from tests.tier.harm import HARMS, harm_index

BUCKET: Final = "soak"
TOPICS: Final = {"Plain": "+message.type=NORMAL", "Packed": "+message.type=NORMAL,+tier.archive=true"}
QUEUES: Final = tuple(Queue(topic, queue_id) for topic in TOPICS for queue_id in range(2))
_BODY_BYTES: Final = 1024
_PATIENCE_S: Final = 300.0
_HARMED_PATIENCE_S: Final = 10.0  # nothing that fails then is mended
_FOUND_IN_A_ROUND: Final = 100  # of each queue
_LEAST_IN_A_ROUND: Final = 20  # of each queue, whatever was sent before
_MESSAGES_A_MINUTE: Final = 900
_ROUND_IN_ALL: Final = 4  # times as long as its sends, as long as nobody knows better
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

    def write(self, seconds: float, most: float) -> None:
        """Producers of all queues, so long, or until each has sent so many; then nobody has it in own files."""
        self.rounds += 1
        producers = {
            queue: Producer(
                self._cluster.controller_addresses,
                queue.topic,
                f"{queue.topic}-{queue.queue_id}-{self.rounds}",
                queue.queue_id,
                _BODY_BYTES,
                most,
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

    def check(self, most: int, patience_s: float = _PATIENCE_S) -> None:
        """Read all by offset, and look for so many of each queue. Raises AssertionError."""
        asking = Asking(self._cluster.admin, patience_s)
        self.read = {queue: read_back(asking, queue) for queue in QUEUES}
        for queue, records in self.read.items():
            check_queue(records, self._histories[queue])
        count, began_s = sum(map(len, self.read.values())), time.monotonic()
        self.found = sum(check_found(asking, queue, records, most) for queue, records in self.read.items())
        took = f"{self.found} found by key and time in {time.monotonic() - began_s:.0f} s"
        print(f"round {self.rounds}: {count} read by offset, {took}, {asking.failures} requests failed", flush=True)


def run(root: Path, options: argparse.Namespace) -> int:
    """The exit code. Raises AssertionError for what is not as it should be."""
    with S3Server() as server, FaultProxy(server.port, options.seed) as proxy:
        server.make_bucket(BUCKET)
        url, access = f"s3://{BUCKET}/logboom", write_options(root / "options", proxy.port)
        settings = [f"tiers.url={url}", f"tiers.options_path={access}", "tiers.request_timeout_ms=5000"]
        with Cluster(
            root / "cluster",
            controllers=options.replicas,
            replicas=options.replicas,
            broker_settings=[*settings, *SHORT_LIVES, *_MERGED],
        ) as cluster:
            cluster.start()
            make_topic(cluster, FILLER, attributes="+message.type=NORMAL,+tier.enable=false")
            for topic, attributes in TOPICS.items():
                make_topic(cluster, topic, queues=2, attributes=attributes)
            proxy.chances = evenly(options.faults)
            soak = Soak(cluster)
            messages = options.messages if options.messages is not None else round(_MESSAGES_A_MINUTE * options.minutes)
            go_on(soak, 60 * options.minutes, options.round, messages)
            if options.harm is None:
                soak.check(_ALL)
            else:
                direct = write_options(root / "direct", server.port)
                harm_index(TierSettings(url=url, options_path=str(direct)), options.harm)
                soak.check(_ALL, _HARMED_PATIENCE_S)
    count = sum(map(len, soak.read.values()))
    print(f"{soak.acknowledged} acknowledged, {count} read by offset, {soak.found} found by key and time", flush=True)
    return 0 if soak.acknowledged and soak.found == count >= soak.acknowledged else 1


def go_on(soak: Soak, seconds: float, round_s: float, messages: int) -> None:
    """Rounds, for so long, which share so many messages."""
    end_s, whole_s = time.monotonic() + seconds, _ROUND_IN_ALL * round_s
    while (began_s := time.monotonic()) < end_s or not soak.rounds:
        rounds = max(1.0, (end_s - began_s) / whole_s)
        share = (messages - soak.acknowledged) / rounds / len(QUEUES)
        soak.write(round_s, max(_LEAST_IN_A_ROUND, share))
        soak.check(_FOUND_IN_A_ROUND)
        whole_s = time.monotonic() - began_s


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tier.soak", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="when the last round begins")
    parser.add_argument("--replicas", type=int, default=3, help="controllers, and brokers")
    parser.add_argument("--round", type=float, default=10.0, help="seconds of sends in a round")
    parser.add_argument(
        "--faults", type=float, default=0.05, help="the share of requests to the object store that fail"
    )
    parser.add_argument("--messages", type=int, help="of all rounds together, about")
    parser.add_argument(
        "--harm", choices=HARMS, help="what becomes of an object of the index before all are looked for"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the faults")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="logboom-tier-soak-"))
    try:
        return run(root, options)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    sys.exit(main())
