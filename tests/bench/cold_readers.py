"""Consumers that read a topic from its begin on, again and again, until they are killed.

python -m tests.bench.cold_readers MASTER TOPIC QUEUES READERS [PULLS]

PULLS: how many all of them make in a second at most. For a topic that is in files it has to be one that stays there.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Final

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from tests.support.pulling import pull_fields

_ANSWERS: Final = (codes.SUCCESS, codes.PULL_OFFSET_MOVED)  # the latter: older files went meanwhile
_NICE: Final = 10  # elsewhere they would have processors of their own


def read_on(address: str, topic: str, queue_id: int, pause_s: float) -> None:
    """With so much between the begins of two pulls, unless they take longer. Raises LogboomError when the broker is gone."""
    with SocketConnection(address) as master:
        next_s = time.monotonic()
        while True:
            offset = end = 0
            while offset < end or not offset:
                next_s = max(next_s + pause_s, time.monotonic())
                time.sleep(max(0.0, next_s - time.monotonic()))
                fields = pull_fields(topic, queue_id, offset)
                answer = master.call(codes.PULL_MESSAGE, fields, timeout_ms=30_000, accept=_ANSWERS)
                offset, end = int(answer.ext["nextBeginOffset"]), int(answer.ext["maxOffset"])


def main() -> None:
    address, topic, queues, readers, *pulls = sys.argv[1:]
    pause_s = int(readers) / float(pulls[0]) if pulls else 0.0
    os.nice(_NICE)
    for number in range(int(readers)):
        asked = address, topic, number % int(queues), pause_s
        threading.Thread(target=read_on, args=asked, daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    main()
