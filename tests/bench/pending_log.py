"""A broker's log with many timers that wait, made without sending them.

To send ten millions takes minutes. The records are appended by the store itself, in the data directory of a broker that is
stopped: it finds them as the tail of its log, and its replicas copy them from it as from any master.
"""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Final

from brokerd.native.library import load
from brokerd.store.draft import Draft
from brokerd.store.settings import StoreSettings
from brokerd.store.store import MessageStore, StoreSeams
from brokerd.timers.codes import CODE_RULES, DUE_MS, OUT_MS, slot_of
from remoting.disk import LocalDisk
from remoting.names import TIMER_TOPIC
from remoting.record.properties import encode_properties

_HOST: Final = bytes((127, 0, 0, 1, 0, 0, 42, 159))
_BODY: Final = bytes(16)
_AT_ONCE: Final = 1000
_KNUTH: Final = 2_654_435_761  # spreads the numbers evenly


def append_timers(data: Path, topic: str, first: int, count: int, begin_ms: int, span_ms: int) -> None:
    """Append timers of this topic, numbered from `first` on, due anywhere in the span behind `begin_ms`."""
    with closing(LocalDisk(data)) as disk:
        store = MessageStore(disk, StoreSettings(), _now_ms, _HOST, StoreSeams(CODE_RULES, load()))
        store.load()
        store.set_appendable(True)
        for start in range(first, first + count, _AT_ONCE):
            numbers = range(start, min(first + count, start + _AT_ONCE))
            store.append_messages([_timer(topic, n, begin_ms + _spread(n, span_ms)) for n in numbers])
            store.dispatch(store.commitlog.end_offset)
        while store.dispatch_offset < store.commitlog.end_offset:
            store.dispatch(store.commitlog.end_offset)
        store.close()


def _spread(number: int, span_ms: int) -> int:
    return number * _KNUTH % (1 << 32) * span_ms // (1 << 32)


def _timer(topic: str, number: int, due_ms: int) -> Draft:
    properties = {"UNIQ_KEY": f"{number:032X}", "REAL_TOPIC": topic, "REAL_QID": "0"}
    properties |= {OUT_MS: str(slot_of(due_ms)), DUE_MS: str(due_ms)}
    return Draft(TIMER_TOPIC, 0, _BODY, encode_properties(properties), _now_ms(), _HOST)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
