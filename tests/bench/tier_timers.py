"""What it costs a broker to have timers wait in the tier: until they are out, and until they are back in its log.

    python -m tests.bench.tiers --only timers [--megabytes N]

Timers of 1 KiB are sent, all due at the same far moment, and what follows them closes their files of the log. While these are
young the broker comes to rest, so that nothing else is counted; then the files are old, and the timers go to the tier, a
directory. They come back a while before they are due, which ends it. CPU time is that of the broker above what it takes at rest.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from tests.bench.harness import Row
from tests.bench.idle_clients import counted
from tests.bench.processes import cpu_seconds, wait_at_rest
from tests.bench.sends import BACKGROUND, NO_INDEX, broker
from tests.bench.timed import QUEUES, Load, wait_until, wall_ms
from tests.support.cluster import eventually
from tests.support.cold_reading import FILLER, make_topic, send_filler
from tests.support.workload import call_until

_TOPIC: Final = "InTier"
_YOUNG_S: Final = 30  # files are, so long
_BACK_S: Final = 30
_AHEAD_S: Final = 2 * _BACK_S
_DUE_S: Final = 180
_LOOK_S: Final = 0.5
_LOOKS: Final = 8
_SETTINGS: Final = (
    *("store.segment_size_bytes=8388608", f"retention.reserved_time_ms={_YOUNG_S * 1000}", "retention.interval_ms=100"),
    *(f"timers.tier_ahead_s={_AHEAD_S}", f"timers.tier_back_s={_BACK_S}"),
)
_FILLED: Final = 8  # MB that close the last file with timers
_STOWED: Final = re.compile(r"^logboom_timers_stowed_total(?:\{[^}]*\})? (\d+)", re.MULTILINE)
_RETURNED: Final = re.compile(r"^logboom_timers_returned_total(?:\{[^}]*\})? (\d+)", re.MULTILINE)


def timers(program: Path, messages: int, tier: tuple[str, ...]) -> list[Row]:
    """CPU time per timer of both ways. Raises RuntimeError where the machine is too slow for that."""
    with broker(1, (*BACKGROUND, NO_INDEX, *tier, *_SETTINGS)) as (cluster, address):
        make_topic(cluster, FILLER, attributes="+message.type=NORMAL,+tier.enable=false")
        call_until(lambda: cluster.admin.create_topic(_TOPIC, queues=QUEUES, message_type="DELAY"))
        eventually("the topic's route", lambda: bool(cluster.admin.queue_offsets(_TOPIC)))
        pid = cluster.brokers[0].pid
        due_ms = wall_ms() + 1000 * _DUE_S
        Load(program, address).send(_TOPIC, messages, due_ms)
        for _ in range(_FILLED):
            send_filler(cluster)
        wait_at_rest(pid)
        idle = _share_at_rest(pid, address)
        _still("the timers were to go to the tier", counted(address, _STOWED) == 0)
        out_us = _used_us(pid, idle, messages, partial(counted, address, _STOWED))
        _still("the timers were to come back", counted(address, _RETURNED) == 0)
        wait_until(due_ms - 1000 * (_BACK_S + 1))
        back_us = _used_us(pid, idle, messages, partial(counted, address, _RETURNED))
        _still("the timers were due", wall_ms() < due_ms)
    return [
        Row(f"{messages:,} timers go to the tier", f"{out_us:.1f} us of CPU time each"),
        Row(f"{messages:,} timers come back from it", f"{back_us:.1f} us of CPU time each"),
    ]


def _used_us(pid: int, idle: float, messages: int, count: Callable[[], int]) -> float:
    """For each message, from now until so many are counted and the process is at rest again."""
    before_s, began_s = cpu_seconds(pid), time.monotonic()
    while count() < messages:
        _still("minutes passed", time.monotonic() - began_s < _DUE_S)
        time.sleep(_LOOK_S)
    wait_at_rest(pid)
    return (cpu_seconds(pid) - before_s - idle * (time.monotonic() - began_s)) * 1e6 / messages


def _share_at_rest(pid: int, address: str) -> float:
    """Of a processor, with what it takes to be asked for its metrics."""
    before_s, began_s = cpu_seconds(pid), time.monotonic()
    for _ in range(_LOOKS):
        counted(address, _STOWED)
        time.sleep(_LOOK_S)
    return (cpu_seconds(pid) - before_s) / (time.monotonic() - began_s)


def _still(what: str, is_so: bool) -> None:
    if not is_so:
        raise RuntimeError(f"the machine is too slow: {what} before the broker was at rest; have fewer messages")
