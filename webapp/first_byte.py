"""HTTP and HTTPS on one port of the console: the first byte of a connection decides, as on the ports of brokers and controllers.

Twisted reads, so the choice is made between its transport and the channel: `FirstByte` holds a connection until something came,
then puts the channel, or TLS with the channel in it, in its own place. `in_tls` is for a port that speaks HTTPS alone.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from OpenSSL import SSL
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator
from twisted.internet.protocol import Factory, Protocol
from twisted.protocols.policies import WrappingFactory
from twisted.protocols.tls import TLSMemoryBIOFactory
from zope.interface import implementer

from remoting.errors import SettingsError
from remoting.transport.tls import FIRST_BYTE, file_stamps
from remoting.transport.waiting import Waiting
from webapp.intake import HEAD_S

log = logging.getLogger(__name__)

PROTOCOLS: Final = [b"http/1.1"]  # that are chosen from what a handshake offers (ALPN)
# of TLS 1.2: with a key for each connection, and encryption that authenticates
_CIPHERS: Final = b"ECDHE+AESGCM:ECDHE+CHACHA20"


@implementer(IOpenSSLServerConnectionCreator)
class Certificate:
    """What connections are shown, read again when its files have changed."""

    def __init__(self, certificate_path: str, key_path: str) -> None:
        """PEM files, the first with its chain. Raises SettingsError when they are not fit for it."""
        self._paths: Final = (certificate_path, key_path)
        self._stamps = file_stamps(self._paths)
        self._context = self._load()

    def serverConnectionForTLS(self, _protocol: Any) -> SSL.Connection:
        """See `IOpenSSLServerConnectionCreator`."""
        stamps = file_stamps(self._paths)
        if stamps != self._stamps:
            self._stamps = stamps
            try:
                self._context = self._load()
                log.info("read the certificate %s again", self._paths[0])
            except SettingsError as error:
                log.error("keeping the certificate that was read before: %s", error)
        return SSL.Connection(self._context, None)

    def _load(self) -> SSL.Context:
        context = SSL.Context(SSL.TLS_SERVER_METHOD)
        context.set_min_proto_version(SSL.TLS1_2_VERSION)
        context.set_cipher_list(_CIPHERS)  # those of 1.3 are all fit
        context.set_mode(SSL.MODE_RELEASE_BUFFERS)  # a connection that is idle keeps none
        context.set_alpn_select_callback(_choose)
        certificate_path, key_path = self._paths
        try:
            context.use_certificate_chain_file(certificate_path)
            context.use_privatekey_file(key_path)
            context.check_privatekey()
        except SSL.Error as error:
            raise SettingsError(
                f"cannot use the certificate {certificate_path} with the key {key_path}: both must be PEM files "
                f"that belong together ({error})"
            ) from error
        return context


def _choose(_connection: SSL.Connection, offered: Sequence[bytes]) -> Any:
    return next((each for each in PROTOCOLS if each in offered), SSL.NO_OVERLAPPING_PROTOCOLS)


class FirstByte(Protocol):
    """A connection of which nothing came yet."""

    def __init__(self, peer: Any, plain: Factory, tls: Factory, call_later: Any, waiting: Waiting) -> None:
        self._waiting = waiting
        self._peer = peer
        self._plain = plain
        self._tls = tls
        self._call_later = call_later
        self._deadline: Any = None

    def makeConnection(self, transport: Any) -> None:
        """It is there."""
        super().makeConnection(transport)
        self._deadline = self._call_later(HEAD_S, transport.abortConnection)
        self._waiting.begin(self)

    def give_way(self) -> None:
        """See `waiting.Waiter`."""
        self.transport.abortConnection()

    def dataReceived(self, data: bytes) -> None:
        """The first of it, which is somebody else's from here on."""
        self._hand_over(self._tls if data[0] == FIRST_BYTE else self._plain).dataReceived(data)

    def connectionLost(self, reason: Any) -> None:
        """It went without a word."""
        self._wait_no_more()

    def _hand_over(self, factory: Factory) -> Any:
        self._wait_no_more()
        transport, protocol = self.transport, factory.buildProtocol(self._peer)
        transport.protocol = protocol
        protocol.makeConnection(transport)
        return protocol

    def _wait_no_more(self) -> None:
        self._waiting.end(self)
        deadline, self._deadline = self._deadline, None
        if deadline is not None and deadline.active():
            deadline.cancel()


def in_tls(channels: Factory, certificate: Certificate, clock: Any) -> TLSMemoryBIOFactory:
    """Puts TLS before the connections of a factory."""
    return TLSMemoryBIOFactory(certificate, False, channels, clock)


class FirstByteFactory(WrappingFactory):
    """Puts that choice before the connections of another factory, which counts those that wait in its `waiting`."""

    def __init__(self, channels: Any, certificate: Certificate, clock: Any) -> None:
        super().__init__(channels)
        self._waiting = channels.waiting
        self._tls = in_tls(channels, certificate, clock)
        self._clock = clock

    def buildProtocol(self, addr: Any) -> FirstByte:
        """A connection of this address."""
        return FirstByte(addr, self.wrappedFactory, self._tls, self._clock.callLater, self._waiting)
