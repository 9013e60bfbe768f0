"""`GET /metrics` over HTTP, for daemons: one small listener that asks a function for the text at each scrape.

Knows nothing of metrics: the daemon renders them. A listener that cannot bind is no reason to stop a daemon; the log says so.
What a peer can make us hold is bounded: connections, bytes of a request, and the time to send one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from remoting.settings import setting
from remoting.transport.tasks import TaskOwner

log = logging.getLogger(__name__)

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_MAX_CONNECTIONS: Final = 32
_MAX_HEAD_BYTES: Final = 8192
_TIMEOUT_S: Final = 5.0
_PORT_DISTANCE: Final = 10_000
_MAX_PORT: Final = 65_535


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    host: str = setting("127.0.0.1", "address of the metrics listener")
    port: int = setting(
        0, "port of GET /metrics; 0: the daemon's own port + 10000, -1: none", minimum=-1, maximum=_MAX_PORT
    )

    def scrape_port(self, own_port: int) -> int | None:
        """The port to listen on for a daemon that listens on `own_port`; None when there is none."""
        if self.port != 0:
            return self.port if self.port > 0 else None
        return own_port + _PORT_DISTANCE if own_port + _PORT_DISTANCE <= _MAX_PORT else own_port - _PORT_DISTANCE


class MetricsExporter:
    """One listener. `render` gives the text in Prometheus' exposition format and must not block."""

    def __init__(self, host: str, port: int, render: Callable[[], bytes]) -> None:
        self._host = host
        self._port = port
        self._render = render
        self._server: asyncio.Server | None = None
        self._open = 0
        self._tasks = TaskOwner("metrics")

    @property
    def port(self) -> int | None:
        """The bound port; None while not listening."""
        if self._server is None:
            return None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def start(self) -> None:
        """Listen; when the address cannot be bound, the log says what to change and nothing listens."""
        try:
            self._server = await asyncio.start_server(self._accept, self._host, self._port, limit=_MAX_HEAD_BYTES)
        except OSError as error:
            log.error(
                "no metrics: cannot listen on %s:%d (%s); choose a port with --set metrics.port=N, or -1 for none",
                self._host,
                self._port,
                error.strerror,
            )
        else:
            log.info("metrics at http://%s:%d/metrics", self._host, self.port)

    async def close(self) -> None:
        """Stop listening and drop who is still being answered."""
        if self._server is not None:
            self._server.close()
        await self._tasks.close()
        self._server = None

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._open >= _MAX_CONNECTIONS:
            writer.transport.abort()
            return
        self._open += 1
        self._tasks.spawn(self._serve(reader, writer), "scrape")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError) as error:
            log.debug("a scrape was given up: %s", error)
        finally:
            self._open -= 1
            writer.transport.abort()

    def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.split(b"\r\n", 1)[0].partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            return _response("405 Method Not Allowed", b"only GET and HEAD are understood\n", "Allow: GET, HEAD\r\n")
        if path != b"/metrics":
            return _response("404 Not Found", b"the metrics are at /metrics\n")
        body = self._render()
        answer = _response("200 OK", body)
        return answer if method == b"GET" else answer[: len(answer) - len(body)]


def _response(status: str, body: bytes, more: str = "") -> bytes:
    content_type = CONTENT_TYPE if status.startswith("200") else "text/plain; charset=utf-8"
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n{more}"
    return head.encode() + b"Connection: close\r\n\r\n" + body
