"""How late messages come back that nobody acknowledged: taken one by one or 32 at a time, due over ten seconds or all at once.

    python -m tests.bench.revival [--messages N] [--only TEXT]

Every message is taken once, over remoting POP, with the invisible time that makes it due at its moment, and never acknowledged.
Then receives of 32 wait for them. How late one is counts from the earliest moment at which the broker may show it to the moment
at which its consumer has it, so what it takes to receive 100,000 messages counts too. Sends to another topic go on meanwhile.
Every message must come back once.
"""

from __future__ import annotations

import argparse
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from remoting import codes, frame
from remoting.client.socket_connection import SocketConnection
from remoting.frame import Command
from remoting.record.codec import decode_records
from remoting.transport.client import split_address
from tests.bench.harness import Row, Sample, load_program, run_load
from tests.bench.sends import TOPIC, broker
from tests.support.client_bytes import encode_batch_body
from tests.support.workload import call_until

MESSAGES: Final = 100_000

_GROUP: Final = "revival"
_QUEUES: Final = 8
_BODY_BYTES: Final = 100
_SAMPLED: Final = 20  # one of so many is taken before the others
_NUMBER_BYTES: Final = 8  # of a body's begin: which message it is
_SENT_AT_ONCE: Final = 500
_CONVERSATIONS: Final = 64  # receives under way on a connection
_HIDDEN_MS: Final = 600_000  # when they came back
_READ_BYTES: Final = 1 << 20
_PATIENCE_S: Final = 60.0
_GOAL_P99_MS: Final = 200
_GOAL_MAX_MS: Final = 1000
_GOAL_LAST_MS: Final = 2000
_GOAL_SENDS_MS: Final = 50


