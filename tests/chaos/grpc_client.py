"""A program that uses the cluster as users do, with the official client: it sends, receives and acks until told to stop.

    python -m tests.chaos.grpc_client ENDPOINTS TOPIC GROUP

Every line that it prints is one operation: [kind, start, end, outcome, message, detail, queue, offset]. "receive" lines name a
message each. It reads lines too: "pause" (it says "paused" when nothing is under way any more), "go on", and "drain" to end
sending. It ends when its standard input does.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Final

from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer

from tests.chaos.history import body_of, message_name, name_in

_NAME: Final = "grpc"
_INVISIBLE_S: Final = 10
_BATCH: Final = 16
_PAUSE_S: Final = 0.01


def say(
    kind: str,
    start_s: float,
    outcome: str,
    message: str = "",
    detail: str = "",
    queue_id: int = -1,
    offset: int = -1,
) -> None:
    sys.stdout.write(json.dumps([kind, start_s, time.monotonic(), outcome, message, detail, queue_id, offset]) + "\n")
    sys.stdout.flush()


class Gate:
    """Lets workers through while it is open; knows when all of them wait before it."""

    def __init__(self, workers: int) -> None:
        self._open = True
        self._workers = workers
        self._waiting = 0
        self._changed = threading.Condition()

    def leave(self) -> None:
        """A worker has ended."""
        with self._changed:
            self._workers -= 1
            self._changed.notify_all()

    def pass_through(self) -> None:
        with self._changed:
            self._waiting += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._open)
            self._waiting -= 1

    def close_and_wait(self) -> None:
        with self._changed:
            self._open = False
            self._changed.wait_for(lambda: self._waiting >= self._workers)

    def open(self) -> None:
        with self._changed:
            self._open = True
            self._changed.notify_all()


def send(producer: Producer, topic: str, draining: threading.Event, gate: Gate) -> None:
    number = 0
    while not draining.is_set():
        gate.pass_through()
        name = message_name(_NAME, "grpck0", number)
        number += 1
        message = Message()
        message.topic, message.body, message.keys = topic, body_of(name), name
        start_s = time.monotonic()
        try:
            receipt = producer.send(message)
        except Exception as error:  # noqa: BLE001 - the client raises what it likes; whatever it is, nobody knows what was stored
            say("send", start_s, "unknown", name, f"{type(error).__name__}: {error}"[:200])
        else:
            say("send", start_s, "ok", name, "", receipt.message_queue.message_queue0().id, receipt.offset)
        time.sleep(_PAUSE_S)
    gate.leave()


def receive(consumer: SimpleConsumer, stopping: threading.Event, gate: Gate) -> None:
    while not stopping.is_set():
        gate.pass_through()
        start_s = time.monotonic()
        try:
            messages = consumer.receive(_BATCH, _INVISIBLE_S)
        except Exception as error:  # noqa: BLE001 - as above
            say("pop", start_s, "unknown", "", f"{type(error).__name__}: {error}"[:200])
            time.sleep(_PAUSE_S)
            continue
        for message in messages or ():
            name = name_in(message.body)
            say("receive", start_s, "ok" if message.body == body_of(name) else "damaged", name)
        for message in messages or ():
            start_s = time.monotonic()
            try:
                consumer.ack(message)
            except Exception as error:  # noqa: BLE001 - as above
                say("ack", start_s, "unknown", name_in(message.body), f"{type(error).__name__}: {error}"[:200])
            else:
                say("ack", start_s, "ok", name_in(message.body))


def main(endpoints: str, topic: str, group: str) -> None:
    configuration = ClientConfiguration(endpoints, Credentials(), request_timeout=2)
    producer = Producer(configuration, (topic,))
    producer.startup()
    consumer = SimpleConsumer(configuration, group, {topic: FilterExpression()}, await_duration=4)
    consumer.startup()
    draining, stopping, gate = threading.Event(), threading.Event(), Gate(workers=2)
    threads = [
        threading.Thread(target=send, args=(producer, topic, draining, gate), daemon=True),
        threading.Thread(target=receive, args=(consumer, stopping, gate), daemon=True),
    ]
    for thread in threads:
        thread.start()
    say("ready", time.monotonic(), "ok")
    for line in sys.stdin:
        order = line.strip()
        if order == "drain":
            draining.set()
        elif order == "pause":
            gate.close_and_wait()
            say("paused", time.monotonic(), "ok")
        elif order == "go on":
            gate.open()
    draining.set()
    stopping.set()
    gate.open()
    for thread in threads:
        thread.join(30)
    say("end", time.monotonic(), "ok")


if __name__ == "__main__":
    main(*sys.argv[1:])
