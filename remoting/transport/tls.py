"""TLS between a transport and a protocol, and the choice between TLS and plaintext by a connection's first byte.

`TlsLayer` has bytes in and bytes out (no socket): when the first byte decides, it is read already, so the socket cannot be handed
to another transport. `TlsAcceptor` puts a layer between a socket and a protocol that knows nothing of it; in plaintext it steps
aside. Certificates are read again when their files have changed: a connection after that gets the new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from remoting.disk import Bytes
from remoting.errors import ProtocolError, SettingsError
from remoting.settings import setting

log = logging.getLogger(__name__)

FIRST_BYTE: Final = 0x16  # the record type of a ClientHello
DISABLED: Final = "disabled"
PERMISSIVE: Final = "permissive"
ENFORCING: Final = "enforcing"

_READ_BYTES: Final = 256 * 1024
_HANDSHAKE_S: Final = 10.0
_MAX_UNDECIDED: Final = 4096
_MAX_EARLY_BYTES: Final = 1024 * 1024
_CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """TLS on all ports of a daemon, and towards other components."""

    mode: str = setting(
        DISABLED,
        "disabled: plaintext only; permissive: a connection's first byte decides; enforcing: TLS only",
        choices=(DISABLED, PERMISSIVE, ENFORCING),
    )
    certificate_path: str = setting("", "the certificate that this daemon shows, with its chain: a PEM file", path=True)
    key_path: str = setting("", "the certificate's private key: a PEM file", path=True)
    ca_path: str = setting("", "the certificates that others are checked against: a PEM file", path=True)
    client_auth: str = setting(
        "none", "whether clients need a certificate of ca_path: none, optional, required", choices=tuple(_CLIENT_AUTH)
    )
    dial: bool = setting(False, "speak TLS to controllers and brokers, which must show a certificate of ca_path")
    check_host: bool = setting(False, "when dialling, the certificate must name the address, too")


FileStamps = tuple[tuple[int, int, int], ...]


def file_stamps(paths: Iterable[str]) -> FileStamps:
    """Tells whether a file is another one than before; paths may be empty, and files missing."""
    stamps = []
    for path in paths:
        if path:
            with contextlib.suppress(OSError):
                status = os.stat(path)
                stamps.append((status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(stamps)


class TlsServer:
    """What a port needs to answer TLS. `protocols` are offered in the handshake."""

    def __init__(self, settings: TlsSettings, protocols: Sequence[str] = ()) -> None:
        """Raises SettingsError when the files are not fit for it."""
        if not settings.certificate_path or not settings.key_path:
            raise SettingsError(f"tls.mode={settings.mode} needs tls.certificate_path and tls.key_path, two PEM files")
        if settings.client_auth != "none" and not settings.ca_path:
            raise SettingsError(f"tls.client_auth={settings.client_auth} needs tls.ca_path, a PEM file")
        self._settings = settings
        self._protocols = list(protocols)
        self._stamps = self._read_stamps()
        self._context = self._load()
        self._undecided: dict[TlsAcceptor, None] = {}  # in the order in which they came

    @property
    def undecided(self) -> int:
        """Connections of which it is not known yet what they speak, or whose handshake is not over."""
        return len(self._undecided)

    def wait_for(self, acceptor: TlsAcceptor) -> None:
        """Count one that is undecided. When there are too many the oldest goes: whoever means it says something at once."""
        self._undecided[acceptor] = None
        if len(self._undecided) > _MAX_UNDECIDED:
            next(iter(self._undecided)).give_way()

    def decided(self, acceptor: TlsAcceptor) -> None:
        """It is undecided no more."""
        self._undecided.pop(acceptor, None)

    @property
    def enforcing(self) -> bool:
        return self._settings.mode == ENFORCING

    def layer(self) -> TlsLayer:
        """The server side of a new connection."""
        stamps = self._read_stamps()
        if stamps != self._stamps:
            self._stamps = stamps
            try:
                self._context = self._load()
                log.info("read the certificate %s again", self._settings.certificate_path)
            except SettingsError as error:
                log.error("keeping the certificate that was read before: %s", error)
        return TlsLayer(self._context)

    def _load(self) -> ssl.SSLContext:
        settings = self._settings
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        _show(context, settings.certificate_path, settings.key_path)
        if self._protocols:
            context.set_alpn_protocols(self._protocols)
        if settings.client_auth != "none":
            _trust(context, settings.ca_path)
            context.verify_mode = _CLIENT_AUTH[settings.client_auth]
        return context

    def _read_stamps(self) -> FileStamps:
        settings = self._settings
        return file_stamps((settings.certificate_path, settings.key_path, settings.ca_path))


def tls_server(settings: TlsSettings, protocols: Sequence[str] = ()) -> TlsServer | None:
    """None when the settings do without TLS. Raises SettingsError."""
    return None if settings.mode == DISABLED else TlsServer(settings, protocols)


def client_context(
    ca_path: str, certificate_path: str = "", key_path: str = "", *, check_host: bool = False
) -> ssl.SSLContext:
    """What a dialling component needs. Raises SettingsError when the files are not fit for it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = check_host
    _trust(context, ca_path)
    if certificate_path and key_path:
        _show(context, certificate_path, key_path)
    return context


