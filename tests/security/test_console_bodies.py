"""What somebody who is nobody makes the console keep: long bodies, bodies and heads that do not end, and frames of websockets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from tests.bench.harness import ROOT
from tests.bench.processes import cpu_seconds, memory_of
from tests.bench.viewers import Console, console
from tests.security.test_unfinished import connected, is_closed, push
from tests.support.cluster import eventually
from webapp.intake import BODY_S, HEAD_S, MAX_BODY_BYTES, BoundedBodies

MIB = 1 << 20
MOST_FILE_BYTES = 1 * MIB  # of files that have no name


@pytest.fixture(scope="module")
def running() -> Iterator[Console]:
    with console(ROOT) as one:
        yield one


def address(running: Console) -> str:
    return f"127.0.0.1:{running.http_port}"


def head(running: Console, *lines: str, method: str = "POST", path: str = "/login") -> bytes:
    return "\r\n".join((f"{method} {path} HTTP/1.1", f"Host: {address(running)}", *lines, "", "")).encode()


def nameless_bytes(pid: int) -> int:
    """How much there is in files that a process has open and that have no name any more."""
    total = 0
    for each in os.scandir(f"/proc/{pid}/fd"):
        try:
            status = os.stat(each.path)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode) and not status.st_nlink:
            total += status.st_size
    return total


class Watched:
    """The most that a process held and wrote to nameless files while something went on."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._before_mb = memory_of(pid).resident_mb
        self.most_mb = 0.0
        self.most_file_bytes = 0

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.01):
            self.most_mb = max(self.most_mb, memory_of(self._pid).resident_mb - self._before_mb)
            self.most_file_bytes = max(self.most_file_bytes, nameless_bytes(self._pid))


def answer(connection: socket.socket) -> bytes:
    """What it says until it closes, or for a second without a word."""
    connection.settimeout(5)
    said = b""
    try:
        while more := connection.recv(65_536):
            said += more
            connection.settimeout(1)
    except OSError:
        pass
    return said


@pytest.mark.parametrize("framing", ["content-length", "chunked"])
def test_400_mb_of_nobody_reach_neither_disk_nor_memory(running: Console, framing: str) -> None:
    size = 400 * MIB
    if framing == "chunked":
        data = head(running, "Transfer-Encoding: chunked") + (b"100000\r\n" + bytes(MIB) + b"\r\n") * 400
    else:
        data = head(running, f"Content-Length: {size}") + bytes(size)
    with connected(address(running)) as attacker, Watched(running.pid) as watched:
        push([attacker], data, 4)
        said = answer(attacker)
    assert watched.most_file_bytes < MOST_FILE_BYTES
    assert watched.most_mb < 48
    assert said.startswith(b"HTTP/1.1 413 "), said[:200]


def test_many_bodies_that_do_not_end_are_within_a_budget(running: Console) -> None:
    data = head(running, f"Content-Length: {MAX_BODY_BYTES}") + bytes(MAX_BODY_BYTES - 1)
    attackers = [connected(address(running)) for _ in range(60)]
    try:
        with Watched(running.pid) as watched:
            push(attackers, data, 3)
            with connected(address(running)) as honest:
                honest.sendall(head(running, method="GET", path="/api/v1/health"))
                assert answer(honest).startswith(b"HTTP/1.1 200 ")
            with connected(address(running)) as honest:
                honest.sendall(head(running, f"Content-Length: {4 * MIB}") + bytes(4 * MIB))
                assert b" 403 " in answer(honest)[:20], "Django's own answer: it is there whole"
        assert watched.most_mb < 140
        assert watched.most_file_bytes < MOST_FILE_BYTES
    finally:
        for each in attackers:
            each.close()


@pytest.mark.parametrize(
    ("begun", "drip", "most_s"),
    [
        (b"POST /lo", b"g", HEAD_S),
        (b"GET / HTTP/1.1\r\nx: y", b"z", HEAD_S),
        (b"POST /login HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n", b"z", BODY_S),
    ],
    ids=["a line", "a head", "a body"],
)
def test_what_drips_is_ended(running: Console, begun: bytes, drip: bytes, most_s: float) -> None:
    with connected(address(running)) as dripping:
        dripping.sendall(begun)
        started = time.monotonic()

        def drips() -> bool:
            if time.monotonic() - started < most_s:
                dripping.send(drip)
            return is_closed(dripping)

        eventually("it is closed", drips, timeout_s=most_s + 10)
        assert time.monotonic() - started > most_s - 1, "not before its time"


def urlencoded_form() -> tuple[str, bytes]:
    return "application/x-www-form-urlencoded", b"&".join(b"%x=" % number for number in range(700_000))


def multipart_form() -> tuple[str, bytes]:
    part = b'--b\r\nContent-Disposition: form-data; name="%x"\r\n\r\nx\r\n'
    return "multipart/form-data; boundary=b", b"".join(part % number for number in range(80_000)) + b"--b--\r\n"


