"""A blocking remoting connection for programs without an event loop (console workers, tasks, Spark executors)."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType

from remoting import codes, frame
from remoting.client.identity import identity_of_environment
from remoting.disk import Bytes
from remoting.errors import ConnectionLost, ProtocolError, RequestError, RequestTimeout
from remoting.frame import Command
from remoting.transport.client import split_address
from remoting.transport.identity import Identity, socket_address

_READ_BYTES = 64 * 1024


class SocketConnection:
    """One request at a time on one socket: `call`; or `ask`, and `answer` later. Not for use by two threads at once."""

    def __init__(self, address: str, *, timeout_ms: int = 3000, identity: Identity | None = None) -> None:
        """Connect. Raises ConnectionLost when nobody answers at the address in time.

        Without an identity it is that of this process's environment.
        """
        self.address = address
        identity = identity or identity_of_environment()
        self._opaque = 0
        self._asked = 0  # the code of the last request
        self._rest = b""
        try:
            connected = socket.create_connection(split_address(address), timeout_ms / 1000)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = connected if identity.tls is None else _secured(connected, identity.tls, address)
            dialled = socket_address(self._socket.getpeername()), address
        except OSError as error:
            raise ConnectionLost(f"cannot connect to {address}: {error}") from error
        self._sign = identity.credentials.signer(dialled) if identity.credentials is not None else None

    def __enter__(self) -> SocketConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket; further calls raise ConnectionLost."""
        self._socket.close()

    def call(
        self,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: Bytes = b"",
        *,
        timeout_ms: int = 3000,
        accept: tuple[int, ...] = (codes.SUCCESS,),
    ) -> Command:
        """Ask and wait; an answer whose code is not in `accept` is raised as RequestError.

        Raises RequestTimeout or ConnectionLost when the outcome is unknown; the connection is closed then.
        """
        deadline = time.monotonic() + timeout_ms / 1000
        self.ask(code, ext, body, timeout_ms=timeout_ms)
        return self._answer(deadline, timeout_ms, accept)

    def ask(
        self, code: int, ext: Mapping[str, str] | None = None, body: Bytes = b"", *, timeout_ms: int = 3000
    ) -> None:
        """Send a request without waiting for its answer, which `answer` gives; a later request forgets it. Raises as `call`."""
        self._opaque += 1
        self._asked = code
        with self._closing_on_failure(timeout_ms):
            self._socket.settimeout(timeout_ms / 1000)
            if self._sign is not None:
                ext = self._sign(code, ext, body, False)
            self._socket.sendall(frame.encode_request(code, self._opaque, ext, body))

    def answer(self, *, timeout_ms: int = 3000, accept: tuple[int, ...] = (codes.SUCCESS,)) -> Command:
        """Wait for the answer to what was asked last. The time counts from now: it may have come long ago. Raises as `call`."""
        return self._answer(time.monotonic() + timeout_ms / 1000, timeout_ms, accept)

    def _answer(self, deadline: float, timeout_ms: int, accept: tuple[int, ...]) -> Command:
        with self._closing_on_failure(timeout_ms):
            response = self._read_response(deadline)
        if response.code not in accept:
            raise RequestError(response.code, response.remark or f"{self.address} answered code {response.code}")
        return response

    @contextmanager
    def _closing_on_failure(self, timeout_ms: int) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            self.close()
            raise RequestTimeout(
                f"{self.address} did not answer request {self._asked} within {timeout_ms} ms"
            ) from error
        except ConnectionLost:
            self.close()
            raise
        except (OSError, ProtocolError) as error:
            self.close()
            raise ConnectionLost(f"the connection to {self.address} broke: {error}") from error

    def _read_response(self, deadline: float) -> Command:
        while True:
            commands: list[Command] = []
            frame.decode_frames(self._read_frame(deadline), commands)
            for command in commands:
                if command.is_response and command.opaque == self._opaque:
                    return command

    def _read_frame(self, deadline: float) -> bytes | bytearray:
        """The next whole frame; a long one goes from the socket to its place in memory, and is not moved again."""
        while len(self._rest) < frame.PREFIX_BYTES:
            self._rest += self._received(deadline)
        wanted = frame.bytes_wanted(self._rest)
        if not frame.PREFIX_BYTES <= wanted <= frame.MAX_FRAME_BYTES:
            frame.decode_frames(self._rest[: frame.PREFIX_BYTES], [])  # raises ProtocolError: nobody sends such a frame
        if wanted <= len(self._rest):
            found, self._rest = self._rest[:wanted], self._rest[wanted:]
            return found
        whole = bytearray(wanted)
        position = len(self._rest)
        whole[:position] = self._rest
        self._rest = b""
        with memoryview(whole) as view:
            while position < wanted:
                self._wait_until(deadline)
                count = self._socket.recv_into(view[position:])
                if not count:
                    raise ConnectionLost(f"{self.address} closed the connection")
                position += count
        return whole

    def _received(self, deadline: float) -> bytes:
        self._wait_until(deadline)
        part = self._socket.recv(_READ_BYTES)
        if not part:
            raise ConnectionLost(f"{self.address} closed the connection")
        return part

    def _wait_until(self, deadline: float) -> None:
        """Let the next read of the socket take no longer."""
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        self._socket.settimeout(remaining)


def _secured(connected: socket.socket, tls: ssl.SSLContext, address: str) -> socket.socket:
    try:
        return tls.wrap_socket(connected, server_hostname=split_address(address)[0])
    except OSError:
        connected.close()
        raise
