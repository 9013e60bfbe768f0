"""Timers over time: sent by both protocols and in transactions, taken back, while masters are killed. Each comes once, on time.

    python -m tests.bench.timer_soak [--minutes N] [--seed N]

Three controllers, three brokers. Messages due between now and a few minutes ahead, most of them soon, go to several topics; one
in a hundred is taken back at a moment of its wait. Every 25 to 60 s the master is killed, or told to end, or another broker is
killed, and comes back. A reader follows the topics' queues all the time. When all that was sent is due, the queues are read from
their begin and held against what senders and the reader know:

- what was acknowledged and not taken back was delivered, and nothing was delivered twice for one place of the timer topic; a
  message that is there twice was stored twice, since its sender never heard of the first time;
- nothing was delivered before it was due, by the clock that all processes of this machine share;
- what was taken back is not there once the recall was answered;
- what a reader saw is still there, at the same place.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import grpc

from brokerd.proxy.protobuf import definition, service
from brokerd.timers.codes import PLACE, ROLL_TIMES
from remoting import codes
from remoting.client.blocking import AdminClient
from remoting.client.socket_connection import SocketConnection
from remoting.errors import LogboomError, RequestError
from tests.support.cluster import Cluster, eventually
from tests.support.workload import call_until, read_queue

_TYPES: Final = {"SoakNear": "DELAY", "SoakFar": "MIXED", "SoakBrief": "DELAY", "SoakCommitted": "TRANSACTION"}
_COMMITTED: Final = "SoakCommitted"
_QUEUES: Final = 2
# Small files of the log, short legs and little in memory, so that timers roll, and the files are asked, within minutes.
_SETTINGS: Final = (
    "store.segment_size_bytes=16777216",
    "timers.roll_window_s=40",
    "timers.near_s=5",
)
_PAUSE_S: Final = 0.03  # of a sender, between two messages
_RECALLED: Final = 0.01
_MOST_AHEAD_S: Final = 180.0
_LONGEST_S: Final = {"SoakNear": 20.0, "SoakBrief": 2.0}
_KILL_EVERY_S: Final = (25.0, 60.0)
_PATIENCE_S: Final = 120.0
_PATH: Final = "/apache.rocketmq.v2.MessagingService/"


class Delivered(NamedTuple):
    """A message in its topic: by its place in the timer topic, None when it never waited."""

    name: str
    place: int | None
    stored_ms: int
    rolls: int


@dataclass
class Known:
    """What senders and the reader learned. Names are bodies: topic, wire, number. Each is sent once."""

    due_ms: dict[str, int] = field(default_factory=dict)  # no delivery before it
    stored: set[str] = field(default_factory=set)
    hidden: set[str] = field(default_factory=set)  # of transactions that were rolled back for certain
    perhaps_recalled: set[str] = field(default_factory=set)
    recalled: set[str] = field(default_factory=set)
    seen: dict[tuple[str, int, int], str] = field(default_factory=dict)  # topic, queue, offset


def violations(known: Known, delivered: Sequence[Delivered]) -> Iterator[str]:
    """What was promised and not kept."""
    counts = Counter(each.name for each in delivered)
    for name in sorted(known.stored - known.perhaps_recalled - counts.keys()):
        yield f"{name} is lost"
    for name in sorted(known.recalled & counts.keys()):
        yield f"{name} was taken back, and delivered"
    for name in sorted(known.hidden & counts.keys()):
        yield f"{name} was rolled back, and delivered"
    for (name, place), count in Counter((each.name, each.place) for each in delivered).items():
        if count > 1 and place is not None:
            yield f"{name}, which waited at {place}, was delivered {count} times"
    for name, count in counts.items():
        if count > 1 and name in known.stored:
            yield f"{name} was sent once, and delivered {count} times"
    for each in delivered:
        early_ms = known.due_ms[each.name] - each.stored_ms if each.name in known.due_ms else 0
        if each.name not in known.due_ms:
            yield f"{each.name} was delivered, and nobody sent it"
        elif early_ms > 0:
            yield f"{each.name} came {early_ms} ms early"


def changed(known: Known, queues: Mapping[tuple[str, int], Mapping[int, str]]) -> Iterator[str]:
    """What a reader saw and is not there any more."""
    for (topic, queue_id, offset), name in known.seen.items():
        now = queues.get((topic, queue_id), {}).get(offset)
        if now != name:
            yield f"{name} was read at {offset} of queue {queue_id} of {topic}, where {now or 'nothing'} is now"


class Sender(threading.Thread):
    """Sends to one topic over one protocol, and takes some of it back."""

    def __init__(self, cluster: Cluster, topic: str, wire: str, known: Known, end_s: float, seed: str) -> None:
        super().__init__(name=f"{wire} sender to {topic}", daemon=True)
        self._admin = AdminClient(cluster.controller_addresses, timeout_ms=2000, identity=cluster.identity)
        self._identity = cluster.identity
        self._channels = [
            grpc.insecure_channel(f"ipv4:{address}", [("grpc.enable_retries", 0)]) for address in cluster.grpc_addresses
        ]
        self._topic = topic
        self._wire = wire
        self._known = known
        self._end_s = end_s
        self._rng = random.Random(f"{seed} {topic} {wire}")
        self._recalls: list[tuple[float, str, str]] = []  # when, name, handle
        self.problem = ""

    def run(self) -> None:
        try:
            number = 0
            while time.monotonic() < self._end_s:
                time.sleep(self._rng.expovariate(1 / _PAUSE_S))
                self._send(f"{self._topic}/{self._wire}/{number}")
                number += 1
                self._recall_due()
            while self._recalls:
                time.sleep(_PAUSE_S)
                self._recall_due()
        except Exception as error:
            self.problem = f"{self.name} ended: {error!r}"
            raise
        finally:
            for channel in self._channels:
                channel.close()

    def _ahead_ms(self) -> int:
        """Most are due soon; none when all is to be over."""
        longest_s = _LONGEST_S.get(self._topic, _MOST_AHEAD_S)
        ahead_s = self._rng.choice((0.0, self._rng.uniform(0, 2), longest_s * self._rng.random() ** 3))
        return int(1000 * ahead_s)

    def _send(self, name: str) -> None:
        ahead_ms = self._ahead_ms()
        self._known.due_ms[name] = _wall_ms() + ahead_ms
        is_committed = self._topic != _COMMITTED or self._rng.random() < 0.8
        try:
            send = self._send_grpc if self._wire == "grpc" else self._send_remoting
            handle = send(name, ahead_ms, is_committed)
        except (LogboomError, grpc.RpcError):
            return
        if not is_committed:
            self._known.hidden.add(name)
            return
        self._known.stored.add(name)
        if handle and self._rng.random() < _RECALLED:
            when_s = time.monotonic() + self._rng.random() * ahead_ms / 1000
            self._recalls.append((when_s, name, handle))
            self._recalls.sort()

    def _send_remoting(self, name: str, ahead_ms: int, is_committed: bool) -> str:
        """By a moment or by one of the two delays; the moment is known in seconds for one of these only."""
        kind = self._rng.choice(("TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC"))
        if kind == "TIMER_DELIVER_MS":
            value = self._known.due_ms[name]
        elif kind == "TIMER_DELAY_MS":
            value = ahead_ms
        else:
            value = ahead_ms // 1000
            self._known.due_ms[name] -= ahead_ms % 1000
        is_transaction = self._topic == _COMMITTED
        properties = {kind: str(value), "UNIQ_KEY": name.replace("/", "-")}
        sent = self._admin.send(self._topic, name.encode(), properties=properties, transaction=is_transaction)
        if is_transaction:
            self._admin.end_transaction(self._topic, sent, commit=is_committed)
        return sent.get("recallHandle", "")

    def _send_grpc(self, name: str, _ahead_ms: int, _is_committed: bool) -> str:
        message = definition.Message(body=name.encode())
        message.topic.name = self._topic
        system = message.system_properties
        system.message_id = f"01{self._rng.getrandbits(128):032X}"
        system.message_type = definition.MessageType.Value("DELAY")
        system.delivery_timestamp.FromMilliseconds(self._known.due_ms[name])
        request = service.SendMessageRequest(messages=[message])
        return str(self._call("SendMessage", request).entries[0].recall_handle)

    def _recall_due(self) -> None:
        while self._recalls and self._recalls[0][0] <= time.monotonic():
            _, name, handle = self._recalls.pop(0)
            self._known.perhaps_recalled.add(name)
            with suppress(LogboomError, grpc.RpcError):
                if self._recall(handle):
                    self._known.recalled.add(name)
                else:
                    self._known.perhaps_recalled.discard(name)

    def _recall(self, handle: str) -> bool:
        """Whether it was taken back; False when it was too late for certain."""
        try:
            if self._rng.random() < 0.5:
                request = service.RecallMessageRequest(recall_handle=handle)
                request.topic.name = self._topic
                self._call("RecallMessage", request)
            else:
                ext = {"producerGroup": "soak", "topic": self._topic, "recallHandle": handle}
                with SocketConnection(self._admin.masters()["broker-a"], identity=self._identity) as connection:
                    connection.call(codes.RECALL_MESSAGE, ext)
        except RequestError as error:
            if "delivered" in error.message:
                return False
            raise
        except KeyError as error:
            raise LogboomError("there is no master") from error
        return True

    def _call(self, method: str, request: service.SendMessageRequest) -> service.SendMessageResponse:
        channel = self._rng.choice(self._channels)
        call = channel.unary_unary(
            f"{_PATH}{method}", type(request).SerializeToString, getattr(service, f"{method}Response").FromString
        )
        headers = (("x-mq-client-id", self.name.replace(" ", "-")), ("x-mq-language", "PYTHON"))
        answer = call(request, timeout=5, metadata=headers)
        if answer.status.code != definition.Code.Value("OK"):
            raise RequestError(answer.status.code, answer.status.message)
        return answer


class Reader(threading.Thread):
    """Reads on in all queues, and remembers what stood where."""

    def __init__(self, cluster: Cluster, known: Known) -> None:
        super().__init__(name="reader", daemon=True)
        self._admin = AdminClient(cluster.controller_addresses, timeout_ms=2000, identity=cluster.identity)
        self._known = known
        self._next = {(topic, queue): 0 for topic in _TYPES for queue in range(_QUEUES)}
        self._stopping = threading.Event()

    def stop(self) -> None:
        self._stopping.set()
        self.join(30)

    def run(self) -> None:
        while not self._stopping.wait(0.2):
            for topic, queue in self._next:
                with suppress(LogboomError):
                    self._read(topic, queue)

    def _read(self, topic: str, queue: int) -> None:
        found = self._admin.pull(topic, "broker-a", queue, self._next[topic, queue])
        for record in found.records:
            self._known.seen[topic, queue, record.queue_offset] = record.body.decode()
            self._next[topic, queue] = record.queue_offset + 1


class Trouble:
    """Kills, and what came of them."""

    def __init__(self, cluster: Cluster, seed: str) -> None:
        self._cluster = cluster
        self._rng = random.Random(f"{seed} trouble")
        self.did: Counter[str] = Counter()
        self.masters: list[int] = [cluster.master()]

    def run(self, end_s: float) -> None:
        while (wait_s := min(self._rng.uniform(*_KILL_EVERY_S), end_s - time.monotonic())) > 0:
            time.sleep(wait_s)
            self._once(self._rng.choice(("master killed", "master killed", "master told to end", "replica killed")))

    def _once(self, what: str) -> None:
        cluster, master = self._cluster, self._cluster.master()
        victim = master if "master" in what else self._rng.choice([each for each in range(3) if each != master])
        process = cluster.brokers[victim]
        process.terminate() if "told" in what else process.kill()
        if victim == master:
            eventually("another master", lambda: cluster.master() != master)
            self.masters.append(cluster.master())
        time.sleep(self._rng.uniform(0, 5))  # what goes on without it
        process.start()
        cluster.wait_in_sync(3, 120)
        self.did[what] += 1


def run(minutes: float, seed: str) -> bool:
    """One soak; whether everything was kept. Prints what was."""
    directory = Path(tempfile.mkdtemp(prefix="bench"))
    is_kept = False
    try:
        with Cluster(directory, broker_settings=_SETTINGS) as cluster:
            cluster.start()
            for topic, kind in _TYPES.items():
                call_until(partial(cluster.admin.create_topic, topic, _QUEUES, kind))
            eventually("the topics' routes", lambda: all(map(cluster.admin.queue_offsets, _TYPES)))
            is_kept = _soak(cluster, minutes * 60, seed)
        return is_kept
    finally:
        if is_kept:
            shutil.rmtree(directory)
        else:
            print(f"what the processes left is in {directory}")


def _soak(cluster: Cluster, seconds: float, seed: str) -> bool:
    known, end_s = Known(), time.monotonic() + seconds
    wires = [
        (topic, wire) for topic in _TYPES for wire in ("grpc", "remoting") if (topic, wire) != (_COMMITTED, "grpc")
    ]
    senders = [Sender(cluster, topic, wire, known, end_s, seed) for topic, wire in wires]
    reader, trouble = Reader(cluster, known), Trouble(cluster, seed)
    for thread in (reader, *senders):
        thread.start()
    trouble.run(end_s)
    for sender in senders:
        sender.join(_MOST_AHEAD_S + 60)
    time.sleep(max(0.0, (max(known.due_ms.values()) - _wall_ms()) / 1000))
    with suppress(AssertionError):  # what has not come then is told as lost
        eventually("all that was sent", lambda: not _missing(cluster, known), _PATIENCE_S)
    reader.stop()
    queues, delivered = _read_all(cluster)
    found = [
        *violations(known, delivered),
        *changed(known, queues),
        *(each.problem for each in senders if each.problem),
    ]
    if not trouble.did["master killed"]:
        found.append("no master was killed: this proves nothing")
    for process in cluster.processes:
        if "Traceback" in process.log_text():
            found.append(f"{process.name} logged an exception:\n{process.log_text()[-3000:]}")
    _tell(known, delivered, trouble, found)
    return not found


def _missing(cluster: Cluster, known: Known) -> set[str]:
    with suppress(LogboomError):
        return known.stored - known.perhaps_recalled - {each.name for each in _read_all(cluster)[1]}
    return known.stored


def _read_all(cluster: Cluster) -> tuple[dict[tuple[str, int], dict[int, str]], list[Delivered]]:
    """The topics' queues from their begin: what stands where, and each message."""
    queues, delivered = {}, []
    for topic in _TYPES:
        for queue in range(_QUEUES):
            records = read_queue(cluster.admin, topic, queue)
            queues[topic, queue] = {each.queue_offset: each.body.decode() for each in records}
            for each in records:
                properties = each.property_map()
                place = properties.get(PLACE)
                delivered.append(
                    Delivered(
                        each.body.decode(),
                        None if place is None else int(place),
                        each.store_timestamp_ms,
                        int(properties.get(ROLL_TIMES, 0)),
                    )
                )
    return queues, delivered


