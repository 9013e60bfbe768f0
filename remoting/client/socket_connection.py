"""A blocking remoting connection for programs without an event loop (console workers, tasks, Spark executors)."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Mapping
from types import TracebackType

from remoting import codes, frame
from remoting.client.identity import identity_of_environment
from remoting.disk import Bytes
from remoting.errors import ConnectionLost, ProtocolError, RequestError, RequestTimeout
from remoting.frame import Command
from remoting.transport.client import Identity, split_address

_READ_BYTES = 256 * 1024


class SocketConnection:
    """One request at a time on one socket. Not for use by two threads at once."""

    def __init__(self, address: str, *, timeout_ms: int = 3000, identity: Identity | None = None) -> None:
        """Connect. Raises ConnectionLost when nobody answers at the address in time.

        Without an identity it is that of this process's environment.
        """
        self.address = address
        identity = identity or identity_of_environment()
        self._credentials = identity.credentials
        self._opaque = 0
        self._rest = b""
        try:
            connected = socket.create_connection(split_address(address), timeout_ms / 1000)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = connected if identity.tls is None else _secured(connected, identity.tls, address)
        except OSError as error:
            raise ConnectionLost(f"cannot connect to {address}: {error}") from error

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
        self._opaque += 1
        deadline = time.monotonic() + timeout_ms / 1000
        try:
            self._socket.settimeout(timeout_ms / 1000)
            if self._credentials is not None:
                ext = self._credentials.sign(ext, body)
            self._socket.sendall(frame.encode_request(code, self._opaque, ext, body))
            response = self._read_response(deadline)
        except TimeoutError as error:
            self.close()
            raise RequestTimeout(f"{self.address} did not answer request {code} within {timeout_ms} ms") from error
        except (OSError, ProtocolError) as error:
            self.close()
            raise ConnectionLost(f"the connection to {self.address} broke: {error}") from error
        if response.code not in accept:
            raise RequestError(response.code, response.remark or f"{self.address} answered code {response.code}")
        return response

    def _read_response(self, deadline: float) -> Command:
        while True:
            commands: list[Command] = []
            consumed = frame.decode_frames(self._rest, commands)
            self._rest = self._rest[consumed:]
            for command in commands:
                if command.is_response and command.opaque == self._opaque:
                    return command
            self._rest = self._rest + self._read_some(deadline)

    def _read_some(self, deadline: float) -> bytes:
        """At least as many bytes as the frame at hand lacks."""
        parts = []
        wanted = frame.bytes_wanted(self._rest) - len(self._rest)
        while wanted > 0:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError
            self._socket.settimeout(remaining)
            part = self._socket.recv(_READ_BYTES)
            if not part:
                raise ConnectionLost(f"{self.address} closed the connection")
            parts.append(part)
            wanted -= len(part)
        return b"".join(parts)


def _secured(connected: socket.socket, tls: ssl.SSLContext, address: str) -> socket.socket:
    try:
        return tls.wrap_socket(connected, server_hostname=split_address(address)[0])
    except OSError:
        connected.close()
        raise
