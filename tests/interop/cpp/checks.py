"""Runs every feature check with the C++ client, librocketmq, through the binding that ships it.

Prints one line for each check: "passed NAME" or "failed NAME: why". Arguments: the name servers, a word that all topics and
groups begin with, and the master's address. Each check's topic, which is named after it, has to be there. With ACCESS_KEY and
SECRET_KEY in the environment clients sign. The library is looked for on PYTHONPATH.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rocketmq.client import Message, Producer, PullConsumer, PushConsumer, RecvMessage, SendStatus
from rocketmq.ffi import MessageModel, dll

PATIENCE_S = 60
AT_ONCE = 6
CONSUMED, LATER = 0, 1
CHECKS: dict[str, Callable[[Place], None]] = {}

_instances = iter(range(1, 1000))


def check(function: Callable[[Place], None]) -> Callable[[Place], None]:
    CHECKS[function.__name__.replace("_", "-")] = function
    return function


class Received:
    """What a consumer got: (body, queue id, queue offset, attempts before), and what it answers."""

    def __init__(self, answer: Callable[[Any], int] = lambda message: CONSUMED) -> None:
        self.messages: list[tuple[str, int, int, int]] = []
        self.extras: list[tuple[bytes, bytes, int, int]] = []  # tags, keys, born, stored
        self.lock = threading.Lock()
        self.answer = answer

    def take(self, message: Any) -> int:
        with self.lock:
            body = message.body.decode()
            self.messages.append((body, message.queue_id, message.queue_offset, message.reconsume_times))
            self.extras.append((message.tags, message.keys, message.born_timestamp, message.store_timestamp))
        return self.answer(message)

    def bodies(self, count: int) -> list[str]:
        """Wait for so many; their bodies, sorted."""
        until(f"{count} messages", lambda: len(self.messages) >= count)
        with self.lock:
            return sorted(each[0] for each in self.messages)


class Place:
    """What one check works with."""

    def __init__(self, name: str) -> None:
        self.name_servers, self.prefix, self.master = sys.argv[1:4]
        self.topic = f"{self.prefix}-{name}"
        self._producer: Producer | None = None
        self.kept: list[Any] = []

    def producer(self) -> Producer:
        if self._producer is None:
            self._producer = Producer(f"{self.topic}-producer", timeout=10_000)
            self._producer.set_namesrv_addr(self.name_servers)
            sign(self._producer)
            dll.SetProducerInstanceName(self._producer._handle, f"{self.prefix}{next(_instances)}".encode())
            self._producer.start()
            self.kept.append(self._producer)
        return self._producer

    def message(self, number: int, tags: str = "", keys: str = "", delay_level: int = 0) -> Message:
        made = Message(self.topic)
        made.set_body(str(number))
        if tags:
            made.set_tags(tags)
        if keys:
            made.set_keys(keys)
        if delay_level:
            made.set_delay_time_level(delay_level)
        return made

    def send(self, numbers: range) -> None:
        for number in numbers:
            sent(self.producer().send_sync(self.message(number)))

    def receive(
        self, expression: str = "*", answer: Callable[[Any], int] = lambda message: CONSUMED, **how: Any
    ) -> Received:
        received = Received(answer)
        self.start(received, expression, **how)
        return received

    def start(self, received: Received, expression: str = "*", **how: Any) -> PushConsumer:
        consumer = PushConsumer(self.topic, **how)
        consumer.set_namesrv_addr(self.name_servers)
        sign(consumer)
        consumer.set_instance_name(f"{self.prefix}{next(_instances)}")
        # Not the binding's subscribe, which loses what its callback answers.
        assert dll.Subscribe(consumer._handle, self.topic.encode(), expression.encode()) == 0, "it cannot subscribe"
        consumer._register_callback(lambda _, message: received.take(RecvMessage(message)))
        consumer.start()
        self.kept.append(consumer)
        return consumer

    def reset(self) -> bool:
        """Let the group begin its topic again, which the client has no call for; False when the broker cannot yet."""
        fields = {"topic": self.topic, "group": self.topic, "timestamp": "0", "isForce": "true"}
        request = {"code": 222, "language": "CPP", "version": 333, "opaque": 1, "flag": 0, "extFields": fields}
        header = json.dumps(request).encode()
        host, port = self.master.rsplit(":", 1)
        with socket.create_connection((host, int(port))) as connection, connection.makefile("rb") as answers:
            connection.sendall(struct.pack(">ii", 4 + len(header), len(header)) + header)
            answers.read(4)
            (length,) = struct.unpack(">i", answers.read(4))
            return bool(json.loads(answers.read(length & 0xFFFFFF))["code"] == 0)

    def close(self) -> None:
        while self.kept:
            self.kept.pop().shutdown()


def sign(client: Any) -> None:
    if key := os.environ.get("ACCESS_KEY"):
        # without a channel its background requests go unsigned
        client.set_session_credentials(key, os.environ["SECRET_KEY"], "ALIYUN")


def sent(result: Any) -> Any:
    equal(SendStatus.OK, result.status, "send status")
    return result


def equal(expected: object, actual: object, what: str) -> None:
    assert expected == actual, f"{what}: expected {expected}, got {actual}"


def until(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S} s: {what}"
        time.sleep(0.02)


def texts(numbers: range) -> list[str]:
    return sorted(map(str, numbers))


@check
def retry(place: Place) -> None:
    received = place.receive(answer=lambda message: LATER if message.reconsume_times == 0 else CONSUMED)
    place.send(range(1))
    equal(["0", "0"], received.bodies(2), "bodies")
    equal([0, 1], [each[3] for each in received.messages], "attempts before")


@check
def delay_level(place: Place) -> None:
    received = place.receive()
    sent(place.producer().send_sync(place.message(1, delay_level=2)))
    received.bodies(1)
    _, _, born, stored = received.extras[0]
    assert stored - born >= 5000, f"it came after {stored - born} ms"


@check
def send_sync(place: Place) -> None:
    sent(place.producer().send_sync(place.message(1, "Tag", "k1 k2")))
    received = place.receive()
    equal(["1"], received.bodies(1), "bodies")
    equal((b"Tag", b"k1 k2"), received.extras[0][:2], "tag and keys")


@check
def send_async(place: Place) -> None:
    results: list[Any] = []
    for number in range(8):
        place.producer().send_async(place.message(number), results.append, results.append)
    until("eight answers", lambda: len(results) >= 8)
    for each in results:
        sent(each)
    equal(texts(range(8)), place.receive().bodies(8), "bodies")


@check
def send_oneway(place: Place) -> None:
    for number in range(8):
        place.producer().send_oneway(place.message(number))
    equal(texts(range(8)), place.receive().bodies(8), "bodies")


@check
def send_orderly(place: Place) -> None:
    for number in range(8):
        sent(place.producer().send_orderly(place.message(number), number))
    received = place.receive()
    equal(texts(range(8)), received.bodies(8), "bodies")
    equal([(str(number), number % 2) for number in range(8)], sorted(each[:2] for each in received.messages), "queues")


@check
def push_concurrent(place: Place) -> None:
    received = place.receive()
    place.send(range(40))
    equal(texts(range(40)), received.bodies(40), "bodies")


@check
def push_orderly(place: Place) -> None:
    received = place.receive(orderly=True)
    for number in range(40):
        sent(place.producer().send_orderly(place.message(number), number))
    received.bodies(40)
    for queue in range(2):
        numbers = [int(body) for body, queue_id, _, _ in received.messages if queue_id == queue]
        equal(list(range(queue, 40, 2)), numbers, f"order of queue {queue}")


@check
def push_broadcast(place: Place) -> None:
    both = [place.receive(message_model=MessageModel.BROADCASTING) for _ in range(2)]
    place.send(range(6))
    for each in both:
        equal(texts(range(6)), each.bodies(6), "bodies")


@check
def filter_tags(place: Place) -> None:
    for number in range(6):
        sent(place.producer().send_sync(place.message(number, f"tag{number}")))
    equal(["1", "4"], place.receive("tag1 || tag4").bodies(2), "bodies")


@check
def offsets_resumed(place: Place) -> None:
    place.send(range(6))
    before = Received()
    first = place.start(before)
    before.bodies(6)
    place.kept.remove(first)
    first.shutdown()
    place.send(range(6, 12))
    equal(texts(range(6, 12)), place.receive().bodies(6), "after the restart")


@check
def reset_offset(place: Place) -> None:
    place.send(range(6))
    received = place.receive()
    received.bodies(6)
    until("the reset is taken", place.reset)  # some servers need committed offsets for it
    received.bodies(12)
    place.send(range(6, 8))
    until("what is sent later", lambda: len(set(received.bodies(13))) == 8)


@check
def pull(place: Place) -> None:
    place.send(range(10))
    consumer = PullConsumer(f"{place.topic}-pull")
    consumer.set_namesrv_addr(place.name_servers)
    sign(consumer)
    consumer.start()
    place.kept.append(consumer)
    found: list[str] = []

    def complete() -> bool:
        found.extend(each.body.decode() for each in consumer.pull(place.topic))
        return len(found) >= 10

    until("ten messages", complete)
    equal(texts(range(10)), sorted(found), "bodies")


def run(name: str) -> None:
    place, began, failure = Place(name), time.monotonic(), ""
    try:
        CHECKS[name](place)
    except Exception as error:  # noqa: BLE001 - whatever goes wrong is what the line tells
        failure = " ".join(f"{type(error).__name__} {error}".split())
    took = f"({1000 * (time.monotonic() - began):.0f} ms)"
    print(f"failed {name}: {failure} {took}" if failure else f"passed {name} {took}", flush=True)
    place.close()


with ThreadPoolExecutor(AT_ONCE) as workers:
    list(workers.map(run, CHECKS))
os._exit(0)  # the library's own threads end with the process
