"""The story of a tier on real processes: nothing that was acknowledged and uploaded is lost, whoever fails or dies.

    python -m tests.tier [--seconds N] [--kills N] [--faults SHARE] [--seed N]

Three controllers, three brokers, and a real S3 server, which they reach through a proxy that fails in all ways (a share of the
requests). Producers send all the time, masters are killed, and local files go as soon as they can. Then everything is read back
cold, by offset, through the brokers and still through the failing proxy, and held against what the producers were told:
checksums, places, order; some of it is found by key and by time, too. At last all brokers are killed and their disks deleted.
Everything is read by the manifest alone, then another broker mounts the group, and the official Python client consumes all of it
there.

Then an appliance (`manage.py up`) loses the disks of a broker group, and an operator mounts it there by `manage.py group mount`.
In another one a group that is well is retired, switched off and mounted.
And appliances run without a bucket, with credentials that are refused, and with a store that is full.

It ends with `N acknowledged, N uploaded, N read back`; the exit code is 1 when a message is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from brokerd.tiers.mounting.states import read_state
from brokerd.tiers.objects.backend import open_backend
from brokerd.tiers.settings import TierSettings
from remoting.errors import LogboomError
from remoting.record.codec import Record
from remoting.tier.contents import Queue
from remoting.tier.names import group_directory
from tests.support.cluster import Cluster, eventually
from tests.support.cold_reading import FILLER, SHORT_LIVES, make_cold, make_topic, send_filler
from tests.support.object_faults import FaultProxy, evenly
from tests.support.object_servers import S3Server, write_options
from tests.support.workload import History, Producer, check_queue
from tests.tier import appliance, retiring, troubles
from tests.tier.alone import contents_by_manifest, read_segment
from tests.tier.found import Asking, check_found, read_back
from tests.tier.mounting import READERS, begin_group, consume_all, lose_disks, mount, refusal_of_a_send

BUCKET: Final = "story"
GROUP: Final = "broker-a"
QUEUES: Final = tuple(Queue(topic, queue_id) for topic in ("Orders", "Bills") for queue_id in range(2))
_BODY_BYTES: Final = 1024
_DOWN_S: Final = 2.0  # how long a killed broker stays away
_PATIENCE_S: Final = 180.0
_FOUND: Final = 100  # messages of each queue

Histories = Mapping[Queue, History]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tier", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long messages are sent")
    parser.add_argument("--kills", type=int, default=3, help="how many masters are killed meanwhile")
    parser.add_argument("--faults", type=float, default=0.1, help="the share of requests to the object store that fail")
    parser.add_argument("--seed", type=int, default=1, help="of the faults")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="logboom-tier-"))
    try:
        code, told = run(root, options.seconds, options.kills, options.faults, options.seed)
        print(told, flush=True)
        code = max(
            code, run_appliance(root / "appliance"), run_retired(root / "retired"), run_troubles(root / "troubles")
        )
        print(told, flush=True)
        return code
    finally:
        shutil.rmtree(root)


def run(root: Path, seconds: float, kills: int, share: float, seed: int) -> tuple[int, str]:
    """The exit code, and how much there was and was read."""
    with S3Server() as server, FaultProxy(server.port, seed) as proxy:
        server.make_bucket(BUCKET)
        url, options = f"s3://{BUCKET}/logboom", write_options(root / "options", proxy.port)
        settings = [f"tiers.url={url}", f"tiers.options_path={options}", "tiers.request_timeout_ms=5000", *SHORT_LIVES]
        with Cluster(root / "cluster", broker_settings=settings) as cluster:
            cluster.start()
            proxy.chances = evenly(share)
            histories = _send(cluster, seconds, kills, random.Random(seed))
            print(f"the object store was asked {proxy.requests.total()} times: {_told(proxy)}", flush=True)
            cluster.make_whole()
            make_cold(cluster, _PATIENCE_S)
            read = _read_back(cluster)
            begin_group(cluster, QUEUES)
            _wait_for_state(TierSettings(url=url, options_path=str(write_options(root / "seen", server.port))))
            lose_disks(cluster)
            direct = write_options(root / "direct", server.port)
            uploaded = asyncio.run(_uploaded(TierSettings(url=url, options_path=str(direct))))
            mounted, refusal = _mounted(cluster, settings, root)
    return _judge(histories, uploaded, read, mounted, refusal)


def run_appliance(root: Path) -> int:
    """The exit code of the part with an appliance."""
    root.mkdir()
    uploaded, found = appliance.run(root)
    print(f"{uploaded} uploaded by an appliance, {found} read back from its mount", flush=True)
    return 0 if uploaded and found == uploaded else 1


def run_retired(root: Path) -> int:
    """The exit code of the part with a broker group that is given up while it is well."""
    had, found = retiring.run(root)
    print(f"{had} messages of a group that was retired, {found} read back from its mount", flush=True)
    return 0 if had and found == had else 1


def run_troubles(root: Path) -> int:
    """The exit code of the part with object stores that are not as they should be."""
    root.mkdir()
    print(f"{troubles.run(root)} troubles of an object store were told, and came to an end", flush=True)
    return 0


def _wait_for_state(settings: TierSettings) -> None:
    """Until who mounts the group finds the readers in the tier."""
    objects = open_backend(settings, group_directory("", "DefaultCluster", GROUP))

    def is_there() -> bool:
        rows = asyncio.run(read_state(objects))
        return sum(row[:2] == ["o", READERS] for row in rows) == len({queue.topic for queue in QUEUES})

    eventually("the readers' offsets are in the tier", is_there, _PATIENCE_S)


def _mounted(cluster: Cluster, settings: Sequence[str], root: Path) -> tuple[set[bytes], str]:
    """What the official client got of the mount, and what a producer was told there."""
    topics = sorted({queue.topic for queue in QUEUES})
    address, grpc = mount(cluster, GROUP, settings)
    eventually("the routes of the mount", lambda: all(map(cluster.admin.queue_offsets, topics)), _PATIENCE_S)
    return consume_all(grpc, topics, root / "home"), refusal_of_a_send(cluster, address, topics[0])


def _send(cluster: Cluster, seconds: float, kills: int, rng: random.Random) -> Histories:
    make_topic(cluster, FILLER, attributes="+message.type=NORMAL,+tier.enable=false")
    for topic in sorted({queue.topic for queue in QUEUES}):
        make_topic(cluster, topic, queues=1 + max(queue.queue_id for queue in QUEUES if queue.topic == topic))
    producers = {
        queue: Producer(
            cluster.controller_addresses, queue.topic, f"{queue.topic}-{queue.queue_id}", queue.queue_id, _BODY_BYTES
        )
        for queue in QUEUES
    }
    for producer in producers.values():
        producer.start()
    for number in range(kills):
        _go_on(cluster, seconds / (kills + 1) * rng.uniform(0.7, 1.0))
        victim = cluster.master()
        cluster.brokers[victim].kill()
        print(f"kill {number + 1}: broker {victim}, the master", flush=True)
        _go_on(cluster, _DOWN_S)
        cluster.make_whole()
    _go_on(cluster, seconds / (kills + 1))
    return {queue: producer.stop() for queue, producer in producers.items()}


def _go_on(cluster: Cluster, seconds: float) -> None:
    """Files are full sooner than the producers alone would fill them, so that most is cold."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        try:
            send_filler(cluster)
        except LogboomError:
            """There is no master just now."""
        time.sleep(0.2)


