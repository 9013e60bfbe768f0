"""A broker's log with many timers that wait, made without sending them.

To send ten millions takes minutes. The records are appended by the store itself, in the data directory of a broker that is
stopped: it finds them as the tail of its log, and its replicas copy them from it as from any master. All are alike but for a few
numbers of fixed width, so each is a copy of the first one with its own.
"""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from brokerd.native.library import load
from brokerd.store.draft import Draft, encode_draft
from brokerd.store.seams import StoreSeams
from brokerd.store.settings import StoreSettings
from brokerd.store.store import MessageStore
from brokerd.timers.codes import CODE_RULES, DUE_MS, MESSAGE, OUT_MS, encode_code, slot_of
from remoting.disk import LocalDisk
from remoting.names import TIMER_TOPIC
from remoting.record.layout import Field
from remoting.record.properties import encode_properties

_Numbers = npt.NDArray[np.int64]

_HOST: Final = bytes((127, 0, 0, 1, 0, 0, 42, 159))
_BODY: Final = bytes(16)
_AT_ONCE: Final = 5000
_KNUTH: Final = 2_654_435_761  # spreads the numbers evenly


def append_timers(data: Path, topic: str, first: int, count: int, begin_ms: int, span_ms: int) -> None:
    """Append timers of this topic, numbered from `first` on, due anywhere in the span behind `begin_ms`."""
    with closing(LocalDisk(data)) as disk:
        settings = StoreSettings(index_enabled=False)  # the broker makes up for that
        store = MessageStore(disk, settings, _now_ms, _HOST, StoreSeams(CODE_RULES, load()))
        store.load()
        store.set_appendable(True)
        for start in range(first, first + count, _AT_ONCE):
            _append(store, topic, np.arange(start, min(first + count, start + _AT_ONCE)), begin_ms, span_ms)
            store.dispatch(store.commitlog.end_offset)
        while store.dispatch_offset < store.commitlog.end_offset:
            store.dispatch(store.commitlog.end_offset)
        store.close()


def _append(store: MessageStore, topic: str, numbers: _Numbers, begin_ms: int, span_ms: int) -> None:
    due_ms = begin_ms + numbers * _KNUTH % (1 << 32) * (span_ms >> 16) // (1 << 16)
    pattern = encode_draft(_timer(topic, 0, begin_ms), 0, 0, 0, _HOST)
    count, size, key = len(numbers), len(pattern), (TIMER_TOPIC, 0)
    run = store.begin_run(count * size)
    run.seals = False
    next_offset, now_ms = run.next_offsets[key], run.timestamp_ms
    offsets, positions = np.arange(next_offset, next_offset + count), run.start + size * np.arange(count)
    records = np.tile(np.frombuffer(pattern, np.uint8), (count, 1))
    for field, values in ((Field.QUEUE_OFFSET, offsets), (Field.PHYSICAL_OFFSET, positions)):
        records[:, field.at : field.at + 8] = values.astype(">i8").view(np.uint8).reshape(count, 8)
    stamp = np.frombuffer(now_ms.to_bytes(8), np.uint8)
    for field in (Field.BORN_TIMESTAMP, Field.STORE_TIMESTAMP):
        records[:, field.at : field.at + 8] = stamp
    texts = {"UNIQ_KEY": (numbers, 32), OUT_MS: (due_ms - 1 - (due_ms - 1) % 1000, 13), DUE_MS: (due_ms, 13)}
    for name, (values, width) in texts.items():
        at = pattern.index(name.encode() + b"\x01") + len(name) + 1
        told = "".join([f"{value:0{width}d}" for value in values.tolist()]).encode()
        records[:, at : at + width] = np.frombuffer(told, np.uint8).reshape(count, width)
    run.records.append(records.tobytes())
    run.entries += [
        (*key, offset, position, size, encode_code(due, MESSAGE), now_ms, 1)
        for offset, position, due in zip(offsets.tolist(), positions.tolist(), due_ms.tolist(), strict=True)
    ]
    run.next_offsets[key] = next_offset + count
    run.end_offset += count * size
    store.append_laid_out(run)


def _timer(topic: str, number: int, due_ms: int) -> Draft:
    properties = {"UNIQ_KEY": f"{number:032d}", "REAL_TOPIC": topic, "REAL_QID": "0"}
    properties |= {OUT_MS: str(slot_of(due_ms)), DUE_MS: str(due_ms)}
    return Draft(TIMER_TOPIC, 0, _BODY, encode_properties(properties), _now_ms(), _HOST)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
