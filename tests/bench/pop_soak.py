"""POP over time: gRPC and remoting consumers in one group, a part of which crash, while masters are killed. Nothing may be lost.

    python -m tests.bench.pop_soak [--minutes N] [--seed N]

Three controllers, three brokers. Messages without order, in order, with priorities, of transactions, delayed, and some that
nobody can handle; consumers over both protocols in every group (`pop_soak_consumer`), whose connections are cut, who go silent,
and whose processes are killed. The master is killed at 15, 30 and 45 % of the time. At the end the crashes stop, and what was
seen is held against what was sent:

- what was stored, and neither rolled back nor left open, was delivered or is a dead letter;
- nothing was delivered to a receive that began after its ack was answered;
- a message of an ordered group came after those before it were delivered, and asked to be acked;
- each dead letter is there once, and none that was acked, nor one that nobody gave up;
- no group lags or holds a message, and the brokers' own memory over the last third of the time stays within 5 % and 8 MB.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import grpc

from brokerd.proxy.protobuf import definition, service
from remoting.client.blocking import AdminClient
from remoting.errors import LogboomError, RequestError
from remoting.names import dead_letter_topic_of
from tests.bench.pop_soak_consumer import ORDERED, TOPICS, group_of
from tests.bench.processes import memory_of
from tests.support.cluster import ROOT, Cluster, eventually
from tests.support.documents import document
from tests.support.workload import call_until, read_queue

_TYPES: Final = {
    "SoakOrdered": "FIFO",
    "SoakPriority": "PRIORITY",
    "SoakTransactions": "TRANSACTION",
    "SoakDelayed": "DELAY",
}
_DEAD: Final = "SoakDead"
_QUEUES: Final = 4
_CONSUMERS: Final = 2
_SETTINGS: Final = ("store.segment_size_bytes=16777216",)
_KILLS: Final = (0.15, 0.3, 0.45)
_CONSUMER_LIVES_S: Final = 12.0  # of a consuming process, in the mean
_MOST_CHANGE: Final = 0.05
_SLACK_MB: Final = 8.0  # what buffers come to, and what the ledger remembers
_PATIENCE_S: Final = 90.0
_PATH: Final = "/apache.rocketmq.v2.MessagingService/"


@dataclass
class Seen:
    """What senders and consumers learned. Names are bodies: topic, kind or ordering key, number."""

    stored: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    hidden: set[str] = field(default_factory=set)  # rolled back, or left open
    got: dict[str, list[tuple[float, float]]] = field(default_factory=dict)  # receive began, ended
    acked: dict[str, tuple[float, float]] = field(default_factory=dict)  # asked, accepted
    asked_dead: set[str] = field(default_factory=set)

    def take(self, line: str) -> None:
        """What a consumer says."""
        what, start_s, end_s, names = json.loads(line)
        for name in names:
            if what == "got":
                self.got.setdefault(name, []).append((start_s, end_s))
            elif what == "acked":
                self.acked.setdefault(name, (start_s, end_s))
            else:
                self.asked_dead.add(name)


def violations(seen: Seen, dead: Counter[str]) -> Iterator[str]:
    """What was promised and not kept."""
    for name in sorted(seen.stored - seen.got.keys() - dead.keys() - seen.hidden):
        yield f"{name} is lost"
    for name in sorted(seen.hidden & seen.got.keys()):
        yield f"{name} was delivered, and never committed"
    for name, (_, accepted_s) in seen.acked.items():
        if any(start_s > accepted_s for start_s, _ in seen.got[name]):
            yield f"{name} was acked and delivered again"
    for name, count in dead.items():
        if count > 1:
            yield f"{name} is a dead letter {count} times"
        if name in seen.acked:
            yield f"{name} was acked and is a dead letter"
    given_up = {name for name in seen.stored if name.startswith(_DEAD) and "good" not in name}
    for name in sorted(given_up - dead.keys()):
        yield f"{name} is no dead letter"
    yield from _out_of_order(seen)


def _out_of_order(seen: Seen) -> Iterator[str]:
    """What was given before the one before it was done, but for what came with that in one receive, when it came again."""
    first: dict[tuple[str, int], tuple[tuple[float, float], str]] = {}
    for name, receives in seen.got.items():
        topic, key, number = name.split("/")
        if topic == ORDERED:
            first[key, int(number)] = min(receives, key=lambda receive: receive[1]), name
    before: dict[str, tuple[float, str]] = {}
    for (key, _), (receive, name) in sorted(first.items()):
        got_s = receive[1]
        if key in before:
            earlier_s, earlier = before[key]
            was_done = earlier not in seen.acked or seen.acked[earlier][0] <= got_s or receive in seen.got[earlier]
            if earlier_s > got_s or not was_done:
                yield f"{name} was delivered before {earlier} was done"
        before[key] = got_s, name


class Sender(threading.Thread):
    """Sends to one topic, one message after the other; half of them over gRPC."""

    def __init__(self, cluster: Cluster, topic: str, seen: Seen, pause_s: float, seed: str) -> None:
        super().__init__(name=f"sender to {topic}", daemon=True)
        self._admin = AdminClient(cluster.controller_addresses, timeout_ms=2000, identity=cluster.identity)
        self._channels = [
            grpc.insecure_channel(f"ipv4:{address}", [("grpc.enable_retries", 0)]) for address in cluster.grpc_addresses
        ]
        self._topic = topic
        self._seen = seen
        self._pause_s = pause_s
        self._rng = random.Random(f"{seed} {topic}")
        self._stopping = threading.Event()

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        number = 0
        while not self._stopping.wait(self._pause_s):
            kind = self._kind(number)
            name = f"{self._topic}/{kind}/{number}"
            number += 1
            try:
                self._send(name, kind, number)
            except (LogboomError, grpc.RpcError):
                self._seen.unknown.add(name)
                if self._topic == "SoakTransactions" and not kind.startswith("commit"):
                    self._seen.hidden.add(name)
        for channel in self._channels:
            channel.close()

    def _kind(self, number: int) -> str:
        """A key for what is in order, the fate of a transaction, or whether a message can be handled."""
        if self._topic == ORDERED:
            return f"k{number % 12}"
        if self._topic == "SoakTransactions":
            return self._rng.choice(("commit", "commit", "rollback", "open"))
        return self._rng.choice(("good", "poison", "letter")) if self._topic == _DEAD else "good"

    def _send(self, name: str, kind: str, number: int) -> None:
        over_grpc = self._topic == "SoakPriority" or (self._topic != "SoakDelayed" and number % 2 == 0)
        send = self._send_grpc if over_grpc else self._send_remoting
        if self._topic != "SoakTransactions":
            send(name, kind)
            self._seen.stored.add(name)
            return
        if kind != "commit":
            self._seen.hidden.add(name)
        send(name, kind)
        if kind == "commit":
            self._seen.stored.add(name)

    def _send_remoting(self, name: str, kind: str) -> None:
        properties = {"DELAY": "2"} if self._topic == "SoakDelayed" else {}
        is_transaction = self._topic == "SoakTransactions"
        sent = self._admin.send(
            self._topic,
            name.encode(),
            properties=properties,
            message_group=kind if self._topic == ORDERED else "",
            transaction=is_transaction,
        )
        if is_transaction and kind != "open":
            self._admin.end_transaction(self._topic, sent, commit=kind == "commit")

    def _send_grpc(self, name: str, kind: str) -> None:
        message = definition.Message(body=name.encode())
        message.topic.name = self._topic
        system = message.system_properties
        system.message_id = f"01{self._rng.getrandbits(128):032X}"
        system.message_type = definition.MessageType.Value(_TYPES.get(self._topic, "NORMAL"))
        if self._topic == ORDERED:
            system.message_group = kind
        elif self._topic == "SoakPriority":
            system.priority = self._rng.randrange(_QUEUES)
        channel = self._rng.choice(self._channels)
        sent = self._call(channel, "SendMessage", service.SendMessageRequest(messages=[message]))
        if self._topic == "SoakTransactions" and kind != "open":
            end = service.EndTransactionRequest(
                message_id=sent.entries[0].message_id, transaction_id=sent.entries[0].transaction_id
            )
            end.topic.name = self._topic
            end.resolution = definition.TransactionResolution.Value(kind.upper())
            self._call(channel, "EndTransaction", end)

    def _call(
        self, channel: grpc.Channel, method: str, request: service.SendMessageRequest
    ) -> service.SendMessageResponse:
        call = channel.unary_unary(
            f"{_PATH}{method}", type(request).SerializeToString, getattr(service, f"{method}Response").FromString
        )
        headers = (("x-mq-client-id", self.name.replace(" ", "-")), ("x-mq-language", "PYTHON"))
        answer = call(request, timeout=5, metadata=headers)
        if answer.status.code != definition.Code.Value("OK"):
            raise RequestError(answer.status.code, answer.status.message)
        return answer


class Consumer:
    """A consuming process, started again after each death, with another seed."""

    def __init__(self, cluster: Cluster, name: str, seen: Seen) -> None:
        self._words = [",".join(cluster.broker_addresses), ",".join(cluster.grpc_addresses)]
        self._name = name
        self._seen = seen
        self._log = cluster.data / "logs" / f"{name}.log"
        self._lives = 0
        self._process: subprocess.Popen[str] | None = None
        self._listener: threading.Thread | None = None

    def start(self) -> None:
        self._lives += 1
        words = [sys.executable, "-m", "tests.bench.pop_soak_consumer", f"{self._name}-{self._lives}", *self._words]
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self._listener = threading.Thread(target=self._listen, args=(self._process,), daemon=True)
        self._listener.start()

    def kill(self) -> None:
        assert self._process is not None
        assert self._listener is not None
        if self._process.poll() is not None:
            raise LogboomError(f"a consumer ended by itself:\n{self._log.read_text()[-3000:]}")
        self._process.kill()
        self._process.wait()
        self._listener.join(10)

    def calm(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write("calm\n")
        self._process.stdin.flush()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.endswith("\n"):  # the last line of one that was killed may be cut
                self._seen.take(line)


def run(minutes: float, seed: str) -> bool:
    """One soak; whether everything was kept. Prints what was."""
    directory = Path(tempfile.mkdtemp(prefix="bench"))
    try:
        with Cluster(directory, broker_settings=_SETTINGS) as cluster:
            cluster.start()
            for topic in TOPICS:
                kind = _TYPES.get(topic, "NORMAL")
                call_until(partial(cluster.admin.create_topic, topic, _QUEUES, kind))
                retries = 2 if topic == _DEAD else 10_000
                cluster.admin.create_group(group_of(topic), fifo=topic == ORDERED, retry_max_times=retries)
            eventually("the topics' routes", lambda: all(map(cluster.admin.queue_offsets, TOPICS)))
            return _soak(cluster, minutes * 60, seed)
    finally:
        shutil.rmtree(directory)


def _soak(cluster: Cluster, seconds: float, seed: str) -> bool:
    seen, rng = Seen(), random.Random(seed)
    consumers = [Consumer(cluster, f"{seed}-{number}", seen) for number in range(_CONSUMERS)]
    senders = [Sender(cluster, topic, seen, 0.05, seed) for topic in TOPICS]
    try:
        for consumer in consumers:
            consumer.start()
        for sender in senders:
            sender.start()
        readings = _trouble(cluster, consumers, seconds, rng)
        for sender in senders:
            sender.stop()
        for sender in senders:
            sender.join(30)
        for consumer in consumers:
            consumer.calm()
        left = _wait_until_consumed(cluster)
    finally:
        for consumer in consumers:
            consumer.kill()
    dead: Counter[str] = Counter()
    for topic in TOPICS:
        dead.update(_dead_letters(cluster, topic))
    found = [*violations(seen, dead), *left, *_grown(readings)]
    for process in cluster.processes:
        if "Traceback" in process.log_text():
            found.append(f"{process.name} logged an exception:\n{process.log_text()[-3000:]}")
    _tell(seen, dead, readings, found)
    return not found


def _trouble(
    cluster: Cluster, consumers: list[Consumer], seconds: float, rng: random.Random
) -> dict[str, list[tuple[float, float]]]:
    """Kill consumers and masters for so long; each broker's own memory (part of the time, MB)."""
    began_s = time.monotonic()
    readings: dict[str, list[tuple[float, float]]] = {process.name: [] for process in cluster.brokers}
    kills = list(_KILLS)
    next_death_s = began_s + rng.expovariate(1 / _CONSUMER_LIVES_S)
    while (part := (time.monotonic() - began_s) / seconds) < 1:
        time.sleep(min(2.0, seconds / 20))
        if kills and part >= kills[0]:
            del kills[0]
            master = cluster.master()
            cluster.brokers[master].kill()
            eventually("another master", partial(_is_another, cluster, master))
            cluster.brokers[master].start()
        if time.monotonic() >= next_death_s:
            next_death_s = time.monotonic() + rng.expovariate(1 / _CONSUMER_LIVES_S)
            victim = rng.choice(consumers)
            victim.kill()
            victim.start()
        for process in cluster.brokers:
            if process.is_running:
                readings[process.name].append((part, memory_of(process.pid).anonymous_mb))
    return readings


