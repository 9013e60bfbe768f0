"""The console's port speaks HTTP and HTTPS: the first byte decides; pages, forms, REST and websockets on a real server."""

from __future__ import annotations

import base64
import contextlib
import datetime
import http.cookiejar
import json
import os
import re
import resource
import select
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from remoting.transport.tls import client_context
from tests.bench.harness import ROOT
from tests.bench.processes import memory_of
from tests.bench.viewers import Console, console
from tests.support.cluster import eventually
from tests.support.ports import free_ports
from webapp.appliance import certificates
from webapp.appliance.layout import DataLayout
from webapp.intake import HEAD_S, MAX_BODY_BYTES

pytestmark = pytest.mark.slow

PASSWORD = "a boom of many logs"
SCHEMES = ("http", "https")
FILES = 300


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> DataLayout:
    made = DataLayout(tmp_path_factory.mktemp("certificates"))
    certificates.keep_fresh(made, (), datetime.datetime.now(datetime.UTC))
    return made


@pytest.fixture(scope="module")
def https_port() -> int:
    """Of the port for other machines."""
    return free_ports(1)[0]


@pytest.fixture(scope="module")
def running(layout: DataLayout, https_port: int) -> Iterator[Console]:
    files = str(layout.tls_certificate_file), str(layout.tls_key_file)
    https = f"127.0.0.1:{https_port}"
    with console(ROOT, "--certificate", files[0], "--key", files[1], "--https", https) as one:
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

    def log_in(self, origin: str = "", name: str = "admin") -> int:
        """The status, and where it went."""
        found = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', self.get("/login"))
        assert found is not None
        form = urllib.parse.urlencode({"csrfmiddlewaretoken": found[1], "username": name, "password": PASSWORD})
        headers = {"Origin": origin or self.origin, "Referer": f"{self.origin}/login"}
        request = urllib.request.Request(f"{self.origin}/login", form.encode(), headers)
        try:
            with self._opener.open(request, timeout=10) as answer:
                status: int = answer.status
                return status
        except urllib.error.HTTPError as error:
            return error.code

    @contextlib.contextmanager
    def connected(self) -> Iterator[socket.socket]:
        """To the console's port, for what one writes oneself."""
        with contextlib.ExitStack() as stack:
            connection = stack.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # what is unread is with the console soon
            connection.settimeout(10)
            connection.connect(("127.0.0.1", self._port))
            if self._context is not None:
                connection = stack.enter_context(self._context.wrap_socket(connection, server_hostname="127.0.0.1"))
            yield connection

    def handshake(self, origin: str = "") -> bytes:
        """What asks for a websocket."""
        lines = (
            *("GET /ws/snapshot?view=landing HTTP/1.1", f"Host: 127.0.0.1:{self._port}"),
            *("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"),
            f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
            f"Origin: {origin or self.origin}",
            "Cookie: " + "; ".join(f"{cookie.name}={cookie.value}" for cookie in self.cookies),
        )
        return "\r\n".join((*lines, "", "")).encode()

    def open_socket(self, origin: str = "") -> bytes:
        """The first line of what a websocket's handshake is answered; one that is refused is closed behind it."""
        with self.connected() as connection:
            connection.sendall(self.handshake(origin))
            answer = connection.makefile("rb")
            line = answer.readline()
            assert b" 101 " in line or answer.read() is not None
            return line


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


