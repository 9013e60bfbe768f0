"""Messages that are due in one second: how fast they come out, by the same producer in both systems."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from tests.bench.compare.systems import Running
from tests.bench.harness import Sample
from tests.bench.timed import Load, wait_until, wait_visible, wall_ms

_SECOND_MS: Final = 1000
_ROOM_S: Final = 5.0
# The original refuses as busy what waits longer than 200 ms to be taken.
_CONNECTIONS, _IN_FLIGHT = 4, 16


def due_in_one_second(running: Running, program: Path, messages: int) -> Sample:
    """Send so many that are due in one second, a while ahead. The rate is from the begin of that second until a consumer can read
    the last."""
    topic, probe = running.new_topic(), running.new_topic()
    load = Load(program, running.address, _CONNECTIONS, _IN_FLIGHT, may_fail=True)
    ahead_s = load.seconds_for_timers(probe, messages) + _ROOM_S
    due_ms = -(-(wall_ms() + round(1000 * ahead_s)) // _SECOND_MS) * _SECOND_MS
    _, acknowledged = load.send(topic, messages, due_ms, _SECOND_MS)
    running.settle()
    before_s = running.cpu_seconds()
    wait_until(due_ms)
    began_s = time.monotonic()
    took_s = wait_visible(running.address, topic, acknowledged) - began_s
    running.settle()
    cpu_us = 1e6 * (running.cpu_seconds() - before_s) / acknowledged
    return Sample(acknowledged / took_s, cpu_us=cpu_us, failures=messages - acknowledged)
