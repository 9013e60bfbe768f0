"""The console's port speaks HTTP and HTTPS: the first byte decides; pages, forms, REST and websockets on a real server."""

from __future__ import annotations

import base64
import contextlib
import datetime
import http.cookiejar
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from remoting.transport.tls import client_context
from tests.bench.harness import ROOT
from tests.bench.viewers import Console, console
from webapp.appliance import certificates
from webapp.appliance.layout import DataLayout

pytestmark = pytest.mark.slow

PASSWORD = "a boom of many logs"
SCHEMES = ("http", "https")


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> DataLayout:
    made = DataLayout(tmp_path_factory.mktemp("certificates"))
    certificates.keep_fresh(made, (), datetime.datetime.now(datetime.UTC))
    return made


@pytest.fixture(scope="module")
def running(layout: DataLayout) -> Iterator[Console]:
    with console(ROOT, "--certificate", str(layout.tls_certificate_file), "--key", str(layout.tls_key_file)) as one:
        yield one


class Browser:
    """Keeps cookies, and trusts the appliance's authority alone."""

    def __init__(self, running: Console, layout: DataLayout, scheme: str) -> None:
        self.cookies = http.cookiejar.CookieJar()
        self.origin = f"{scheme}://127.0.0.1:{running.http_port}"
        self._port = running.http_port
        self._context = client_context(str(layout.tls_authority_file), check_host=True) if scheme == "https" else None
        self._opener = urllib.request.build_opener(
            urllib.request.HTTPCookieProcessor(self.cookies),
            *([urllib.request.HTTPSHandler(context=self._context)] if self._context is not None else []),
        )

    def get(self, path: str) -> str:
        with self._opener.open(self.origin + path, timeout=10) as answer:
            text: str = answer.read().decode()
            return text

    def log_in(self, origin: str = "") -> int:
        """The status, and where it went."""
        found = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', self.get("/login"))
        assert found is not None
        form = urllib.parse.urlencode({"csrfmiddlewaretoken": found[1], "username": "admin", "password": PASSWORD})
        headers = {"Origin": origin or self.origin, "Referer": f"{self.origin}/login"}
        request = urllib.request.Request(f"{self.origin}/login", form.encode(), headers)
        try:
            with self._opener.open(request, timeout=10) as answer:
                status: int = answer.status
                return status
        except urllib.error.HTTPError as error:
            return error.code

    def open_socket(self, origin: str = "") -> bytes:
        """The first line of what a websocket's handshake is answered."""
        with contextlib.ExitStack() as stack:
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", self._port), 10))
            if self._context is not None:
                connection = stack.enter_context(self._context.wrap_socket(connection, server_hostname="127.0.0.1"))
            lines = (
                *("GET /ws/snapshot?view=landing HTTP/1.1", f"Host: 127.0.0.1:{self._port}"),
                *("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"),
                f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
                f"Origin: {origin or self.origin}",
                "Cookie: " + "; ".join(f"{cookie.name}={cookie.value}" for cookie in self.cookies),
            )
            connection.sendall("\r\n".join((*lines, "", "")).encode())
            return connection.makefile("rb").readline()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_person_logs_in_and_sees_live_pages(running: Console, layout: DataLayout, scheme: str) -> None:
    browser = Browser(running, layout, scheme)
    assert json.loads(browser.get("/api/v1/health"))["status"]
    assert browser.log_in() == 200
    assert "/logout" in browser.get("/")
    assert b" 101 " in browser.open_socket()


def test_forms_are_taken_from_pages_of_their_own_scheme(running: Console, layout: DataLayout) -> None:
    """Somebody between may write pages in plaintext."""
    assert Browser(running, layout, "https").log_in(origin=f"http://127.0.0.1:{running.http_port}") == 403


@pytest.mark.parametrize("scheme", SCHEMES)
def test_pages_of_others_open_no_websocket(running: Console, layout: DataLayout, scheme: str) -> None:
    browser = Browser(running, layout, scheme)
    browser.log_in()
    for origin in ("https://127.0.0.1:1", "http://127.0.0.1", f"https://elsewhere:{running.http_port}"):
        assert b" 403 " in browser.open_socket(origin), origin


def test_a_new_certificate_is_shown_to_the_next_connection(running: Console, layout: DataLayout) -> None:
    def dial() -> ssl.SSLSocket:
        return client_context(str(layout.tls_authority_file), check_host=True).wrap_socket(
            socket.create_connection(("127.0.0.1", running.http_port), 10), server_hostname="localhost"
        )

    with dial() as before:
        shown = before.getpeercert(binary_form=True)
        assert certificates.keep_fresh(layout, ("logs.example",), datetime.datetime.now(datetime.UTC))
        with dial() as after:
            assert after.getpeercert(binary_form=True) != shown
        before.sendall(f"GET /api/v1/health HTTP/1.1\r\nHost: 127.0.0.1:{running.http_port}\r\n\r\n".encode())
        assert b" 200 " in before.recv(100), "who is connected stays"


@pytest.mark.parametrize(
    "said",
    [b"\x16", b"\x16\x03\x01\xff\xff" + bytes(70_000), b"\x16GET / HTTP/1.1\r\n\r\n", b"\x15\x03\x01\x00\x02\x02\x28"],
)
def test_what_is_neither_hurts_nobody(running: Console, layout: DataLayout, said: bytes) -> None:
    with (
        socket.create_connection(("127.0.0.1", running.http_port), 10) as hostile,
        contextlib.suppress(OSError),
    ):
        hostile.sendall(said)
        hostile.shutdown(socket.SHUT_WR)
        while hostile.recv(65_536):
            pass
    for scheme in SCHEMES:
        assert json.loads(Browser(running, layout, scheme).get("/api/v1/health"))["status"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--certificate", "/nowhere", "--key", "/nowhere"), "cannot use the certificate /nowhere"),
        (("--certificate", "/nowhere"), "belong together"),
    ],
)
def test_files_that_are_not_fit_are_told(tmp_path: Path, options: tuple[str, ...], sentence: str) -> None:
    words = [sys.executable, "-m", "webapp.serving", *options, "webapp.asgi:application"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, sentence in done.stderr, "Traceback" in done.stderr) == (1, True, False), done.stderr