def _read_back(cluster: Cluster) -> dict[Queue, list[Record]]:
    """All of it by offset; some is found by key and by time, too."""
    asking = Asking(cluster.admin, _PATIENCE_S)
    read = {queue: read_back(asking, queue) for queue in QUEUES}
    found = sum(check_found(asking, queue, records, _FOUND) for queue, records in read.items())
    print(f"{found} messages were found by key and by time; {asking.failures} requests failed", flush=True)
    return read


async def _uploaded(settings: TierSettings) -> dict[Queue, list[Record]]:
    objects = open_backend(settings, group_directory("", "DefaultCluster", GROUP))
    contents = await contents_by_manifest(objects)
    return {
        queue: [
            record
            for segment in contents.queues.get(queue, ())
            for record in await read_segment(objects, queue, segment)
        ]
        for queue in QUEUES
    }


def _judge(
    histories: Histories,
    uploaded: Mapping[Queue, Sequence[Record]],
    read: Mapping[Queue, Sequence[Record]],
    mounted: set[bytes],
    refusal: str,
) -> tuple[int, str]:
    print(f"a send to the mount: {refusal}", flush=True)
    is_right = "read-only" in refusal
    for queue in QUEUES:
        for who, records in (("the tier", uploaded[queue]), ("the brokers", read[queue])):
            try:
                check_queue(list(records), [histories[queue]])
            except AssertionError as error:
                is_right = False
                print(f"{queue.topic}/{queue.queue_id} as {who} have it: {error}", flush=True)
    acknowledged = sum(len(history.acknowledged) for history in histories.values())
    counts = [sum(_kept(histories[queue], each[queue]) for queue in QUEUES) for each in (uploaded, read)]
    print(f"{counts[1]} read back from the brokers", flush=True)
    bodies = {record.body for records in uploaded.values() for record in records}
    if missing := bodies - mounted:
        print(f"{len(missing)} uploaded messages are missing at the mount, as {min(missing)[:60]!r}", flush=True)
    if foreign := mounted - bodies:
        print(f"{len(foreign)} messages came from the mount that nobody uploaded", flush=True)
    acked = {body for history in histories.values() for body in history.acknowledged}
    told = f"{acknowledged} acknowledged, {counts[0]} uploaded, {len(acked & mounted)} read back"
    is_whole = counts == [acknowledged, acknowledged] and not missing and not foreign
    return 0 if is_right and acknowledged and is_whole else 1, told


def _kept(history: History, records: Sequence[Record]) -> int:
    """How many messages are where the answer to their send said."""
    by_offset = {record.queue_offset: record.body for record in records}
    return sum(by_offset.get(offset) == body for body, (_, offset) in history.acknowledged.items())


def _told(proxy: FaultProxy) -> str:
    return ", ".join(f"{count} {fault.value}" for fault, count in proxy.faults.most_common())


if __name__ == "__main__":
    sys.exit(main())
