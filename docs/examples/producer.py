"""Send numbered messages with the official RocketMQ client and say how many were acknowledged.

    python docs/examples/producer.py --topic demo --count 10000

A send that fails is tried again until the message is acknowledged, so the program may run while the master of the cluster is
killed. A message whose acknowledgement was lost is then stored twice; the consumers beside this program tell such apart by
the number in the body. Exit code 0: every message was acknowledged.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from concurrent.futures import Future

from rocketmq import ClientConfiguration, Credentials, Message, Producer


def main() -> int:
    parser = argparse.ArgumentParser(description="Send numbered messages.")
    parser.add_argument("--endpoints", default="127.0.0.1:8081", help="gRPC endpoints, separated by semicolons")
    parser.add_argument("--topic", default="demo")
    parser.add_argument("--count", type=int, default=10_000, help="how many messages")
    parser.add_argument("--size", type=int, default=100, help="bytes of each body")
    parser.add_argument(
        "--in-flight", type=int, default=64, help="messages sent before the first of them is acknowledged"
    )
    parser.add_argument(
        "--patience", type=float, default=60, help="seconds without any progress after which to give up"
    )
    options = parser.parse_args()

    producer = Producer(ClientConfiguration(options.endpoints, Credentials()), (options.topic,))
    producer.startup()
    began = progressed = time.monotonic()
    waiting: deque[tuple[int, Future]] = deque()
    to_send = deque(range(options.count))
    acknowledged = failures = 0
    reason = ""
    try:
        while (to_send or waiting) and time.monotonic() - progressed < options.patience:
            while to_send and len(waiting) < options.in_flight:
                number = to_send.popleft()
                waiting.append((number, send(producer, options.topic, number, options.size)))
            number, future = waiting.popleft()
            try:
                future.result()
            except Exception as error:  # whatever it was, the message is not known to be stored
                failures += 1
                to_send.append(number)
                if str(error) != reason:
                    reason = str(error)
                    print(f"message {number} is tried again: {reason}", file=sys.stderr)
                time.sleep(0.05)
            else:
                acknowledged += 1
                progressed = time.monotonic()
    finally:
        producer.shutdown()
    seconds = time.monotonic() - began
    print(
        f"acknowledged {acknowledged} of {options.count} in {seconds:.1f} s "
        f"({acknowledged / seconds:.0f} per second), failed sends {failures}"
    )
    return 0 if acknowledged == options.count else 1


def send(producer: Producer, topic: str, number: int, size: int) -> Future:
    message = Message()
    message.topic = topic
    message.keys = f"number-{number}"
    message.body = str(number).encode().ljust(size)
    try:
        return producer.send_async(message)
    except Exception as error:  # refused before anything was sent: treated like a send that failed
        refused: Future = Future()
        refused.set_exception(error)
        return refused


if __name__ == "__main__":
    sys.exit(main())