def _tell(known: Known, delivered: Sequence[Delivered], trouble: Trouble, found: Sequence[str]) -> None:
    late_ms = sorted(each.stored_ms - known.due_ms[each.name] for each in delivered if each.place is not None)
    share = {f"p{part}": late_ms[len(late_ms) * part // 100] for part in (50, 90, 99)} if late_ms else {}
    print(
        f"late (ms): {share}, most {late_ms[-1] if late_ms else None}; by topic: "
        f"{dict(Counter(each.name.split('/')[0] for each in delivered))}"
    )
    print(f"masters: {trouble.masters}; read while this went on: {len(known.seen)}")
    unknown = len(known.due_ms) - len(known.stored) - len(known.hidden)
    stored_twice = sum(count > 1 for count in Counter(each.name for each in delivered).values())
    print("\n".join(found[:40]))
    print(
        f"{len(known.due_ms)} sent, {len(known.stored)} acknowledged, {unknown} unknown, {len(known.hidden)} rolled back, "
        f"{len(known.recalled)} taken back of {len(known.perhaps_recalled)} asked; {len(delivered)} delivered, "
        f"{len(late_ms)} of them waited, {sum(each.rolls > 0 for each in delivered)} rolled, {stored_twice} stored twice; "
        f"{', '.join(f'{count} times {what}' for what, count in sorted(trouble.did.items()))}; "
        f"{len(found)} promises broken"
    )


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30, help="how long (%(default)s)")
    parser.add_argument("--seed", default="1", help="of what senders and trouble do (%(default)s)")
    options = parser.parse_args()
    sys.exit(not run(options.minutes, options.seed))


if __name__ == "__main__":
    main()