@dataclass
class Popper:
    """One connection that pops: `answers` are the receives that were answered."""

    address: str
    _opaque: int = 0
    _rest: bytes = b""
    _sent_ms: dict[int, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._socket = socket.create_connection(split_address(self.address), 30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def under_way(self) -> int:
        return len(self._sent_ms)

    def pop(self, count: int, invisible_ms: int, wait_ms: int) -> bytes:
        """The bytes of a receive."""
        self._opaque += 1
        now_ms = wall_ms()
        self._sent_ms[self._opaque] = now_ms, invisible_ms
        ext = {
            **{"consumerGroup": _GROUP, "topic": TOPIC, "queueId": "-1", "maxMsgNums": str(count)},
            **{"invisibleTime": str(invisible_ms), "pollTime": str(wait_ms), "initMode": "0", "bornTime": str(now_ms)},
        }
        return frame.encode_request(codes.POP_MESSAGE, self._opaque, ext, b"")

    def send(self, requests: bytes) -> None:
        self._socket.sendall(requests)

    def answers(self) -> Iterator[tuple[int, list[int]]]:
        """(earliest moment at which they may come back, numbers of messages) of what is answered next."""
        data = self._socket.recv(_READ_BYTES)
        if not data:
            raise RuntimeError("the broker closed the connection")
        commands: list[Command] = []
        data = self._rest + data
        self._rest = data[frame.decode_frames(data, commands) :]
        for command in commands:
            sent_ms, invisible_ms = self._sent_ms.pop(command.opaque)
            if command.code not in (codes.SUCCESS, codes.POLLING_TIMEOUT):
                raise RuntimeError(f"a receive was refused: {command.code} {command.remark}")
            found = [int.from_bytes(each.body[:_NUMBER_BYTES]) for each in decode_records(command.body)]
            yield sent_ms + invisible_ms, found

    def close(self) -> None:
        self._socket.close()


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


@contextmanager
def popper(address: str) -> Iterator[Popper]:
    connected = Popper(address)
    try:
        yield connected
    finally:
        connected.close()


def fill(address: str, messages: int, topic: str = TOPIC) -> None:
    """Send numbered messages to all queues."""
    header = {
        **{"a": "bench", "b": topic, "c": "TBW102", "d": "4", "f": "0", "g": "1700000000000", "h": "0", "i": ""},
        **{"j": "0", "k": "false", "m": "true"},
    }
    with SocketConnection(address) as connection:
        for first in range(0, messages, _SENT_AT_ONCE):
            numbers = range(first, min(first + _SENT_AT_ONCE, messages))
            items = [(0, number.to_bytes(_NUMBER_BYTES) + bytes(_BODY_BYTES), b"") for number in numbers]
            queue_id = str(first // _SENT_AT_ONCE % _QUEUES)
            connection.call(codes.SEND_BATCH_MESSAGE, {**header, "e": queue_id}, encode_batch_body(items))


def take(address: str, messages: int, batch: int, spread_ms: int) -> dict[int, int]:
    """Take so many messages; when each may come back at the earliest."""
    began_s = time.monotonic()
    hide(address, messages // _SAMPLED, batch, lambda _: _HIDDEN_MS)  # to see how fast that goes
    horizon_ms = 2000 + int(1500 * (time.monotonic() - began_s) * _SAMPLED)
    first_due_ms = wall_ms() + horizon_ms
    due_ms = hide(
        address, messages, batch, lambda asked: first_due_ms + spread_ms * min(asked, messages) // messages - wall_ms()
    )
    if wall_ms() > first_due_ms:
        raise RuntimeError("taking them took so long that the first were due before the last were taken")
    return due_ms


def hide(address: str, messages: int, batch: int, invisible_ms: Callable[[int], int]) -> dict[int, int]:
    """Take so many messages. `invisible_ms` says for how long to hide what is asked for when so many were asked for before."""
    due_ms: dict[int, int] = {}
    asked = 0
    with popper(address) as taking:

        def next_pop() -> bytes:
            nonlocal asked
            count = min(batch, messages - asked)
            request = taking.pop(count, max(1, invisible_ms(asked)), 0)
            asked += count
            return request

        while taking.under_way or asked < messages:
            requests = []
            while asked < messages and taking.under_way < _CONVERSATIONS:
                requests.append(next_pop())
            taking.send(b"".join(requests))
            for earliest_ms, numbers in taking.answers():
                due_ms.update(dict.fromkeys(numbers, earliest_ms))
            asked -= (
                asked - len(due_ms) if not taking.under_way else 0
            )  # what was asked for and not got is asked for again
    return due_ms


def collect(address: str, due_ms: Mapping[int, int]) -> list[int]:
    """Receive all of them again; how late each was, ascending."""
    late_ms: dict[int, int] = {}
    deadline_s = time.monotonic() + _PATIENCE_S + (max(due_ms.values()) - wall_ms()) / 1000
    with popper(address) as waiting:
        waiting.send(b"".join(waiting.pop(32, _HIDDEN_MS, 1000) for _ in range(_CONVERSATIONS)))
        while len(late_ms) < len(due_ms):
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"{len(due_ms) - len(late_ms)} messages did not come back")
            requests = []
            for _, numbers in waiting.answers():
                now_ms = wall_ms()
                for number in numbers:
                    if number in late_ms:
                        raise RuntimeError(f"message {number} came back twice")
                    late_ms[number] = now_ms - due_ms[number]
                requests.append(waiting.pop(32, _HIDDEN_MS, 1000))
            waiting.send(b"".join(requests))
    return sorted(late_ms.values())


def measure(program: Path, messages: int, batch: int, spread_ms: int) -> tuple[list[int], Sample]:
    """How late the messages were, and sends to another topic from before the first was due until all had come."""
    with broker(1, (f"pop.max_in_flight_per_group={2 * messages}",)) as (cluster, address):
        call_until(lambda: cluster.admin.create_topic("Other", queues=_QUEUES))
        fill(address, messages + messages // _SAMPLED)
        due_ms = take(address, messages, batch, spread_ms)
        samples: list[Sample] = []
        wait_s = max(0.0, (min(due_ms.values()) - wall_ms()) / 1000)
        seconds = 2 + spread_ms / 1000

        def send() -> None:
            time.sleep(wait_s)
            samples.append(run_load(program, address, "Other", in_flight=1, seconds=seconds)[0])

        sending = threading.Thread(target=send)
        sending.start()
        try:
            late_ms = collect(address, due_ms)
        finally:
            sending.join()
        return late_ms, samples[0]


def run(messages: int = MESSAGES, only: str = "") -> list[Row]:
    """All rows whose name contains `only`."""
    rows: list[Row] = []
    with load_program() as program:
        for batch in (1, 32):
            for spread_ms, when in ((10_000, "due over 10 s"), (0, "all due at once")):
                name = f"{messages:,} in flight in batches of {batch}, {when}"
                if only not in name:
                    continue
                late_ms, sends = measure(program, messages, batch, spread_ms)
                for row in rows_of(name, late_ms, sends, spread_ms):
                    rows.append(row)
                    print(f"{row.name}: {row.figure}  {row.goal}", flush=True)
    return rows


def rows_of(name: str, late_ms: list[int], sends: Sample, spread_ms: int) -> list[Row]:
    p50, p99, last = (late_ms[min(len(late_ms) - 1, len(late_ms) * part // 100)] for part in (50, 99, 100))
    figure = f"late by p50 {p50} ms, p99 {p99} ms, at most {last} ms"
    if spread_ms:
        goal, met = f"p99 <= {_GOAL_P99_MS} ms, at most {_GOAL_MAX_MS}", p99 <= _GOAL_P99_MS and last <= _GOAL_MAX_MS
    else:
        goal, met = f"at most {_GOAL_LAST_MS} ms", last <= _GOAL_LAST_MS
    sends_ms = sends.p99_us / 1000
    return [
        Row(name, figure, goal, met),
        Row(
            f"{name}: sends meanwhile",
            f"p99 {sends_ms:.1f} ms, {sends.rate:.0f}/s",
            f"<= {_GOAL_SENDS_MS} ms",
            sends_ms <= _GOAL_SENDS_MS,
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=MESSAGES, help="how many (%(default)s)")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    options = parser.parse_args()
    run(options.messages, options.only)


if __name__ == "__main__":
    main()
