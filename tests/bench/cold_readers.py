"""Consumers that read a topic from its begin on, again and again, until they are killed.

python -m tests.bench.cold_readers MASTER TOPIC QUEUES READERS
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Final

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from tests.support.pulling import pull_fields

_NICE: Final = 10  # elsewhere they would have processors of their own


def read_on(address: str, topic: str, queue_id: int) -> None:
    """Raises LogboomError when the broker is gone."""
    with SocketConnection(address) as master:
        while True:
            offset = end = 0
            while offset < end or not offset:
                answer = master.call(codes.PULL_MESSAGE, pull_fields(topic, queue_id, offset), timeout_ms=30_000)
                offset, end = int(answer.ext["nextBeginOffset"]), int(answer.ext["maxOffset"])


def main() -> None:
    address, topic, queues, readers = sys.argv[1:]
    os.nice(_NICE)
    for number in range(int(readers)):
        threading.Thread(target=read_on, args=(address, topic, number % int(queues)), daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    main()