def _is_another(cluster: Cluster, before: int) -> bool:
    return cluster.master() != before


def _grown(readings: Mapping[str, list[tuple[float, float]]]) -> Iterator[str]:
    """The brokers whose memory grew from the first to the last of the three ninths at the end."""
    for name, found in readings.items():
        early, late = ([own_mb for part, own_mb in found if start <= part < start + 1 / 9] for start in (6 / 9, 8 / 9))
        if early and late:
            before_mb, after_mb = statistics.median(early), statistics.median(late)
            if after_mb > before_mb * (1 + _MOST_CHANGE) + _SLACK_MB:
                yield f"{name} had {before_mb:.1f} MB of its own, then {after_mb:.1f} MB"


def _wait_until_consumed(cluster: Cluster) -> list[str]:
    """The queues that lag or hold messages when the consumers had time enough."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while (left := _left(cluster)) and time.monotonic() < deadline_s:
        time.sleep(0.5)
    return left


def _left(cluster: Cluster) -> list[str]:
    """What is in flight or was not taken; consumers' own topics and the copies for them alike."""
    try:
        state = document(cluster.admin.broker_state(cluster.broker_addresses[cluster.master()]))
        high = {
            (topic, each.queue_id): each.max_offset for topic in TOPICS for each in cluster.admin.queue_offsets(topic)
        }
    except LogboomError as error:
        return [str(error)]
    return [
        f"{group['name']} has {queue} of {topic['topic']} left"
        for group in state["groups"]
        for topic in group["topics"]
        for queue in topic["queues"]
        if queue["inFlight"] > 0 or queue["consumerOffset"] < high.get((topic["topic"], queue["queueId"]), 0)
    ]


