"""Where a request of the console's port ends is no matter of opinion: what a proxy in front could read differently is refused,
and nothing that was sent behind it is carried out, in plaintext and in TLS."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator

import pytest

from remoting.transport.tls import client_context
from tests.support.certificates import Authority
from tests.support.cluster import ROOT, Process, eventually
from tests.support.ports import free_ports

SCHEMES = ("http", "https")
# Answers each request with what it is; /seen with all that came so far.
APPLICATION = """
import json
seen = []
async def application(scope, receive, send):
    if scope["type"] != "http":
        return
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    path = scope["raw_path"].decode()
    if path != "/seen":
        seen.append(path)
    headers = [[name.decode(), value.decode("latin1")] for name, value in scope["headers"]]
    said = {"path": path, "root": scope["root_path"], "body": body.decode("latin1"), "seen": seen, "headers": headers}
    length = str(len(json.dumps(said))).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
    await send({"type": "http.response.body", "body": json.dumps(said).encode()})
"""
HOST = "Host: 127.0.0.1"
BEHIND = f"GET /behind HTTP/1.1\r\n{HOST}\r\n\r\n"
FIRST = f"POST /first HTTP/1.1\r\n{HOST}\r\n"


class Port:
    """The console's server with an application that tells what it is asked."""

    def __init__(self, number: int, authority: Authority) -> None:
        self.number = number
        self._context = client_context(str(authority.ca), check_host=True)

    @contextlib.contextmanager
    def connected(self, scheme: str) -> Iterator[socket.socket]:
        with socket.create_connection(("127.0.0.1", self.number), 10) as connection:
            if scheme == "http":
                yield connection
                return
            with self._context.wrap_socket(connection, server_hostname="127.0.0.1") as wrapped:
                yield wrapped

    def ask(self, data: str, scheme: str = "http") -> bytes:
        """What is answered, until there is a refusal, or two answers, or the connection ends."""
        answered = b""
        with self.connected(scheme) as connection:
            connection.sendall(data.encode("latin1"))
            while answered.count(b'"headers": ') < 2 and not (b" 400 " in answered and answered.endswith(b"\n")):
                more = connection.recv(1 << 16)
                if not more:
                    break
                answered += more
        return answered

    def seen(self) -> list[str]:
        """The paths of all that was carried out."""
        answered = self.ask(f"GET /seen HTTP/1.1\r\n{HOST}\r\nConnection: close\r\n\r\n")
        paths: list[str] = json.loads(answered.partition(b"\r\n\r\n")[2])["seen"]
        return paths


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Port]:
    root = tmp_path_factory.mktemp("framing")
    (root / "telling.py").write_text(APPLICATION)
    authority = Authority(root)
    signed = authority.sign("console")
    (number,) = free_ports(1)
    tls = ("--certificate", str(signed.certificate), "--key", str(signed.key))
    argv = ["-m", "webapp.serving", *tls, "--bind", "127.0.0.1", "--port", str(number), "telling:application"]
    process = Process("serving", argv, root / "log.txt", environment={"PYTHONPATH": f"{root}{os.pathsep}{ROOT}"})
    process.start()
    eventually("the server listens", lambda: listens(number))
    yield Port(number, authority)
    process.close()


def listens(port: int) -> bool:
    with socket.socket() as knock:
        return knock.connect_ex(("127.0.0.1", port)) == 0


def chunked(body: str = "0\r\n\r\n", coding: str = "Transfer-Encoding: chunked", head: str = FIRST) -> str:
    return f"{head}{coding}\r\n\r\n{body}"


