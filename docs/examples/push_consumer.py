"""Receive and acknowledge what `producer.py` sent, being called for each message: the official client's PushConsumer.

    python docs/examples/push_consumer.py --topic demo --count 10000

Stops when so many different messages were received, or when nothing new came for a while. Exit code 0: all were received.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections import Counter

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    PushConsumer,
)


class Counting(MessageListener):
    """Counts the messages by their bodies; called by many threads."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._news = threading.Condition()
        self.seen: Counter[bytes] = Counter()

    def consume(self, message: Message) -> ConsumeResult:
        number = message.body.strip()
        if number.isdigit():  # others may send to the topic, too
            with self._news:
                self.seen[number] += 1
                self._news.notify()
        return ConsumeResult.SUCCESS  # the client acknowledges the message now

    def wait(self, patience: float) -> None:
        """Return when all have come, or when nothing new came for so many seconds."""
        with self._news:
            while (before := len(self.seen)) < self._count:
                if not self._news.wait_for(lambda before=before: len(self.seen) > before, patience):
                    return


def main() -> int:
    parser = argparse.ArgumentParser(description="Receive and acknowledge numbered messages with a PushConsumer.")
    parser.add_argument("--endpoints", default="127.0.0.1:8081", help="gRPC endpoints, separated by semicolons")
    parser.add_argument("--topic", default="demo")
    parser.add_argument("--group", default="demo-push", help="consumer group")
    parser.add_argument("--count", type=int, default=10_000, help="how many different messages to wait for")
    parser.add_argument(
        "--patience", type=float, default=60, help="seconds without a new message after which to give up"
    )
    options = parser.parse_args()

    counting = Counting(options.count)
    consumer = PushConsumer(
        ClientConfiguration(options.endpoints, Credentials()),
        options.group,
        counting,
        {options.topic: FilterExpression()},
    )
    began = time.monotonic()
    consumer.startup()
    try:
        counting.wait(options.patience)
    finally:
        consumer.shutdown()
    seconds = time.monotonic() - began
    repeated = sum(times - 1 for times in counting.seen.values())
    print(
        f"received {len(counting.seen)} of {options.count} different messages in {seconds:.1f} s "
        f"({len(counting.seen) / seconds:.0f} per second), repeated {repeated}"
    )
    return 0 if len(counting.seen) >= options.count else 1


if __name__ == "__main__":
    sys.exit(main())