def _dead_letters(cluster: Cluster, topic: str) -> Iterator[str]:
    """The names of a topic's dead letters."""
    name = dead_letter_topic_of(group_of(topic))
    if cluster.admin.topic_config(name):
        for queues in cluster.admin.queue_offsets(name):
            for record in read_queue(cluster.admin, name, queues.queue_id):
                yield record.body.decode()


def _tell(seen: Seen, dead: Counter[str], readings: Mapping[str, list[tuple[float, float]]], found: list[str]) -> None:
    deliveries = sum(map(len, seen.got.values()))
    print(f"stored {len(seen.stored)}, unknown {len(seen.unknown)}, rolled back or left open {len(seen.hidden)}")
    for what, names in (("stored", seen.stored), ("unknown", seen.unknown)):
        print(f"{what}: {dict(Counter(name.split('/')[0] for name in names))}")
    print(f"delivered {len(seen.got)} in {deliveries} deliveries, acked {len(seen.acked)}, dead letters {len(dead)}")
    for name, of_broker in readings.items():
        print(f"{name}: own MB {' '.join(f'{own_mb:.1f}' for _, own_mb in of_broker[:: max(1, len(of_broker) // 12)])}")
    print("\n".join(found[:40]) or "everything was kept")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30, help="how long (%(default)s)")
    parser.add_argument("--seed", default="1", help="of what consumers and senders do (%(default)s)")
    options = parser.parse_args()
    sys.exit(not run(options.minutes, options.seed))


if __name__ == "__main__":
    main()