REFUSED = {
    "length and coding": f"{FIRST}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "coding and length": f"{FIRST}Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": f"{FIRST}Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcd",
    "the same length twice": f"{FIRST}Content-Length: 4\r\nContent-Length: 4\r\n\r\nabcd",
    "a list of lengths": f"{FIRST}Content-Length: 4, 4\r\n\r\nabcd",
    "a sign": f"{FIRST}Content-Length: +4\r\n\r\nabcd",
    "hexadecimal": f"{FIRST}Content-Length: 0x4\r\n\r\nabcd",
    "no length": f"{FIRST}Content-Length:\r\n\r\nabcd",
    "a space behind the name of the length": f"{FIRST}Content-Length : 4\r\n\r\nabcd",
    "a folded length": f"{FIRST}Content-Length:\r\n 4\r\n\r\nabcd",
    "a length that goes on": f"{FIRST}Content-Length: 4\r\n\t0\r\n\r\nabcd",
    "identity": chunked(coding="Transfer-Encoding: identity"),
    "identity and a length": f"{FIRST}Transfer-Encoding: identity\r\nContent-Length: 4\r\n\r\nabcd",
    "identity and chunked": chunked(coding="Transfer-Encoding: identity\r\nTransfer-Encoding: chunked"),
    "chunked and identity": chunked(coding="Transfer-Encoding: chunked\r\nTransfer-Encoding: identity"),
    "a list of codings": chunked(coding="Transfer-Encoding: gzip, chunked"),
    "chunked first": chunked(coding="Transfer-Encoding: chunked, identity"),
    "chunked twice": chunked(coding="Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"),
    "an unknown coding": chunked(coding="Transfer-Encoding: xchunked"),
    "a quoted coding": chunked(coding='Transfer-Encoding: "chunked"'),
    "a vertical tab": chunked(coding="Transfer-Encoding: \x0bchunked"),
    "a coding behind a line feed": chunked(coding="X: 1\nTransfer-Encoding: chunked"),
    "a coding behind a carriage return": chunked(coding="X: 1\rTransfer-Encoding: chunked"),
    "a space behind the coding's name": chunked(coding="Transfer-Encoding : chunked"),
    "a folded coding": chunked(coding="Transfer-Encoding:\r\n chunked"),
    "a coding of HTTP/1.0": chunked(head=FIRST.replace("1.1", "1.0")),
    "a line feed in an extension": chunked("2;a\nb\r\nhi\r\n0\r\n\r\n"),
    "a chunk's length with 0x": chunked("0x2\r\nhi\r\n0\r\n\r\n"),
    "a chunk's length below nothing": chunked("-1\r\nhi\r\n0\r\n\r\n"),
    "a chunk's length and a space": chunked("2 \r\nhi\r\n0\r\n\r\n"),
    "line feeds between chunks": chunked("2\nhi\n0\n\n\r\n\r\n"),
    "a chunk that does not end": chunked("2\r\nhiXX0\r\n\r\n"),
    "line feeds alone": f"GET /first HTTP/1.1\n{HOST}\n\n\r\n\r\n",
    "a folded first line": f"GET /first HTTP/1.1\r\n X: 1\r\n{HOST}\r\n\r\n",
    "two spaces": f"GET  /first HTTP/1.1\r\n{HOST}\r\n\r\n",
    "another host in the target": f"GET http://evil.example/first HTTP/1.1\r\n{HOST}\r\n\r\n",
    "this host in the target": f"GET http://127.0.0.1/first HTTP/1.1\r\n{HOST}\r\n\r\n",
    "a target that changes a redirect's host": f"GET @evil.example/first HTTP/1.1\r\n{HOST}\r\n\r\n",
    "a tunnel": f"CONNECT 127.0.0.1:1 HTTP/1.1\r\n{HOST}\r\n\r\n",
    "no host": "GET /first HTTP/1.1\r\n\r\n",
    "two hosts": f"GET /first HTTP/1.1\r\n{HOST}\r\nHost: evil.example\r\n\r\n",
    "no colon": f"GET /first HTTP/1.1\r\n{HOST}\r\nno colon\r\nX: 1\r\n\r\n",
    "no name": f"GET /first HTTP/1.1\r\n{HOST}\r\n: x\r\n\r\n",
    "a line without an end": f"GET /first HTTP/1.1\r\n{HOST}\r\nX: {'x' * 17_000}",
    "many fields": f"GET /first HTTP/1.1\r\n{HOST}\r\n{'X: 1' + chr(13) + chr(10)}" + "X: 1\r\n" * 600 + "\r\n",
    "HTTP/2": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/0.9": "GET /first\r\n\r\n",
}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_clear_is_refused_and_nothing_behind_it_is_carried_out(port: Port, what: str, scheme: str) -> None:
    before = len(port.seen())
    answered = port.ask(REFUSED[what] + BEHIND, scheme)
    assert answered.startswith(b"HTTP/1.1 400 "), answered
    assert answered.count(b"HTTP/1.1 ") == 1
    assert port.seen()[before:] == []


TAKEN = {
    "a length": (f"{FIRST}Content-Length: 4\r\n\r\nabcd", "abcd"),
    "zeros before a length": (f"{FIRST}Content-Length: 0004\r\n\r\nabcd", "abcd"),
    "an underscore": (f"{FIRST}Content_Length: {len(BEHIND)}\r\n\r\n", ""),
    "chunks": (chunked("2\r\nab\r\n2\r\ncd\r\n0\r\n\r\n"), "abcd"),
    "capitals": (chunked("2\r\nab\r\n0\r\n\r\n", "TRANSFER-ENCODING: CHUNKED"), "ab"),
    "a tab": (chunked("2\r\nab\r\n0\r\n\r\n", "Transfer-Encoding:\tchunked"), "ab"),
    "extensions": (chunked('2;a="b";c\r\nab\r\n0;d\r\n\r\n'), "ab"),
    "trailers": (chunked("2\r\nab\r\n0\r\nContent-Length: 7\r\nX-Forwarded-For: 9.9.9.9\r\n\r\n"), "ab"),
    "a body of a GET": (f"GET /first HTTP/1.1\r\n{HOST}\r\nContent-Length: {len(BEHIND)}\r\n\r\n{BEHIND}", BEHIND),
    "an upgrade to HTTP/2": (
        f"GET /first HTTP/1.1\r\n{HOST}\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n",
        "",
    ),
}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("what", TAKEN)
def test_what_is_clear_ends_where_it_says(port: Port, what: str, scheme: str) -> None:
    data, body = TAKEN[what]
    answered = port.ask(data + BEHIND, scheme)
    documents = [json.loads(each.partition(b"\r\n\r\n")[2]) for each in answered.split(b"HTTP/1.1 200 OK")[1:]]
    assert [(each["path"], each["body"]) for each in documents] == [("/first", body), ("/behind", "")]
    assert not any(name == "x-forwarded-for" for each in documents for name, _ in each["headers"]), "of a trailer"


def test_http_1_0_has_one_request_a_connection(port: Port) -> None:
    before = len(port.seen())
    answered = port.ask(f"GET /first HTTP/1.0\r\n{HOST}\r\nConnection: keep-alive\r\n\r\n{BEHIND}")
    assert answered.count(b"HTTP/1.") == 1
    assert port.seen()[before:] == ["/first"]


def test_no_client_moves_the_addresses_of_the_application(port: Port) -> None:
    fields = f"{HOST}\r\nDaphne-Root-Path: /api\r\nConnection: close"
    document = json.loads(port.ask(f"GET /api/x HTTP/1.1\r\n{fields}\r\n\r\n").partition(b"\r\n\r\n")[2])
    assert (document["path"], document["root"]) == ("/api/x", "")
    assert not any(name == "daphne-root-path" for name, _ in document["headers"])
