"""An S3 server in a process of its own, which dies with the test run."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from tests.support.leash import leashed
from tests.support.ports import free_ports

PAGE_OBJECTS: Final = 50  # of a listing, so that a test of several pages needs no thousands

_START_S: Final = 60
_HOST: Final = "127.0.0.1"
# A bucket is made in the name of somebody; who that is does not matter as long as nobody is refused.
_SOMEBODY: Final = "AWS4-HMAC-SHA256 Credential=tests/20260101/us-east-1/s3/aws4_request"


class S3Server:
    """moto's server. What is stored is in its memory, and gone with it."""

    def __init__(self) -> None:
        self.port = free_ports(1)[0]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> S3Server:
        command = [sys.executable, "-m", "moto.server", "-H", _HOST, "-p", str(self.port)]
        self._process = subprocess.Popen(
            leashed(command),
            env={**os.environ, "MOTO_S3_DEFAULT_MAX_KEYS": str(PAGE_OBJECTS)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + _START_S
        while not self._answers():
            assert self._process.poll() is None, "the S3 server ended"
            assert time.monotonic() < deadline, f"the S3 server did not answer within {_START_S} s"
            time.sleep(0.02)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def make_bucket(self, name: str) -> None:
        self._ask("PUT", f"/{name}", headers={"Authorization": _SOMEBODY})

    def refuse(self, *, everybody: bool) -> None:
        """Accept nobody's credentials from now on, or anybody's again."""
        self._ask("POST", "/moto-api/reset-auth", b"0" if everybody else b"inf")

    def forget(self) -> None:
        """All buckets are gone, with what is in them."""
        self._ask("POST", "/moto-api/reset")

    def freeze(self) -> None:
        """Take requests, and answer none, until `thaw`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Answer them."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _ask(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> None:
        connection = http.client.HTTPConnection(_HOST, self.port, timeout=_START_S)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        assert answer.status == 200, f"{method} {path}: {answer.status} {text}"

    def _answers(self) -> bool:
        try:
            socket.create_connection((_HOST, self.port), timeout=1).close()
        except OSError:
            return False
        return True


def write_options(path: Path, port: int) -> Path:
    """A file for `tiers.options_path` that leads to an S3 server on this port."""
    path.touch(mode=0o600)
    options = {"endpoint": f"http://{_HOST}:{port}", "region": "us-east-1"}
    path.write_text(json.dumps({**options, "access_key_id": "tests", "secret_access_key": "secret"}))
    return path
