"""How much of a request comes in before anybody is asked who sends it: an ASGI application in front of Django.

Django looks at a request when its body is there, and keeps long ones in files; so what is too long, or does not come, is refused
here. It holds whatever serves ASGI. The appliance's own server (`webapp.serving`) refuses the same before it is kept anywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

MAX_BODY_BYTES: Final = 6 * 1024 * 1024  # a test message of 4 MiB, in Base64
HEAD_S: Final = 10.0
BODY_S: Final = 30.0

Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Any, Receive, Send], Awaitable[None]]

TOO_LARGE: Final = (413, f"The body is longer than {MAX_BODY_BYTES} bytes, which is the most that is taken.\n")
TOO_LATE: Final = (408, f"The body did not come within {BODY_S:g} s.\n")


class _Gone(Exception):
    """The client closed its connection."""


class _TooLarge(Exception):
    """More came than is taken."""


class BoundedBodies:
    """Passes a request on when its whole body is there."""

    def __init__(self, application: Application, body_s: float = BODY_S) -> None:
        self._application = application
        self._body_s = body_s

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        try:
            if _announced(scope) > MAX_BODY_BYTES:
                raise _TooLarge
            async with asyncio.timeout(self._body_s):
                body = await _read(receive)
        except _TooLarge:
            await _refuse(send, *TOO_LARGE)
        except TimeoutError:
            await _refuse(send, *TOO_LATE)
        except _Gone:
            return
        else:
            await self._application(scope, _given(body, receive), send)


def _announced(scope: Any) -> int:
    """What Content-Length says; 0 = it says nothing. A server has refused what is no number."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0


async def _read(receive: Receive) -> bytes:
    chunks = []
    left = MAX_BODY_BYTES
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Gone
        chunk = message.get("body", b"")
        left -= len(chunk)
        if left < 0:
            raise _TooLarge
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


def _given(body: bytes, receive: Receive) -> Receive:
    """The body at once, then what comes behind it."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def given() -> Message:
        return first.pop() if first else await receive()

    return given


async def _refuse(send: Send, status: int, text: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})
