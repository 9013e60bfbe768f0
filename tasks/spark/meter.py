"""Rows read so far, told from inside running Spark tasks by datagrams: the only word that comes out of a task before it ends.

A datagram says how much one attempt of one partition has read in all, so a lost one costs nothing and a repeated attempt does
not count twice. Receiver and senders share a token, since any local process can send datagrams.
"""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import time
from enum import IntEnum
from typing import Final, NamedTuple

import orjson

from remoting.errors import InvalidParameter
from remoting.transport.client import split_address

log = logging.getLogger(__name__)

EVERY_S: Final = 0.2
MAX_DATAGRAM_BYTES: Final = 512
MAX_PARTITIONS: Final = 100_000


class ReadFrom(IntEnum):
    """Who gave rows; the numbers are their places in what is told."""

    BROKERS = 0
    SEGMENTS = 1  # of the tier
    FILES = 2  # that were exported there


class Told(NamedTuple):
    """What one partition has read in all: rows, of how many bytes, and rows by who gave them."""

    rows: int
    bytes: int
    of: tuple[int, ...]


NOTHING: Final = Told(0, 0, (0,) * len(ReadFrom))


class Meter:
    """The sending side, one per partition being read. Never fails: a report does not end because nobody listens."""

    def __init__(self, address: str | None, token: str, partition: str) -> None:
        self.rows = 0
        self.bytes = 0
        self._of = [0] * len(ReadFrom)
        self._partition = partition
        self._token = token
        self._sent_at = float("-inf")
        self._socket: socket.socket | None = None
        if address is None:
            return
        try:
            host, port = split_address(address)
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._socket = socket.socket(family, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
            self._socket.connect((host, port))
        except (OSError, InvalidParameter) as error:
            log.warning("progress cannot be told to %s: %s", address, error)
            self.close()

    def add(self, rows: int, size_bytes: int, read_from: ReadFrom = ReadFrom.BROKERS) -> None:
        """Count what was read; tell it if some time has passed."""
        self.rows += rows
        self.bytes += size_bytes
        self._of[read_from] += rows
        now = time.monotonic()
        if now - self._sent_at >= EVERY_S:
            self._sent_at = now
            self._send()

    def finish(self) -> None:
        """Tell the last count."""
        self._send()
        self.close()

    def close(self) -> None:
        """Tell nothing more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self) -> None:
        if self._socket is None:
            return
        try:
            self._socket.send(orjson.dumps([self._token, self._partition, self.rows, self.bytes, self._of]))
        except OSError as error:
            log.debug("progress was not told: %s", error)


class MeterReceiver:
    """The receiving side: a socket on loopback and a thread that adds up what comes."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.token = secrets.token_hex(8)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((host, 0))
        self._socket.settimeout(0.5)
        self._lock = threading.Lock()
        self._counts: dict[str, Told] = {}
        self._closing = False
        self._thread = threading.Thread(target=self._receive, name="meter", daemon=True)

    @property
    def address(self) -> str:
        """Where to send to."""
        host, port = self._socket.getsockname()[:2]
        return f"{host}:{port}"

    def __enter__(self) -> MeterReceiver:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        self._thread.join()
        self._socket.close()

    def totals(self) -> tuple[int, int]:
        """(rows, bytes) read so far over all partitions."""
        with self._lock:
            told = self._counts.values()
            return sum(each.rows for each in told), sum(each.bytes for each in told)

    def rows_from(self, read_from: ReadFrom) -> int:
        """Those of the rows that came from there."""
        with self._lock:
            return sum(each.of[read_from] for each in self._counts.values())

    def _receive(self) -> None:
        while not self._closing:
            try:
                datagram = self._socket.recv(MAX_DATAGRAM_BYTES)
            except TimeoutError:
                continue
            self.take(datagram)

    def take(self, datagram: bytes) -> None:
        """Count one datagram; one that is not ours, or out of bounds, is nothing."""
        try:
            token, partition, rows, size_bytes, of = orjson.loads(datagram)
        except (ValueError, TypeError):
            return
        if not isinstance(token, str) or not secrets.compare_digest(token.encode(), self.token.encode()):
            return
        if not (isinstance(partition, str) and isinstance(rows, int) and isinstance(size_bytes, int)):
            return
        if not (isinstance(of, list) and len(of) == len(ReadFrom) and all(isinstance(each, int) for each in of)):
            return
        with self._lock:
            present = self._counts.get(partition, NOTHING)
            if rows >= present.rows and (partition in self._counts or len(self._counts) < MAX_PARTITIONS):
                self._counts[partition] = Told(rows, max(present.bytes, size_bytes), tuple(of))
