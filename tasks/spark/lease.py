"""Asking our Spark process for the use of Spark, and keeping it as long as the report runs.

Blocking; the client of `tasks.spark.server`.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

CONNECT_TIMEOUT_S = 2.0
START_TIMEOUT_S = 240.0
_LINE_BYTES = 8192


class SparkUnavailable(Exception):
    """Spark cannot be used; the text says why and what to do, for the person who asked for the report."""


class Lease:
    """The use of our Spark Connect server. Closing the connection gives it back, also when this process is killed."""

    def __init__(self, path: Path) -> None:
        """Ask. Raises SparkUnavailable when the Spark process does not answer."""
        self._rest = b""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(CONNECT_TIMEOUT_S)
        try:
            with short_address(path) as address:
                self._socket.connect(address)
        except OSError as error:
            self._socket.close()
            raise SparkUnavailable(
                f"Spark is down: its process does not answer at {path} ({error.strerror or error}). "
                "It is started with the appliance; see whether the process `spark` runs, and its log."
            ) from error

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.say("done")  # also after an error: who gets here has cleaned up; who was killed has not
        self.close()

    def wait_ready(
        self, waiting: Callable[[str], None], is_cancelled: Callable[[], bool], timeout_s: float = START_TIMEOUT_S
    ) -> tuple[str, int]:
        """The server's URL and which start of it this is. `waiting` is told what is waited for.

        Raises SparkUnavailable when it does not come up, or the wait is cancelled.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            message = self._next(min(0.25, max(0.0, deadline - time.monotonic())))
            if message is None:
                if is_cancelled():
                    raise SparkUnavailable("cancelled while Spark was starting")
                if time.monotonic() >= deadline:
                    raise SparkUnavailable(
                        f"Spark did not start within {timeout_s:.0f} s; see the log of the process `spark`"
                    )
                continue
            if message["state"] == "ready":
                return str(message["url"]), int(message["generation"])
            if message["state"] in ("failed", "unavailable"):
                raise SparkUnavailable(str(message["detail"]))
            waiting(str(message["detail"]))

    def problem(self) -> str | None:
        """Why the server that was ready is gone; None while all is well. Never waits."""
        while True:
            try:
                message = self._next(0.0)
            except SparkUnavailable as error:
                return str(error)
            if message is None:
                return None
            if message["state"] != "ready":
                return str(message["detail"])

    def say(self, event: str, **more: str) -> None:
        """Tell the Spark process something; if it is gone, there is nobody to tell."""
        try:
            self._socket.sendall(orjson.dumps({"event": event, **more}) + b"\n")
        except OSError:
            self._rest = b""

    def close(self) -> None:
        """Give the lease back."""
        self._socket.close()

    def _next(self, timeout_s: float) -> dict[str, Any] | None:
        """The next message, or None when none came in time. Raises SparkUnavailable when the process is gone."""
        if b"\n" not in self._rest:
            if not select.select([self._socket], [], [], timeout_s)[0]:
                return None
            try:
                part = self._socket.recv(_LINE_BYTES)
            except OSError as error:
                raise SparkUnavailable(f"The Spark process is gone: {error}") from error
            if not part:
                raise SparkUnavailable("The Spark process ended; it is started again, so try once more.")
            self._rest += part
        line, separator, rest = self._rest.partition(b"\n")
        if not separator:
            return None
        self._rest = rest
        message: dict[str, Any] = orjson.loads(line)
        return message


@contextmanager
def short_address(path: Path) -> Iterator[str]:
    """A socket's path below its directory's descriptor: the real one may be longer than a socket's address can be."""
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
