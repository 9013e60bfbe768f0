"""What stands between a broker and an object store, and fails: a proxy that answers errors, hangs up, cuts answers, is late.

A request may fail before the store heard of it, or after it was carried out; nobody can tell the two apart.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections import Counter
from collections.abc import Coroutine, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple

from tests.support.ports import free_ports

_HOST: Final = "127.0.0.1"
_LARGEST_HEAD: Final = 1 << 16
_BUSY: Final = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
_BROKEN: Final = b"<Error><Code>InternalError</Code><Message>We encountered an internal error.</Message></Error>"


class Fault(Enum):
    """What becomes of a request."""

    NONE = "none"
    BUSY = "503, not carried out"
    BROKEN = "500, carried out"
    REFUSED = "connection lost, not carried out"
    LOST = "connection lost, carried out"
    CUT = "half of the answer's body"
    LATE = "late"


FAULTS: Final = tuple(fault for fault in Fault if fault is not Fault.NONE)


class Message(NamedTuple):
    """A request or an answer: the head with its empty line, and the body as it came."""

    head: bytes
    body: bytes

    @property
    def method(self) -> str:
        return self.head.partition(b" ")[0].decode()


class FaultProxy:
    """Runs in a thread of its own, in front of the port of a server. `chances` of faults may be changed at any time.

    `requests` counts what was asked, by method, `faults` what was made of it.
    """

    def __init__(self, port: int, seed: int = 1, late_s: float = 0.05) -> None:
        self.port = free_ports(1)[0]
        self.chances: Mapping[Fault, float] = {}
        self.is_dead = False  # whoever comes is turned away
        self.requests: Counter[str] = Counter()
        self.faults: Counter[Fault] = Counter()
        self._target = port
        self._rng = random.Random(seed)
        self._late_s = late_s
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault proxy", daemon=True)
        self._server: asyncio.Server | None = None
        self._serving: dict[asyncio.Task[None], asyncio.StreamWriter] = {}  # the loop itself holds tasks weakly

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        self._do(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._accept, _HOST, self.port, limit=_LARGEST_HEAD)

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task, writer in self._serving.items():
            task.cancel()
            writer.transport.abort()  # a task that never had its first turn does not do it
        for outcome in await asyncio.gather(*self._serving, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome
        await asyncio.sleep(0)  # transports close in the next turn

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._serve(reader, writer))
        self._serving[task] = writer
        task.add_done_callback(self._serving.pop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._one(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError):
            """The client or the server went away: so does the other side."""
        except asyncio.CancelledError:
            writer.transport.abort()  # the test is over
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Handle a request; whether the connection lives on."""
        request = await _read(reader, answers="")
        fault = self._choose()
        self.requests[request.method] += 1
        self.faults[fault] += 1
        if fault is Fault.REFUSED:
            return False
        if fault is Fault.BUSY:
            return await _write(writer, _answer(b"503 Slow Down", _BUSY))
        if fault is Fault.LATE:
            await asyncio.sleep(self._late_s)
        answer = await self._ask(request)
        if fault is Fault.LOST:
            return False
        if fault is Fault.BROKEN:
            return await _write(writer, _answer(b"500 Internal Server Error", _BROKEN))
        if fault is Fault.CUT and answer.body:
            await _write(writer, answer.head + answer.body[: len(answer.body) // 2])
            return False
        await _write(writer, answer.head + answer.body)
        return b"connection: close" not in answer.head.lower()

    async def _ask(self, request: Message) -> Message:
        reader, writer = await asyncio.open_connection(_HOST, self._target)
        try:
            await _write(writer, request.head + request.body)
            return await _read(reader, answers=request.method)
        finally:
            writer.transport.abort()

    def _choose(self) -> Fault:
        if self.is_dead:
            return Fault.REFUSED
        chance = self._rng.random()
        for fault, share in self.chances.items():
            chance -= share
            if chance < 0:
                return fault
        return Fault.NONE


def evenly(chance: float) -> dict[Fault, float]:
    """That share of all requests fails, in all ways alike."""
    return dict.fromkeys(FAULTS, chance / len(FAULTS))


async def _read(reader: asyncio.StreamReader, *, answers: str) -> Message:
    """One request, or what answers one of that method. Raises IncompleteReadError at the end of the connection."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as error:
        raise OSError(f"the head of a message is too long: {error}") from error
    fields = dict(_field(line) for line in head.split(b"\r\n")[1:] if line)
    if answers == "HEAD" or (answers and head.split(b" ", 2)[1] in (b"204", b"304")):
        return Message(head, b"")
    if fields.get(b"transfer-encoding", b"").lower() == b"chunked":
        return Message(head, await _read_chunks(reader))
    return Message(head, await reader.readexactly(int(fields.get(b"content-length", b"0"))))


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    parts: list[bytes] = []
    while True:
        parts.append(await reader.readuntil(b"\r\n"))
        size = int(parts[-1].partition(b";")[0], 16)
        parts.append(await reader.readexactly(size + 2))
        if not size:
            return b"".join(parts)


def _field(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b":")
    return name.strip().lower(), value.strip()


def _answer(status: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


async def _write(writer: asyncio.StreamWriter, content: bytes) -> bool:
    writer.write(content)
    with contextlib.suppress(ConnectionError):
        await writer.drain()
    return True
