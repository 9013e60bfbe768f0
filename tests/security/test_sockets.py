"""The console's server bounds what comes in on a websocket before anybody is asked who sends it, and not what goes out."""

from __future__ import annotations

import base64
import os
import socket
import struct
from collections.abc import Iterator

import pytest

from tests.support.cluster import ROOT, Process, eventually
from tests.support.ports import free_ports
from webapp.serving import MAX_SOCKET_BYTES

_CLOSE = 8
LONG = 5 * MAX_SOCKET_BYTES
APPLICATION = f"""
async def application(scope, receive, send):
    if scope["type"] != "websocket":
        return
    await receive()
    await send({{"type": "websocket.accept"}})
    while (said := await receive())["type"] == "websocket.receive":
        await send({{"type": "websocket.send", "text": "x" * {LONG} if said["text"] == "long" else said["text"]}})
"""


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    root = tmp_path_factory.mktemp("sockets")
    (root / "echo.py").write_text(APPLICATION)
    (port,) = free_ports(1)
    argv = ["-m", "webapp.serving", "--bind", "127.0.0.1", "--port", str(port), "echo:application"]
    process = Process("serving", argv, root / "log.txt", environment={"PYTHONPATH": f"{root}{os.pathsep}{ROOT}"})
    process.start()
    eventually("the server listens", lambda: listens(port))
    yield port
    process.close()


def listens(port: int) -> bool:
    with socket.socket() as knock:
        return knock.connect_ex(("127.0.0.1", port)) == 0


class Page:
    """One end of a websocket, byte by byte."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 10)
        key = base64.b64encode(os.urandom(16)).decode()
        lines = ("GET / HTTP/1.1", f"Host: 127.0.0.1:{port}", "Upgrade: websocket", "Connection: Upgrade")
        more = ("Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {key}", "", "")
        self._socket.sendall("\r\n".join((*lines, *more)).encode())
        self._stream = self._socket.makefile("rb")
        assert b" 101 " in self._stream.readline()
        while self._stream.readline().strip():
            pass

    def send(self, text: bytes, opcode: int = 0x81) -> None:
        size = len(text)
        length = struct.pack(">B", 0x80 | size) if size < 126 else struct.pack(">BH", 0x80 | 126, size)
        self._socket.sendall(bytes((opcode,)) + length + bytes(4) + text)  # masked with nothing

    def read(self) -> tuple[int, bytes]:
        """The kind of the next frame and what it says; that of a close when the connection ends without one."""
        try:
            head = self._stream.read(2)
        except ConnectionResetError:
            head = b""
        opcode, length = head or bytes((_CLOSE, 0))
        if length >= 126:
            (length,) = struct.unpack(">H" if length == 126 else ">Q", self._stream.read(2 if length == 126 else 8))
        return opcode & 0xF, self._stream.read(length)

    def close(self) -> None:
        self._stream.close()
        self._socket.close()


@pytest.fixture
def page(port: int) -> Iterator[Page]:
    page = Page(port)
    yield page
    page.close()


def test_a_page_is_sent_more_than_it_may_send(page: Page) -> None:
    for _ in range(2):
        page.send(b"long")
        assert page.read() == (1, b"x" * LONG)
        page.send(b"y" * MAX_SOCKET_BYTES)
        assert page.read() == (1, b"y" * MAX_SOCKET_BYTES), "the bound is there again"


@pytest.mark.parametrize("parts", [1, 4])
def test_what_a_page_sends_is_bounded_in_one_frame_and_in_many(page: Page, parts: int) -> None:
    page.send(b"long")  # what was sent before changes nothing
    assert page.read()[0] == 1
    part = b"z" * (MAX_SOCKET_BYTES // parts + 1)
    for number in range(parts):
        page.send(part, (0 if number else 1) | (0x80 if number == parts - 1 else 0))
    assert page.read()[0] == _CLOSE, "the connection is closed"