@pytest.mark.parametrize("form", [urlencoded_form, multipart_form])
def test_nobody_reads_all_fields_of_a_strangers_form(running: Console, form: Callable[[], tuple[str, bytes]]) -> None:
    """Django stops at its bound; the server before it took seconds, in which nobody else was answered."""
    kind, body = form()
    before_s = cpu_seconds(running.pid)
    with connected(address(running)) as stranger, Watched(running.pid) as watched:
        stranger.settimeout(60)
        stranger.sendall(head(running, f"Content-Type: {kind}", f"Content-Length: {len(body)}") + body)
        assert stranger.recv(65_536).startswith(b"HTTP/1.1 403 ")
    assert watched.most_mb < 48
    assert cpu_seconds(running.pid) - before_s < 2


def test_many_bodies_that_end_are_not_all_with_django_at_once(running: Console) -> None:
    whole = head(running, f"Content-Length: {MAX_BODY_BYTES}") + bytes(MAX_BODY_BYTES)
    strangers = [connected(address(running)) for _ in range(60)]
    try:
        with Watched(running.pid) as watched:
            for each in strangers:
                each.setblocking(False)
            left = dict.fromkeys(strangers, 0)
            until = time.monotonic() + 60
            while left and time.monotonic() < until:
                for each, at in list(left.items()):
                    with contextlib.suppress(BlockingIOError):
                        left[each] += each.send(whole[at : at + MIB])
                    if left[each] == len(whole):
                        del left[each]
            assert not left
            for each in strangers:
                each.settimeout(60)
                assert each.recv(65_536).startswith(b"HTTP/1.1 403 ")
        assert watched.most_mb < 256
        assert watched.most_file_bytes < MOST_FILE_BYTES
    finally:
        for each in strangers:
            each.close()


@pytest.mark.parametrize(
    "more", [b"Expect: 100-continue\r\n\r\n", b"\r\n" + b"x: y\r\nno field\r\n\r\n" * 1000], ids=["expect", "lines"]
)
def test_a_refusal_is_the_only_answer(running: Console, more: bytes) -> None:
    with connected(address(running)) as refused:
        refused.sendall(head(running, f"Content-Length: {MAX_BODY_BYTES + 1}").removesuffix(b"\r\n") + more)
        said = answer(refused)
    assert said.startswith(b"HTTP/1.1 413 ")
    assert said.endswith(b"which is the most that is taken.\n")


def test_a_slow_body_comes_in_whole(running: Console) -> None:
    with connected(address(running)) as slow:
        slow.sendall(head(running, f"Content-Length: {20 * 50_000}"))
        for _ in range(20):
            slow.sendall(bytes(50_000))
            time.sleep(0.15)  # what makes it slow
        assert b" 403 " in answer(slow)[:20]


@pytest.mark.parametrize("opcode", [0x1, 0x2], ids=["text", "binary"])
def test_a_websocket_takes_no_long_frames(running: Console, opcode: int) -> None:
    """Neither before it is let in nor behind that; a stranger is not let in at all."""
    asked = head(
        running,
        f"Origin: http://{address(running)}",
        *("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"),
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        method="GET",
        path="/ws/snapshot",
    )
    frame = bytes((0x80 | opcode, 0x80 | 127)) + (200 * MIB).to_bytes(8) + bytes(4)
    attackers = [connected(address(running)) for _ in range(4)]
    try:
        with Watched(running.pid) as watched:
            push(attackers, asked + frame + bytes(200 * MIB), 4)
        assert watched.most_mb < 48
        eventually("they are closed", lambda: all(map(is_closed, attackers)), timeout_s=30)
    finally:
        for each in attackers:
            each.close()


# ---- whatever serves the application


def served(messages: list[Mapping[str, Any]], *headers: tuple[bytes, bytes]) -> tuple[int, bytes | None]:
    """The status of the answer, and the body that the application got."""
    sent: list[Mapping[str, Any]] = []
    got: list[bytes] = []

    async def application(scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        message = await receive()
        assert not message["more_body"]
        got.append(message["body"])
        await send({"type": "http.response.start", "status": 200})

    async def receive() -> Mapping[str, Any]:
        if not messages:
            await asyncio.Event().wait()
        return messages.pop(0)

    async def send(message: Mapping[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "headers": list(headers)}
    asyncio.run(BoundedBodies(application, body_s=0.1)(scope, receive, send))
    return sent[0]["status"] if sent else 0, got[0] if got else None


def piece(body: bytes, *, more: bool = True) -> Mapping[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


def test_the_application_gets_whole_bodies_of_bounded_length() -> None:
    assert served([piece(b"a"), piece(b"b"), piece(b"", more=False)]) == (200, b"ab")
    assert served([piece(b"", more=False)]) == (200, b"")
    assert served([piece(bytes(MAX_BODY_BYTES), more=False)]) == (200, bytes(MAX_BODY_BYTES))
    assert served([], (b"content-length", str(MAX_BODY_BYTES + 1).encode())) == (413, None)
    assert served([piece(bytes(MIB)) for _ in range(7)]) == (413, None)
    assert served([piece(b"a")]) == (408, None)
    assert served([piece(b"a"), {"type": "http.disconnect"}]) == (0, None)
