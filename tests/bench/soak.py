"""Memory over time: a whole cluster under everything that clients do, moderately, for an hour.

    python -m tests.bench.soak [--minutes N]

Three controllers, three brokers. Sends one by one, in batches, delayed and transactional; pulls with commits; pops that are
acknowledged, prolonged or left to return; clients that come, heartbeat and go; topics that are made and deleted; tools that ask.
Files are small and old ones go, so that the log does not grow. Each daemon's memory is read every ten seconds: after the first
fifth of the time, which fills tables and caches, its own memory may differ by 5 % from then to the end (medians of a tenth of the
time each). Mapped pages of the log, which the system takes back when it wants to, are told apart.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import orjson

from remoting import codes
from remoting.errors import LogboomError, RequestError
from remoting.frame import Command
from remoting.record.codec import decode_records
from remoting.record.properties import encode_properties
from remoting.transport.client import RemotingClient, connect
from tests.bench.harness import Row
from tests.bench.processes import Memory, memory_of
from tests.support.client_bytes import encode_batch_body
from tests.support.cluster import Cluster, Process
from tests.support.workload import call_until

_SETTINGS: Final = (
    "store.segment_size_bytes=16777216",
    "retention.reserved_time_ms=120000",
    "retention.interval_ms=5000",
)
_TOPIC: Final = "Soak"
_QUEUES: Final = 4
_EVERY_S: Final = 10.0
_MOST_CHANGE: Final = 0.05
_GROUPS: Final = 20


class Clients:
    """What clients do; `done` counts it by kind, `refused` what was answered with another code than success."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._client = RemotingClient()
        self._random = random.Random(1)
        self._address = cluster.broker_addresses[cluster.master()]
        self._numbers = itertools.count()
        self._pulled = [0] * _QUEUES
        self.done: Counter[str] = Counter()
        self.refused: Counter[tuple[str, int]] = Counter()

    async def run(self, until_s: float) -> None:
        """All kinds at once, each at its pace (seconds between two)."""
        paces: Sequence[tuple[float, Callable[[], Awaitable[None]]]] = (
            *((0.02, self.send), (0.3, self.send_batch), (0.3, self.send_delayed), (0.3, self.send_transactional)),
            *((0.05, self.pull), (0.1, self.pop), (0.2, self.come_and_go), (5.0, self.make_topics), (0.5, self.ask)),
        )
        try:
            await asyncio.gather(*(self._repeat(pace_s, act, until_s) for pace_s, act in paces))
        finally:
            self._client.close()

    async def _repeat(self, pace_s: float, act: Callable[[], Awaitable[None]], until_s: float) -> None:
        while time.monotonic() < until_s:
            try:
                await act()
                self.done[act.__name__] += 1
            except RequestError as error:
                self.refused[act.__name__, error.code] += 1
            await asyncio.sleep(pace_s)

    async def _call(self, code: int, ext: Mapping[str, str], body: bytes = b"", *accept: int) -> Command:
        return await self._client.call(
            self._address, code, ext, body, timeout_ms=10_000, accept=(codes.SUCCESS, *accept)
        )

    # ---- producers

    async def send(self) -> None:
        await asyncio.gather(*(self._send() for _ in range(4)))

    async def send_delayed(self) -> None:
        await self._send(DELAY="2")

    async def send_batch(self) -> None:
        items = [(0, self._random.randbytes(200), self._properties().encode()) for _ in range(16)]
        await self._call(codes.SEND_BATCH_MESSAGE, {**self._header(), "m": "true"}, encode_batch_body(items))

    async def send_transactional(self) -> None:
        """One of three is committed, one rolled back, one forgotten."""
        half = await self._send(TRAN_MSG="true", PGROUP="soak-producers")
        end = self._random.choice((8, 12, 0))
        if end:
            await self._call(
                codes.END_TRANSACTION,
                {
                    **{"producerGroup": "soak-producers", "tranStateTableOffset": half.ext["queueOffset"]},
                    **{"commitLogOffset": str(int(half.ext["msgId"][-16:], 16)), "commitOrRollback": str(end)},
                    **{"fromTransactionCheck": "false", "msgId": half.ext["transactionId"]},
                },
            )

    async def _send(self, **properties: str) -> Command:
        return await self._call(
            codes.SEND_MESSAGE_V2, {**self._header(), "i": self._properties(**properties)}, self._random.randbytes(500)
        )

    def _header(self) -> dict[str, str]:
        queue_id = str(self._random.randrange(_QUEUES))
        return {
            **{
                "a": "soak-producers",
                "b": _TOPIC,
                "c": "TBW102",
                "d": "4",
                "e": queue_id,
                "f": "0",
                "g": "1700000000000",
            },
            **{"h": "0", "i": self._properties(), "j": "0", "k": "false", "m": "false"},
        }

    def _properties(self, **more: str) -> str:
        number = next(self._numbers)
        named = {"UNIQ_KEY": f"{number:032X}", "KEYS": f"k{number % 1000}", "TAGS": f"t{number % 5}", **more}
        return encode_properties(named).decode()

    # ---- consumers

    async def pull(self) -> None:
        queue_id = self._random.randrange(_QUEUES)
        answer = await self._call(
            codes.PULL_MESSAGE,
            {
                **{"consumerGroup": "soak-pullers", "topic": _TOPIC, "queueId": str(queue_id), "maxMsgNums": "32"},
                **{
                    "queueOffset": str(self._pulled[queue_id]),
                    "sysFlag": "5",
                    "commitOffset": str(self._pulled[queue_id]),
                },
                **{"suspendTimeoutMillis": "0", "subscription": "t1 || t2", "subVersion": "0", "expressionType": "TAG"},
            },
            b"",
            *(codes.PULL_NOT_FOUND, codes.PULL_RETRY_IMMEDIATELY, codes.PULL_OFFSET_MOVED),
        )
        self._pulled[queue_id] = int(answer.ext["nextBeginOffset"])

    async def pop(self) -> None:
        answer = await self._call(
            codes.POP_MESSAGE,
            {
                **{
                    "consumerGroup": "soak-poppers",
                    "topic": _TOPIC,
                    "queueId": "-1",
                    "maxMsgNums": "32",
                    "invisibleTime": "5000",
                },
                **{"pollTime": "1000", "bornTime": str(time.time_ns() // 1_000_000), "initMode": "0"},
            },
            b"",
            *(codes.POLLING_TIMEOUT, codes.POLLING_FULL),
        )
        if answer.code != codes.SUCCESS:
            return
        starts = {tuple(each.split(" ")[:2]): each.split(" ")[2] for each in answer.ext["startOffsetInfo"].split(";")}
        for record in decode_records(bytes(answer.body)):
            handle = record.property_map().get("POP_CK")
            if handle is None:
                start = starts["0", str(record.queue_id)]
                handle = " ".join(
                    [
                        *(
                            start,
                            answer.ext["popTime"],
                            answer.ext["invisibleTime"],
                            answer.ext["reviveQid"],
                            "0",
                            "broker-a",
                        ),
                        *(str(record.queue_id), str(record.queue_offset)),
                    ]
                )
            await self._finish(handle)

    async def _finish(self, handle: str) -> None:
        """Nine of ten are acknowledged; of the others half are prolonged, half left to return."""
        words = handle.split(" ")
        topic = {"0": _TOPIC, "1": f"%RETRY%soak-poppers_{_TOPIC}", "2": f"%RETRY%soak-poppers+{_TOPIC}"}[words[4]]
        ext = {
            "consumerGroup": "soak-poppers",
            "topic": topic,
            "queueId": words[6],
            "extraInfo": handle,
            "offset": words[7],
        }
        chance = self._random.random()
        if chance < 0.9:
            await self._call(codes.ACK_MESSAGE, ext)
        elif chance < 0.95:
            await self._call(codes.CHANGE_MESSAGE_INVISIBLETIME, {**ext, "invisibleTime": "3000"})

    # ---- the rest

    async def come_and_go(self) -> None:
        """A client that heartbeats in a group and leaves by closing its connection."""
        number = next(self._numbers)
        group = f"soak-group-{number % _GROUPS}"
        connection = await connect(self._address)
        try:
            subscription = {"topic": _TOPIC, "subString": "*", "subVersion": number, "expressionType": "TAG"}
            body = {
                "clientID": f"client-{number}",
                "producerDataSet": [{"groupName": "soak-producers"}],
                "consumerDataSet": [
                    {
                        **{"groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING"},
                        **{"consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": [subscription]},
                    }
                ],
            }
            await connection.call(codes.HEART_BEAT, {}, orjson.dumps(body), 5000)
            await connection.call(codes.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group}, b"", 5000)
        finally:
            connection.close()

    async def make_topics(self) -> None:
        name = f"Soak{next(self._numbers)}"
        await asyncio.to_thread(self._cluster.admin.create_topic, name, queues=2)
        await self._call(codes.SEND_MESSAGE_V2, {**self._header(), "b": name, "e": "0"}, b"once")
        await asyncio.to_thread(self._cluster.admin.delete_topic, name)

    async def ask(self) -> None:
        """What tools ask."""
        key = {"topic": _TOPIC, "key": f"k{self._random.randrange(1000)}", "maxNum": "8", "beginTimestamp": "0"}
        unheard = (codes.QUERY_NOT_FOUND, codes.CONSUMER_NOT_ONLINE, codes.SYSTEM_ERROR)
        await self._call(codes.QUERY_MESSAGE, {**key, "endTimestamp": str(2**62)}, b"", *unheard)
        await self._call(codes.GET_TOPIC_STATS_INFO, {"topic": _TOPIC})
        await self._call(codes.GET_CONSUME_STATS, {"consumerGroup": "soak-pullers", "topic": _TOPIC})
        await self._call(codes.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "soak-group-1"}, b"", *unheard)
        await self._call(codes.GET_BROKER_RUNTIME_INFO, {})


