"""The yardstick: a bare uvloop protocol that parses a send, appends it and answers. No queues, no replication, no checks.

    python -m tests.bench.prototype PORT FILE background|sync

`sync` answers after fdatasync (one thread, coalescing). A batch is stored as one record, as it came.
"""

from __future__ import annotations

import asyncio
import os
import struct
import sys
import threading
import zlib
from collections import deque

import orjson
import uvloop

_PREFIX = struct.Struct(">iI")
_HEAD = struct.Struct(">IIIiiqqiqIIqIIiqi")
_ANSWER = (
    b'{"code":0,"extFields":{"msgId":"%032x","queueId":"0","queueOffset":"%d"},"flag":1,"opaque":%d,"version":479}'
)


class Log:
    def __init__(self, path: str) -> None:
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.ftruncate(self.descriptor, 8 << 30)
        self.position = 0
        self.count = 0


class Syncer:
    """One fdatasync at a time; answers wait for the first sync that began after their append."""

    def __init__(self, log: Log, loop: asyncio.AbstractEventLoop) -> None:
        self.log = log
        self.loop = loop
        self.waiting: deque[tuple[asyncio.Transport, bytes]] = deque()
        self.wake = threading.Semaphore(0)
        self.idle = True
        threading.Thread(target=self._run, daemon=True).start()

    def answer(self, transport: asyncio.Transport, data: bytes) -> None:
        self.waiting.append((transport, data))
        if self.idle:
            self.idle = False
            self.wake.release()

    def _run(self) -> None:
        while True:
            self.wake.acquire()
            count = len(self.waiting)
            os.fdatasync(self.log.descriptor)
            self.loop.call_soon_threadsafe(self._synced, count)

    def _synced(self, count: int) -> None:
        for _ in range(count):
            transport, data = self.waiting.popleft()
            transport.write(data)
        if self.waiting:
            self.wake.release()
        else:
            self.idle = True


class Prototype(asyncio.Protocol):
    def __init__(self, log: Log, syncer: Syncer | None) -> None:
        self.log = log
        self.syncer = syncer
        self.rest = b""

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        data = self.rest + data if self.rest else data
        view = memoryview(data)
        records: list[bytes | memoryview] = []
        answers = []
        position = 0
        end = len(data)
        log = self.log
        at = log.position
        while end - position >= 8:
            total, header_length = _PREFIX.unpack_from(data, position)
            if position + 4 + total > end:
                break
            body_at = position + 8 + header_length
            header = orjson.loads(view[position + 8 : body_at])
            ext = header["extFields"]
            body = view[body_at : position + 4 + total]
            properties = ext["i"].encode()
            topic = ext["b"].encode()
            size = 91 + len(body) + len(topic) + len(properties)
            head = _HEAD.pack(
                size, 0xDAA320A7, zlib.crc32(body) & 0x7FFFFFFF, int(ext["e"]), int(ext["h"]), log.count, at, int(ext["f"]),
                int(ext["g"]), 0x7F000001, 1, 0, 0x7F000001, 1, 0, 0, len(body),
            )  # fmt: skip
            records += [head, body, bytes((len(topic),)), topic, struct.pack(">h", len(properties)), properties]
            answer = _ANSWER % (at, log.count, header["opaque"])
            answers += [_PREFIX.pack(4 + len(answer), len(answer)), answer]
            at += size
            log.count += 1
            position += 4 + total
        self.rest = data[position:]
        if records:
            os.pwrite(log.descriptor, b"".join(records), log.position)
            log.position = at
            if self.syncer is None:
                self.transport.write(b"".join(answers))
            else:
                self.syncer.answer(self.transport, b"".join(answers))


async def main(port: int, path: str, mode: str) -> None:
    log = Log(path)
    loop = asyncio.get_running_loop()
    syncer = Syncer(log, loop) if mode == "sync" else None
    server = await loop.create_server(lambda: Prototype(log, syncer), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), sys.argv[2], sys.argv[3]))