@pytest.mark.parametrize("offered", [(), ("h2", "http/1.1"), ("http/1.1",)])
def test_both_ports_speak_tls_with_browsers(
    running: Console, layout: DataLayout, https_port: int, offered: tuple[str, ...]
) -> None:
    """Those offer protocols in the handshake."""
    context = client_context(str(layout.tls_authority_file), check_host=True)
    if offered:
        context.set_alpn_protocols(offered)
    for port in (running.http_port, https_port):
        with context.wrap_socket(
            socket.create_connection(("127.0.0.1", port), 10), server_hostname="localhost"
        ) as connection:
            assert connection.selected_alpn_protocol() == ("http/1.1" if offered else None)
            connection.sendall(f"GET /api/v1/health HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            assert b" 200 " in connection.recv(100)


@pytest.mark.parametrize(
    ("versions", "ciphers"),
    [
        ((ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1), "ALL:@SECLEVEL=0"),
        ((ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_1), "ALL:@SECLEVEL=0"),
        ((ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2), "AES256-GCM-SHA384:AECDH-AES128-SHA:@SECLEVEL=0"),
        (
            (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2),
            "ECDHE-ECDSA-AES256-SHA384:ECDHE-RSA-AES256-SHA384:ECDHE-ECDSA-AES128-SHA:ECDHE-RSA-AES128-SHA:@SECLEVEL=0",
        ),
    ],
    ids=["1.0", "1.1", "no forward secrecy", "CBC"],
)
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1(_1)? is deprecated")
def test_what_is_out_of_date_is_not_spoken(
    running: Console, https_port: int, versions: tuple[ssl.TLSVersion, ssl.TLSVersion], ciphers: str
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers(ciphers)
    context.minimum_version, context.maximum_version = versions
    for port in (running.http_port, https_port):
        with (
            socket.create_connection(("127.0.0.1", port), 10) as connection,
            pytest.raises(ssl.SSLError, match="ALERT"),
        ):
            context.wrap_socket(connection)


@pytest.fixture(scope="module")
def narrow(layout: DataLayout) -> Iterator[Console]:
    """With so few file descriptors that a small crowd does."""
    files = str(layout.tls_certificate_file), str(layout.tls_key_file)
    with contextlib.ExitStack() as stack:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, limits[1]))
        try:
            made = stack.enter_context(console(ROOT, "--certificate", files[0], "--key", files[1]))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        yield made


@pytest.mark.parametrize("said", ["nothing", "half a handshake", "half a head"])
def test_a_crowd_that_does_not_come_to_the_point_keeps_nobody_out(
    narrow: Console, layout: DataLayout, said: str
) -> None:
    outgoing = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
    data = {"nothing": b"", "half a handshake": outgoing.read(), "half a head": b"GET / HTTP/1.1\r\n"}[said]
    with contextlib.ExitStack() as stack:
        for _ in range(2 * FILES):
            attacker = stack.enter_context(socket.create_connection(("127.0.0.1", narrow.http_port), 10))
            with contextlib.suppress(ConnectionError):  # of one that went already
                attacker.sendall(data)
        for scheme in SCHEMES:
            assert json.loads(Browser(narrow, layout, scheme).get("/api/v1/health"))["status"]
        assert len(os.listdir(f"/proc/{narrow.pid}/fd")) < FILES // 2 + 60


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_websocket_that_is_refused_ends_also_when_its_client_does_not(
    narrow: Console, layout: DataLayout, scheme: str
) -> None:
    """TLS ends when both ends say so, which a stranger need not."""
    stranger = Browser(narrow, layout, scheme)
    before = len(os.listdir(f"/proc/{narrow.pid}/fd"))
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            connection = stack.enter_context(stranger.connected())
            connection.sendall(stranger.handshake())
            assert b" 403 " in connection.recv(20)
        eventually("they are gone", lambda: len(os.listdir(f"/proc/{narrow.pid}/fd")) < before + 20)