def dialling_context(settings: TlsSettings) -> ssl.SSLContext | None:
    """None when components dial one another in plaintext. Raises SettingsError."""
    if not settings.dial:
        return None
    if not settings.ca_path:
        raise SettingsError("tls.dial needs tls.ca_path, a PEM file: without it nobody is known to be who it says")
    return client_context(
        settings.ca_path, settings.certificate_path, settings.key_path, check_host=settings.check_host
    )


def _show(context: ssl.SSLContext, certificate_path: str, key_path: str) -> None:
    try:
        context.load_cert_chain(certificate_path, key_path)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(
            f"cannot use the certificate {certificate_path} with the key {key_path}: {error}; both must be PEM files"
        ) from error


def _trust(context: ssl.SSLContext, ca_path: str) -> None:
    try:
        context.load_verify_locations(ca_path)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"cannot use the certificates in {ca_path}: {error}; it must be a PEM file") from error


class TlsLayer:
    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._early = b""  # said before the handshake was over
        self._closed = False
        self.connected = False
        self.ended = False  # the peer said that it sends nothing more

    def receive(self, data: bytes) -> bytes:
        """The plaintext in the bytes of one read; raises ProtocolError when it is not TLS or was tampered with.

        Handshake answers and alerts wait in `take_output`.
        """
        self._incoming.write(data)
        parts = []
        try:
            if not self.connected:
                self._tls.do_handshake()
                self.connected = True
                if self._early:
                    self._tls.write(self._early)
                    self._early = b""
            while plain := self._tls.read(_READ_BYTES):
                parts.append(plain)
            self.ended = True  # the peer's closing alert
        except ssl.SSLWantReadError:
            pass
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            self.ended = True
        except ssl.SSLError as error:
            self._closed = True  # what is answered until the connection is gone can be encrypted no more
            raise ProtocolError(f"TLS failed: {error.reason or error}") from error
        return b"".join(parts)

    def send(self, plain: Bytes) -> bytes:
        """The bytes to put on the wire for some plaintext, with everything else that waits."""
        if self._closed:
            return self.take_output()
        if self.connected:
            if plain:
                self._tls.write(plain)
        elif len(self._early) + len(plain) <= _MAX_EARLY_BYTES:
            self._early += plain
        return self.take_output()

    def take_output(self) -> bytes:
        return self._outgoing.read()

    def close(self) -> bytes:
        """The closing alert; what is sent after it is dropped."""
        self._closed = True
        if self.connected:
            # the peer's own alert has not come; ours is in the output all the same
            with contextlib.suppress(ssl.SSLError):
                self._tls.unwrap()
        return self.take_output()


