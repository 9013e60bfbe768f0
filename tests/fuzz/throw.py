"""Throws what the generator makes at a running broker, and watches: every whole request is answered once, nobody else notices.

Whole requests go over connections that carry nothing else: the broker has no reason to close one. Damaged ones and noise go over
others, which it may close. Beside them an honest client sends and reads all the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from remoting import codes, frame
from remoting.client.blocking import AdminClient
from remoting.client.socket_connection import SocketConnection
from remoting.frame import Command
from remoting.record.codec import decode_records
from remoting.transport.client import split_address
from tests.fuzz.generate import TOPIC, Generator

HONEST_TOPIC: Final = "Honest"
_PATIENCE_S: Final = 40  # a request may ask to be held; the broker holds none for longer than clients wait
_RUN: Final = 32
_READ_BYTES: Final = 1 << 16


@dataclass
class Seen:
    """What happened, and what must not have."""

    requests: int = 0
    answers: int = 0
    damaged: int = 0
    closed_on_noise: int = 0
    honest_sends: int = 0
    answer_codes: dict[int, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)


class _Clean:
    """A connection for whole requests; remembers which are open."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._open: set[int] = set()

    async def run(self, address: str, seed: int, is_over: Callable[[], bool]) -> None:
        reader, writer = await asyncio.open_connection(*split_address(address))
        generator = Generator(seed)
        reading = asyncio.create_task(self._read(reader))
        while not is_over() and not reading.done():
            thrown = [each for each in (generator.next() for _ in range(_RUN)) if each.opaque is not None]
            self._open.update(each.opaque for each in thrown if each.opaque is not None)
            self._seen.requests += len(thrown)
            writer.write(b"".join(each.data for each in thrown))
            await writer.drain()
            await asyncio.sleep(0)
        deadline_s = time.monotonic() + _PATIENCE_S
        while self._open and time.monotonic() < deadline_s and not reading.done():
            await asyncio.sleep(0.05)
        if reading.done():
            self._seen.violations.append(
                f"seed {seed}: a connection with whole requests only was closed: {reading.exception()}"
            )
        elif self._open:
            self._seen.violations.append(f"seed {seed}: requests {sorted(self._open)[:5]} were not answered")
        reading.cancel()
        writer.close()
        with contextlib.suppress(asyncio.CancelledError, ConnectionError):
            await reading

    async def _read(self, reader: asyncio.StreamReader) -> None:
        rest = b""
        while data := await reader.read(_READ_BYTES):
            data = rest + data
            commands: list[Command] = []
            rest = data[frame.decode_frames(data, commands) :]
            for command in commands:
                if command.flag & codes.FLAG_RESPONSE:
                    self._answered(command)

    def _answered(self, answer: Command) -> None:
        self._seen.answers += 1
        self._seen.answer_codes[answer.code] = self._seen.answer_codes.get(answer.code, 0) + 1
        if answer.opaque not in self._open:
            self._seen.violations.append(f"request {answer.opaque} was answered twice, or never asked")
        self._open.discard(answer.opaque)


async def _throw_noise(address: str, seed: int, is_over: Callable[[], bool], seen: Seen) -> None:
    """Everything over connections that the broker may close; it opens the next one then."""
    generator = Generator(seed)
    while not is_over():
        reader, writer = await asyncio.open_connection(*split_address(address))
        reading = asyncio.create_task(reader.read(-1))
        with contextlib.suppress(ConnectionError):
            for _ in range(200):
                writer.write(generator.next().data)
                seen.damaged += 1
                await writer.drain()
                await asyncio.sleep(0)
                if reading.done() or is_over():
                    break
        seen.closed_on_noise += reading.done() or writer.is_closing()
        reading.cancel()
        writer.close()
        with contextlib.suppress(asyncio.CancelledError, ConnectionError):
            await reading


def _be_honest(address: str, is_over: Callable[[], bool], seen: Seen) -> None:
    """Send a message, and read it back, over and over."""
    with SocketConnection(address) as connection:
        for number in range(1 << 30):
            if is_over():
                return
            body = b"honest %d" % number
            sent = connection.call(
                codes.SEND_MESSAGE_V2,
                {
                    **{
                        "a": "h",
                        "b": HONEST_TOPIC,
                        "c": "TBW102",
                        "d": "1",
                        "e": "0",
                        "f": "0",
                        "g": "1700000000000",
                        "h": "0",
                    },
                    **{"i": f"UNIQ_KEY\x01H{number}\x02", "j": "0", "k": "false", "m": "false"},
                },
                body,
                timeout_ms=10_000,
            )
            read = connection.call(
                codes.PULL_MESSAGE,
                {
                    **{
                        "consumerGroup": "honest",
                        "topic": HONEST_TOPIC,
                        "queueId": "0",
                        "queueOffset": sent.ext["queueOffset"],
                    },
                    **{
                        "maxMsgNums": "1",
                        "sysFlag": "6",
                        "commitOffset": "0",
                        "suspendTimeoutMillis": "5000",
                        "subscription": "*",
                    },
                    **{"subVersion": "0", "expressionType": "TAG"},
                },
                timeout_ms=10_000,
            )
            [record] = decode_records(bytes(read.body))
            if bytes(record.body) != body:
                seen.violations.append(f"message {number} came back as {bytes(record.body)[:40]!r}")
            seen.honest_sends += 1


async def throw(address: str, admin: AdminClient, seed: int, seconds: float, least: int = 0) -> Seen:
    """Both topics are made here; returns when everything that was asked is answered, or is a violation.

    It goes on for so long, and until there were more than `least` requests of each kind.
    """
    seen = Seen()
    for topic in (TOPIC, HONEST_TOPIC):
        await asyncio.to_thread(admin.create_topic, topic, queues=2)
    until_s = time.monotonic() + seconds

    def is_over() -> bool:
        return time.monotonic() > until_s and min(seen.requests, seen.damaged) > least

    await asyncio.gather(
        *(_Clean(seen).run(address, seed * 1000 + number, is_over) for number in range(2)),
        *(_throw_noise(address, seed * 1000 + 500 + number, is_over, seen) for number in range(2)),
        asyncio.to_thread(_be_honest, address, is_over, seen),
    )
    return seen