class Watch:
    """Each daemon's memory over time."""

    def __init__(self, processes: Sequence[Process]) -> None:
        self._processes = processes
        self.readings: dict[str, list[Memory]] = {process.name: [] for process in processes}

    async def run(self, until_s: float) -> None:
        began_s = time.monotonic()
        for number in itertools.count(1):
            await asyncio.sleep(max(0.0, began_s + number * _EVERY_S - time.monotonic()))
            for process in self._processes:
                self.readings[process.name].append(memory_of(process.pid))
            if number % 6 == 0:
                now = "  ".join(f"{name} {found[-1].anonymous_mb:.1f}" for name, found in self.readings.items())
                print(f"    {(until_s - time.monotonic()) / 60:.0f} min to go: own MB: {now}", flush=True)
            if time.monotonic() >= until_s:
                return

    def rows(self, minutes: float) -> list[Row]:
        found = []
        for name, readings in self.readings.items():
            tenth = max(1, len(readings) // 10)
            own = [each.anonymous_mb for each in readings]
            early, late = statistics.median(own[2 * tenth : 3 * tenth] or own), statistics.median(own[-tenth:])
            files = [
                statistics.median(each.file_mb for each in part)
                for part in (readings[2 * tenth : 3 * tenth], readings[-tenth:])
            ]
            figure = f"{early:.1f} MB, then {late:.1f} MB ({late / early - 1:+.1%}); files {files[0]:.0f}, then {files[1]:.0f} MB"
            met = late <= early * (1 + _MOST_CHANGE)
            found.append(Row(f"memory of {name} over {minutes:.0f} min of soak", figure, "+5 %", met))
        return found


def run(minutes: float) -> list[Row]:
    """The rows, one for each daemon."""
    directory = Path(tempfile.mkdtemp(prefix="bench"))
    try:
        with Cluster(directory, broker_settings=_SETTINGS) as cluster:
            cluster.start()
            call_until(lambda: cluster.admin.create_topic(_TOPIC, queues=_QUEUES))
            return asyncio.run(_soak(cluster, minutes))
    finally:
        shutil.rmtree(directory)


async def _soak(cluster: Cluster, minutes: float) -> list[Row]:
    clients, watch = Clients(cluster), Watch(cluster.processes)
    until_s = time.monotonic() + minutes * 60
    await asyncio.gather(clients.run(until_s), watch.run(until_s))
    print(f"    done: {dict(clients.done)}; refused: {dict(clients.refused)}", flush=True)
    for process in cluster.processes:
        if "Traceback" in process.log_text():
            raise LogboomError(f"{process.name} logged an exception:\n{process.log_text()[-3000:]}")
    return watch.rows(minutes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60, help="how long (%(default)s)")
    rows = run(parser.parse_args().minutes)
    for row in rows:
        print(f"{row.name}: {row.figure} (goal {row.goal}) {'met' if row.met else 'MISSED'}")
    sys.exit(not all(row.met for row in rows))


if __name__ == "__main__":
    main()
