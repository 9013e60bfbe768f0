"""Orders of many customers, each a message group: sent in rounds, and received by some threads at once, which fail now and then.

Arguments: the access point, a topic, a group, a word that stands for this program, the number of customers, and which delivery
out of how many fails. For each line that it reads it sends an order of each customer; what happened it says in lines of JSON
(tests/support/ordered_deliveries.py), with the times of the machine's monotonic clock.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence

from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer

SENDERS, RECEIVERS, INVISIBLE_S = 4, 2, 10


class Orders:
    def __init__(self, access_point: str, topic: str, group: str, word: str, customers: str, failing: str) -> None:
        self._topic, self._word = topic, word
        self._customers, self._failing = int(customers), int(failing)
        self._deliveries = itertools.count(1)
        configuration = ClientConfiguration(access_point, Credentials())
        self._producer = Producer(configuration, (topic,))
        self._producer.startup()
        self._consumer = SimpleConsumer(configuration, group, {topic: FilterExpression()}, await_duration=1)
        self._consumer.startup()
        for _ in range(RECEIVERS):
            threading.Thread(target=self._receive, daemon=True).start()

    def send(self, number: int) -> None:
        senders = [threading.Thread(target=self._send, args=(part, number)) for part in range(SENDERS)]
        for each in senders:
            each.start()
        for each in senders:
            each.join()

    def _send(self, part: int, number: int) -> None:
        for customer in range(part, self._customers, SENDERS):
            message = Message()
            message.topic, message.message_group = self._topic, f"customer {customer}"
            name = f"{message.message_group}/{self._word}/{number}"
            message.body = name.encode()
            # the next order of a customer comes after this one was stored
            while not told("sent", "unsent", name, lambda message=message: self._producer.send(message)):
                time.sleep(0.05)

    def _receive(self) -> None:
        while True:
            start = time.monotonic_ns()
            try:
                received = self._consumer.receive(16, INVISIBLE_S) or ()
            except Exception:  # noqa: BLE001 - the client raises what it likes when a broker is away
                time.sleep(0.05)
                continue
            if received:
                happened("got", start, [each.body.decode() for each in received])
                self._handle(received)

    def _handle(self, received: Sequence[Message]) -> None:
        """What failed is left to come again, and so is what is behind it."""
        waiting = set()
        for each in received:
            if each.message_group in waiting:
                continue
            if next(self._deliveries) % self._failing == 0:
                waiting.add(each.message_group)
                happened("failed", time.monotonic_ns(), [each.body.decode()])
            elif not told("acked", "unacked", each.body.decode(), lambda each=each: self._consumer.ack(each)):
                waiting.add(each.message_group)


def told(what: str, otherwise: str, name: str, attempt: Callable[[], object]) -> bool:
    """Whether it went well."""
    start = time.monotonic_ns()
    try:
        attempt()
    except Exception:  # noqa: BLE001 - as above
        happened(otherwise, start, [name])
        return False
    happened(what, start, [name])
    return True


def happened(what: str, start: int, names: Sequence[str]) -> None:
    say([what, start, time.monotonic_ns(), names])


def say(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    orders = Orders(*sys.argv[1:])
    say("ready")
    for round_number, _ in enumerate(sys.stdin):
        orders.send(round_number)
    os._exit(0)
