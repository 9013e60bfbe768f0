"""Timers that wait in a store directory while it goes from us to the original and back: each comes once, never early."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.record.codec import Record
from remoting.record.properties import encode_properties
from tests.interop.apache import Session
from tests.interop.directories import QUEUES, Directory, read_all
from tests.interop.servers import topic_fields
from tests.support.cluster import eventually

TOPIC: Final = "Later"
# What the original needs to keep timers at all, and to take some back.
WHEEL: Final = {"timerWheelEnable": "true", "recallMessageEnable": "true"}
_SLOT_MS: Final = 1000  # how exact the original is


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def make_topic(address: str) -> None:
    fields = topic_fields(TOPIC, QUEUES) | {"attributes": "+message.type=DELAY"}
    with SocketConnection(address, timeout_ms=5000) as connection:
        connection.call(codes.UPDATE_AND_CREATE_TOPIC, fields)


def send(address: str, name: str, due_ms: int, **properties: str) -> str:
    """Send one message for a moment; the handle to take it back, if there is one."""
    encoded = encode_properties({"UNIQ_KEY": name, "TIMER_DELIVER_MS": str(due_ms), **properties}).decode()
    ext = {"a": "writer", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(len(name) % QUEUES), "f": "0"}
    ext |= {"g": str(now_ms()), "h": "0", "i": encoded, "j": "0", "k": "false", "l": "16", "m": "false"}
    with SocketConnection(address, timeout_ms=5000) as connection:
        return connection.call(codes.SEND_MESSAGE_V2, ext, name.encode()).ext.get("recallHandle", "")


def recall(address: str, handle: str) -> None:
    with SocketConnection(address, timeout_ms=5000) as connection:
        connection.call(codes.RECALL_MESSAGE, {"producerGroup": "writer", "topic": TOPIC, "recallHandle": handle})


def delivered(address: str) -> list[Record]:
    with SocketConnection(address, timeout_ms=5000) as connection:
        return [each for queue in range(QUEUES) for each in read_all(connection, TOPIC, queue)]


def wait_for(address: str, names: Sequence[str]) -> Counter[str]:
    """What the topic has when all of these have come: none before its time."""

    def found() -> Counter[str] | None:
        records = delivered(address)
        for each in records:
            due_ms = int(each.property_map()["TIMER_DELIVER_MS"])
            assert each.store_timestamp_ms >= due_ms, f"{each.body!r} came {due_ms - each.store_timestamp_ms} ms early"
        counts = Counter(each.body.decode() for each in records)
        return counts if counts.keys() >= set(names) else None

    return eventually(f"{names} in {TOPIC}", found, 90)


def test_the_original_delivers_what_waits_with_us(session: Session, tmp_path: Path) -> None:
    """And we deliver what is left when it has gone again."""
    directory = Directory(tmp_path / "shared", session)
    address = directory.open_ours("timers.roll_window_s=20")
    make_topic(address)
    begun_ms = now_ms()
    send(address, "far", begun_ms + 55_000)  # RocketMQ meets its first leg
    before = [f"before{number}" for number in range(5)]
    for name in before:
        send(address, name, begun_ms + 1500)
    wait_for(address, before)
    due_ms = now_ms() + 15_000
    later = [f"later{number}" for number in range(8)]
    for number, name in enumerate(later):
        send(address, name, due_ms + 300 * number)
    recall(address, send(address, "recalled", due_ms))
    send(address, "named", due_ms + 200)
    send(address, "marker", due_ms + 200, TIMER_DEL_UNIQKEY=f"{TOPIC}+named")
    send(address, "between", now_ms() + 2000)  # nobody has the directory open when it is due
    directory.close(cleanly=True)

    address = directory.open_original(WHEEL)
    assert wait_for(address, [*later, "between"]) == dict.fromkeys([*before, *later, "between"], 1)
    send(address, "last", max(now_ms() + 3000, begun_ms + 24_000))
    wait_for(address, ["last"])
    directory.close(cleanly=True)

    address = directory.open_ours()
    assert wait_for(address, ["far"]) == dict.fromkeys([*before, *later, "between", "last", "far"], 1)
    directory.close(cleanly=True)


def test_we_deliver_what_waits_with_the_original(session: Session, tmp_path: Path) -> None:
    """And nothing that it delivered, or appended again on its way."""
    directory = Directory(tmp_path / "shared", session)
    address = directory.open_original(WHEEL | {"timerRollWindowSlot": 8})
    make_topic(address)
    begun_ms = now_ms()
    later = [f"later{number}" for number in range(8)]
    for number, name in enumerate(later):
        send(address, name, begun_ms + 30_000 + 300 * number)
    before = [f"before{number}" for number in range(5)]
    for number, name in enumerate(before):
        send(address, name, begun_ms + 2500 * number)
    wait_for(address, before)  # meanwhile the others were appended again
    due_ms = now_ms() + 15_000
    send(address, "soon", due_ms)
    recall(address, send(address, "recalled", due_ms))
    send(address, "named", due_ms)
    send(address, "marker", due_ms, TIMER_DEL_UNIQKEY=f"{TOPIC}+named")
    send(address, "between", now_ms() + 2000)
    directory.close(cleanly=True)

    address = directory.open_ours()
    wait_for(address, ["soon", "between", *later])
    send(address, "last", now_ms() + 1000)
    assert wait_for(address, ["last"]) == dict.fromkeys([*before, *later, "soon", "between", "last"], 1)
    directory.close(cleanly=True)