def test_who_opens_many_websockets_keeps_nobody_out(narrow: Console, layout: DataLayout) -> None:
    """One person has a share of those that the server bears."""
    make = (
        "import django; django.setup()\n"
        "from webapp.accounts.models import User\n"
        "from webapp.accounts.permissions import set_role\n"
        f"set_role(User.objects.create_user('mia', password='{PASSWORD}'), 'viewer')"
    )
    subprocess.run([sys.executable, "-c", make], cwd=ROOT, env=narrow.environment, check=True)
    many, other = Browser(narrow, layout, "https"), Browser(narrow, layout, "https")
    assert (many.log_in(), other.log_in("", "mia")) == (200, 200)
    with contextlib.ExitStack() as stack:
        opened = 0
        for _ in range(FILES):
            connection = stack.enter_context(many.connected())
            connection.sendall(many.handshake())
            opened += b" 101 " in connection.recv(20)
        assert 10 <= opened < FILES // 4
        assert json.loads(other.get("/api/v1/health"))["status"]
        assert b" 101 " in other.open_socket()
    for _ in range(FILES // 4):
        eventually("places come free again", lambda: b" 101 " in many.open_socket())


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", ["pings", "messages"])
def test_a_viewer_who_floods_a_websocket_and_reads_nothing_is_bounded(
    running: Console, layout: DataLayout, scheme: str, kind: str
) -> None:
    """Of pings no more are read than their answers are; who says much is closed."""
    browser = Browser(running, layout, scheme)
    assert browser.log_in() == 200
    frame = _frame(0x9, bytes(125)) if kind == "pings" else _frame(0x1, b'{"type": "ack"}')
    with browser.connected() as connection:
        connection.sendall(browser.handshake())
        assert b" 101 " in connection.recv(100)
        connection.settimeout(5)
        before_mb = memory_of(running.pid).resident_mb
        assert _flood(connection, frame) == ("nothing more is taken" if kind == "pings" else "closed")
        assert memory_of(running.pid).resident_mb - before_mb < 24
        assert json.loads(browser.get("/api/v1/health"))["status"]


@pytest.mark.parametrize("framing", ["content-length", "chunked"])
def test_bodies_are_bounded_in_tls_as_in_plaintext(running: Console, layout: DataLayout, framing: str) -> None:
    browser = Browser(running, layout, "https")
    head = f"POST /login HTTP/1.1\r\nHost: 127.0.0.1:{running.http_port}\r\n"
    before_mb = memory_of(running.pid).resident_mb
    with browser.connected() as connection:
        if framing == "chunked":
            connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
            with contextlib.suppress(OSError):
                for _ in range(64):
                    connection.sendall(b"100000\r\n" + bytes(1 << 20) + b"\r\n")
        else:
            connection.sendall(f"{head}Content-Length: {MAX_BODY_BYTES + 1}\r\n\r\n".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")
    with browser.connected() as connection:
        connection.sendall(f"{head}Content-Length: {MAX_BODY_BYTES}\r\n\r\n".encode() + bytes(MAX_BODY_BYTES))
        assert connection.recv(100).startswith(b"HTTP/1.1 403 "), "Django's own answer: it is there whole"
    assert memory_of(running.pid).resident_mb - before_mb < 48


def test_bodies_that_do_not_end_share_a_budget_in_tls(running: Console, layout: DataLayout) -> None:
    browser = Browser(running, layout, "https")
    head = f"POST /login HTTP/1.1\r\nHost: 127.0.0.1:{running.http_port}\r\nContent-Length: {MAX_BODY_BYTES}\r\n\r\n"
    before_mb = memory_of(running.pid).resident_mb
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            connection = stack.enter_context(browser.connected())
            connection.settimeout(1)
            with contextlib.suppress(OSError):  # it waits for room
                connection.sendall(head.encode() + bytes(MAX_BODY_BYTES - 1))
        assert memory_of(running.pid).resident_mb - before_mb < 160
        assert json.loads(browser.get("/api/v1/health"))["status"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_requests_behind_one_another_wait_while_their_answers_are_not_read(
    running: Console, layout: DataLayout, scheme: str
) -> None:
    browser = Browser(running, layout, scheme)
    before_mb = memory_of(running.pid).resident_mb
    question = f"GET /static/vendor/htmx.min.js HTTP/1.1\r\nHost: 127.0.0.1:{running.http_port}\r\n\r\n".encode()
    with browser.connected() as connection:
        connection.settimeout(3)
        assert _flood(connection, question) == "nothing more is taken"
        assert memory_of(running.pid).resident_mb - before_mb < 100


def _flood(connection: socket.socket, frame: bytes) -> str:
    sent, data = 0, frame * 1000
    try:
        while sent < 24 << 20:
            sent += connection.send(data[sent % len(frame) :])
    except TimeoutError:
        return "nothing more is taken"
    except (ConnectionError, ssl.SSLEOFError):
        return "closed"
    return "all is taken"


def _frame(opcode: int, payload: bytes) -> bytes:
    """One of a client; the mask that changes nothing is a mask, too."""
    size = bytes((0x80 | len(payload),)) if len(payload) < 126 else b"\xfe" + len(payload).to_bytes(2)
    return bytes((0x80 | opcode,)) + size + bytes(4) + payload


def test_a_new_certificate_is_shown_to_the_next_connection(
    running: Console, layout: DataLayout, https_port: int
) -> None:
    """At both ports, while who is connected stays and who is logged in stays that."""

    def dial(port: int) -> ssl.SSLSocket:
        return client_context(str(layout.tls_authority_file), check_host=True).wrap_socket(
            socket.create_connection(("127.0.0.1", port), 10), server_hostname="localhost"
        )

    ports = running.http_port, https_port
    person = Browser(running, layout, "https")
    assert person.log_in() == 200
    with contextlib.ExitStack() as stack:
        before = [stack.enter_context(dial(port)) for port in ports]
        viewer = stack.enter_context(person.connected())
        viewer.sendall(person.handshake())
        assert b" 101 " in viewer.recv(13)
        shown = {each.getpeercert(binary_form=True) for each in before}
        assert len(shown) == 1
        assert certificates.keep_fresh(layout, ("logs.example",), datetime.datetime.now(datetime.UTC))
        for port in ports:
            assert stack.enter_context(dial(port)).getpeercert(binary_form=True) not in shown
        for each, port in zip(before, ports, strict=True):
            each.sendall(f"GET /api/v1/health HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            assert b" 200 " in each.recv(100), "who is connected stays"
        assert "/logout" in person.get("/")
        viewer.sendall(_frame(0x9, b"still here"))
        said = b""
        while b"still here" not in said:
            more = viewer.recv(65_536)
            assert more, "the websocket ended"
            said += more


def test_a_port_for_https_alone_says_nothing_in_plaintext(running: Console, https_port: int) -> None:
    with socket.create_connection(("127.0.0.1", https_port), 10) as connection:
        connection.sendall(f"GET /api/v1/health HTTP/1.1\r\nHost: 127.0.0.1:{https_port}\r\n\r\n".encode())
        said = b""
        with contextlib.suppress(ConnectionError):
            while more := connection.recv(1000):
                said += more
        assert b"HTTP" not in said


def test_a_handshake_that_drips_ends_by_its_deadline(running: Console, https_port: int) -> None:
    """A record cut in pieces, and a hello in many records."""
    outgoing = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
    hello = outgoing.read()
    records = b"".join(b"\x16\x03\x01\x00\x01" + hello[at : at + 1] for at in range(5, len(hello)))
    for port in (running.http_port, https_port):
        dripping = []
        for data, piece in ((hello, 1), (records, 6)):
            connection = socket.create_connection(("127.0.0.1", port), 10)
            connection.setblocking(False)
            dripping.append((connection, iter([data[at : at + piece] for at in range(0, len(data), piece)])))
        began_s = time.monotonic()
        while dripping:
            assert time.monotonic() - began_s < 2 * HEAD_S + 10, f"{len(dripping)} go on at {port}"
            readable, _, _ = select.select([connection for connection, _ in dripping], [], [], 0.2)
            for connection, pieces in list(dripping):
                try:
                    if connection in readable and not connection.recv(1000):
                        raise ConnectionResetError
                    connection.sendall(next(pieces))
                except ConnectionError:
                    connection.close()
                    dripping.remove((connection, pieces))


def test_nobody_negotiates_again(running: Console, layout: DataLayout, https_port: int) -> None:
    """Which costs the server much more than the client."""
    for port in (running.http_port, https_port):
        done = subprocess.run(
            ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-tls1_2", "-CAfile", layout.tls_authority_file],
            input="R\n",
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert "RENEGOTIATING" in done.stdout + done.stderr
        assert "no renegotiation" in done.stderr or "handshake failure" in done.stderr, done.stderr


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