class TlsTransport:
    """What a protocol writes to while a layer encrypts it; everything else is the socket's own transport's."""

    def __init__(self, transport: asyncio.Transport, layer: TlsLayer) -> None:
        self._transport = transport
        self._layer = layer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """The socket is not for who knows nothing of the layer."""
        return default if name == "socket" else self._transport.get_extra_info(name, default)

    def write(self, data: Bytes) -> None:
        self._transport.write(self._layer.send(data))

    def writelines(self, list_of_data: Iterable[Bytes]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(self._layer.close())
            self._transport.close()


class TlsAcceptor(asyncio.Protocol):
    """An accepted connection until its first byte is there; after it, what lies between a TLS peer and its protocol."""

    def __init__(self, tls: TlsServer, make: Callable[[], asyncio.Protocol]) -> None:
        self._tls = tls
        self._make = make
        self._layer: TlsLayer | None = None
        self._protocol: asyncio.Protocol | None = None
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._timer = asyncio.get_running_loop().call_later(_HANDSHAKE_S, self._expire)
        self._tls.wait_for(self)

    def data_received(self, data: bytes) -> None:
        if self._layer is None and not self._begin(data):
            return
        assert self._layer is not None
        assert self._protocol is not None
        assert self._transport is not None
        try:
            plain = self._layer.receive(data)
        except ProtocolError as error:
            log.info("dropping the connection of %s: %s", self._peer(), error)
            self._transport.write(self._layer.take_output())
            self._transport.abort()
            return
        if output := self._layer.take_output():
            self._transport.write(output)
        if self._layer.connected:
            self._decided()
        if plain:
            self._protocol.data_received(plain)
        if self._layer.ended and not self._transport.is_closing():
            self._transport.close()

    def pause_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._decided()
        self._transport = None
        if self._protocol is not None:
            self._protocol.connection_lost(exc)

    def give_way(self) -> None:
        """Others come, and this one did not come to the point."""
        log.info("dropping the connection of %s: too many others begin", self._peer())
        self._decided()
        if self._transport is not None:
            self._transport.abort()

    # ---- inside

    def _begin(self, data: bytes) -> bool:
        """Whether this is TLS; otherwise it was dealt with."""
        assert self._transport is not None
        if data[0] == FIRST_BYTE:
            self._layer = self._tls.layer()
            self._protocol = self._make()
            self._protocol.connection_made(cast(asyncio.Transport, TlsTransport(self._transport, self._layer)))
            return True
        if self._tls.enforcing:
            log.info("dropping the connection of %s: it speaks plaintext, and tls.mode is enforcing", self._peer())
            self._transport.abort()
            return False
        self._hand_over_transport(data)
        return False

    def _hand_over_transport(self, data: bytes) -> None:
        """Plaintext: the protocol gets the transport itself."""
        transport = self._transport
        assert transport is not None
        self._decided()
        protocol = self._make()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if data:
            protocol.data_received(data)

    def _expire(self) -> None:
        self._timer = None
        self._tls.decided(self)
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._layer is None and not self._tls.enforcing:
            self._hand_over_transport(b"")  # who says nothing may be idle in plaintext
            return
        log.info("dropping the connection of %s: no TLS handshake within %d s", self._peer(), _HANDSHAKE_S)
        transport.abort()

    def _decided(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._tls.decided(self)

    def _peer(self) -> str:
        peer = self._transport.get_extra_info("peername") if self._transport is not None else None
        return f"{peer[0]}:{peer[1]}" if peer else "unknown"


def accepting(tls: TlsServer | None, make: Callable[[], asyncio.Protocol]) -> Callable[[], asyncio.Protocol]:
    """The protocol factory of a listener that may speak TLS."""
    return make if tls is None else lambda: TlsAcceptor(tls, make)
