"""TLS between a transport and a protocol, without a second transport: bytes in, bytes out (no socket here).

One port serves TLS and plaintext: the first byte of a connection decides, and by then it is read. So the endpoint feeds what it
read into this layer instead of handing the socket to another one.
"""

from __future__ import annotations

import contextlib
import ssl
from typing import Final

from remoting.errors import ProtocolError, SettingsError

FIRST_BYTE: Final = 0x16  # the record type of a ClientHello

_READ_BYTES: Final = 256 * 1024


def server_context(certificate_path: str, key_path: str) -> ssl.SSLContext:
    """A context that offers HTTP/2. Raises SettingsError when the files are not a certificate and its key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    try:
        context.load_cert_chain(certificate_path, key_path)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(
            f"cannot use the certificate {certificate_path} with the key {key_path}: {error}; both must be PEM files"
        ) from error
    return context


class TlsLayer:
    """The server side of one TLS connection."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._connected = False
        self.ended = False  # the peer said that it sends nothing more

    def receive(self, data: bytes) -> bytes:
        """The plaintext in the bytes of one read; raises ProtocolError when it is not TLS or was tampered with.

        Handshake answers and alerts wait in `take_output`.
        """
        self._incoming.write(data)
        parts = []
        try:
            if not self._connected:
                self._tls.do_handshake()
                self._connected = True
            while plain := self._tls.read(_READ_BYTES):
                parts.append(plain)
            self.ended = True  # the peer's closing alert
        except ssl.SSLWantReadError:
            pass
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            self.ended = True
        except ssl.SSLError as error:
            raise ProtocolError(f"TLS failed: {error.reason or error}") from error
        return b"".join(parts)

    def send(self, plain: bytes) -> bytes:
        """The bytes to put on the wire for some plaintext, with everything else that waits."""
        if self._connected:
            self._tls.write(plain)
        return self.take_output()

    def take_output(self) -> bytes:
        return self._outgoing.read()

    def close(self) -> bytes:
        """The closing alert."""
        if self._connected:
            # the peer's own alert has not come; ours is in the output all the same
            with contextlib.suppress(ssl.SSLError):
                self._tls.unwrap()
        return self.take_output()
