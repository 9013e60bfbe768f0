"""Receive and acknowledge what `producer.py` sent, asking for it: the official client's SimpleConsumer.

    python docs/examples/simple_consumer.py --topic demo --count 10000

Stops when so many different messages were received, or when nothing new came for a while. Exit code 0: all were received.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, SimpleConsumer

BATCH = 32
INVISIBLE_S = 30
LONG_POLL_S = 5


def main() -> int:
    parser = argparse.ArgumentParser(description="Receive and acknowledge numbered messages with a SimpleConsumer.")
    parser.add_argument("--endpoints", default="127.0.0.1:8081", help="gRPC endpoints, separated by semicolons")
    parser.add_argument("--topic", default="demo")
    parser.add_argument("--group", default="demo-simple", help="consumer group")
    parser.add_argument("--count", type=int, default=10_000, help="how many different messages to wait for")
    parser.add_argument(
        "--patience", type=float, default=60, help="seconds without a new message after which to give up"
    )
    options = parser.parse_args()

    consumer = SimpleConsumer(
        ClientConfiguration(options.endpoints, Credentials()),
        options.group,
        {options.topic: FilterExpression()},
        await_duration=LONG_POLL_S,
    )
    consumer.startup()
    began = progressed = time.monotonic()
    seen: Counter[bytes] = Counter()
    acknowledged = 0
    try:
        with ThreadPoolExecutor(max_workers=8) as pool:
            while len(seen) < options.count and time.monotonic() - progressed < options.patience:
                try:
                    messages = consumer.receive(BATCH, INVISIBLE_S) or []
                except Exception as error:  # the cluster may be electing a master; what was taken becomes visible again
                    print(f"receive is tried again: {error}", file=sys.stderr)
                    time.sleep(0.05)
                    continue
                for number in (message.body.strip() for message in messages):
                    if number.isdigit():  # others may send to the topic, too
                        progressed = progressed if number in seen else time.monotonic()
                        seen[number] += 1
                acknowledged += sum(pool.map(lambda message: acknowledge(consumer, message), messages))
    finally:
        consumer.shutdown()
    seconds = time.monotonic() - began
    repeated = sum(times - 1 for times in seen.values())
    print(
        f"received {len(seen)} of {options.count} different messages in {seconds:.1f} s "
        f"({len(seen) / seconds:.0f} per second), repeated {repeated}, acknowledged {acknowledged}"
    )
    return 0 if len(seen) >= options.count else 1


def acknowledge(consumer: SimpleConsumer, message: Message) -> bool:
    try:
        consumer.ack(message)
    except Exception as error:  # the message will come again when its invisible time is over
        print(f"not acknowledged: {error}", file=sys.stderr)
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
