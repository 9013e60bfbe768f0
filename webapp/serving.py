"""The console's server: daphne, with bounds on what a request may make it keep before anybody is asked who sends it.

    python -m webapp.serving [--certificate FILE --key FILE]
        [--https HOST:PORT [--https-certificate FILE --https-key FILE]] OPTIONS-OF-DAPHNE webapp.asgi:application

With a certificate its port speaks HTTP and HTTPS (`webapp/first_byte.py`); that of `--https` HTTPS alone, by the same rules.
Certificates that are replaced are shown to the connections that come then.

Daphne hands a request on when its body is there, and its framework writes each that is long, or does not say how long it is, to a
temporary file. Here bodies stay in memory and count in one budget of all requests, with a share for each address
(`remoting/transport/unfinished.py`). What is too long is refused when that is known. The head of a request has `HEAD_S` to come
and the body `BODY_S`, however often something of them comes. Of connections that nothing is done for there are not many
(`webapp/waiting.py`). A request that others could read as ending somewhere else is refused (`webapp/framing.py`). A message of a
websocket has at most `MAX_SOCKET_BYTES`, and `MAX_SOCKET_MESSAGES` of them wait: pages send a few words.
"""

from __future__ import annotations

import argparse
import logging
import sys
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import Any, Final

from daphne.cli import CommandLineInterface
from daphne.http_protocol import HTTPFactory, WebRequest
from daphne.server import Server
from daphne.ws_protocol import WebSocketFactory, WebSocketProtocol
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IHandshakeListener, ISSLTransport
from zope.interface import implementer

from remoting.errors import InvalidParameter, SettingsError
from remoting.transport.client import split_address
from remoting.transport.unfinished import Piece, peer_of
from remoting.transport.waiting import Waiting
from remoting.transport.watch import UnfinishedSettings, Watch
from webapp.appliance.reach import join_address
from webapp.first_byte import Certificate, FirstByteFactory, in_tls
from webapp.framing import StrictChannel
from webapp.intake import BODY_S, HEAD_S, MAX_BODY_BYTES, TOO_LARGE, TOO_LATE
from webapp.waiting import most_waiting

log = logging.getLogger(__name__)

MAX_SOCKET_BYTES: Final = 16 * 1024
MAX_SOCKET_MESSAGES: Final = 64  # of one websocket that wait to be heard
_POLICY_VIOLATION: Final = 1008  # a websocket's close code
_BUDGET_BYTES: Final = 64 * 1024 * 1024
_LINGER_S: Final = 2.0  # how long what still comes of a refused request is dropped, so that its client reads why
_REASONS: Final = {400: "Bad Request", 408: "Request Timeout", 413: "Content Too Large"}


class BoundedRequest(WebRequest):
    """A request whose body stays in memory, within bounds. A long one counts in the budget until the request is answered: so few
    of them are with Django at once, which makes copies, and the others wait where they come from."""

    _piece: Piece | None = None
    _body_bytes = 0

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._parsePOSTFormSubmission = False  # Django reads forms, within bounds; these here nobody would ask for

    def gotLength(self, length: int | None) -> None:
        """The head is there. `length` None: the body does not say how long it will be."""
        self.content = BytesIO()
        if length is not None and length > MAX_BODY_BYTES:
            self.channel.refuse(*TOO_LARGE)
        elif length != 0:
            self._piece = self.channel.watch.begin(
                self, peer_of(getattr(self.client, "host", "")), MAX_BODY_BYTES if length is None else length, 0
            )
            if self._piece.waits:
                self.channel.hold()

    def handleContentChunk(self, data: bytes) -> None:
        """More of the body."""
        self._body_bytes += len(data)
        piece = self._piece
        if piece is None or piece.is_over:
            return
        if self._body_bytes > MAX_BODY_BYTES:
            self.channel.refuse(*TOO_LARGE)
            return
        piece.received_bytes = self._body_bytes
        piece.budget.grew(piece)
        if not piece.is_over:
            super().handleContentChunk(data)

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        """All of it is there."""
        if self._piece is not None:
            self.channel.watch.arrived(self._piece)
        super().requestReceived(command, path, version)
        if self.transport is None:  # a websocket has it now, and nobody tells of this request's end
            self.let_go()

    def finish(self) -> None:
        """It is answered."""
        self.let_go()
        super().finish()

    def connectionLost(self, reason: Any) -> None:
        """The client is gone."""
        self.let_go()
        super().connectionLost(reason)

    def let_go(self) -> None:
        """Nobody needs the body any more."""
        piece, self._piece = self._piece, None
        if piece is not None:
            self.channel.watch.end(piece)

    def room_came(self, piece: Piece) -> None:
        """See `unfinished.Holder`."""
        self.channel.go_on()

    def dropped(self, piece: Piece, reason: str) -> None:
        """See `unfinished.Holder`."""
        if self.channel is not None:
            self.channel.refuse(*TOO_LATE)


@implementer(IHandshakeListener)
class BoundedChannel(StrictChannel):
    """One connection of HTTP/1.1, in TLS or not."""

    watch: Watch
    waiting: Waiting

    def __init__(self) -> None:
        super().__init__()
        self._deadline: Any = None  # of the request that is coming
        self._linger: Any = None
        self._is_refused = False

    def makeConnection(self, transport: Any) -> None:
        """It is there; a handshake, when it begins with one, has `HEAD_S`."""
        super().makeConnection(transport)
        self.waiting.begin(self)
        if ISSLTransport.providedBy(transport):
            self._deadline = self.callLater(HEAD_S, transport.abortConnection)

    def handshakeCompleted(self) -> None:
        """See `IHandshakeListener`."""
        self._forget_deadline()

    def dataReceived(self, data: bytes) -> None:
        """Bytes of a request, or of one behind it."""
        if self._is_refused:
            return
        if self._deadline is None and not self._handlingRequest:
            self._deadline = self.callLater(HEAD_S, self._is_late)
        super().dataReceived(data)

    def allHeadersReceived(self) -> None:
        """The head of a request is there."""
        if self._deadline is not None:
            self._deadline.reset(BODY_S)
        super().allHeadersReceived()

    def allContentReceived(self) -> None:
        """A request is there."""
        self._forget_deadline()
        if not self._is_refused:
            self.waiting.end(self)
            super().allContentReceived()

    def requestDone(self, request: Any) -> None:
        """It is answered, or what is left of that is with the transport."""
        self.waiting.begin(self)
        super().requestDone(request)

    def setRawMode(self) -> None:
        """What comes is no more lines of a head: of a refused request, nothing."""
        if not self._is_refused:
            super().setRawMode()

    def _send100Continue(self) -> None:
        """Have the body sent, if it is taken."""
        if not self._is_refused:
            super()._send100Continue()

    def connectionLost(self, reason: Any) -> None:
        """The connection is gone."""
        self.waiting.end(self)
        self._forget_deadline()
        if self._linger is not None and self._linger.active():
            self._linger.cancel()
        super().connectionLost(reason)

    def give_way(self) -> None:
        """See `waiting.Waiter`."""
        log.info("dropping the connection of %s: too many others wait", self.transport.getPeer())
        self.transport.abortConnection()

    def hold(self) -> None:
        """Read nothing for now."""
        self.transport.pauseProducing()

    def go_on(self) -> None:
        self.transport.resumeProducing()

    def refuse(self, status: int, text: str) -> None:
        """Say why, and drop whatever still comes."""
        if self._is_refused:
            return
        self._is_refused = True
        self._forget_deadline()
        self.clearLineBuffer()
        for request in self.requests:
            request.let_go()
            request.content = BytesIO()
        log.info("refusing a request of %s: %s", self.transport.getPeer(), text.strip())
        body = text.encode()
        head = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: text/plain; charset=utf-8\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.resumeProducing()
        self._linger = self.callLater(_LINGER_S, self.transport.abortConnection)

    def _is_late(self) -> None:
        self._deadline = None
        self.refuse(*TOO_LATE)

    def _forget_deadline(self) -> None:
        deadline, self._deadline = self._deadline, None
        if deadline is not None and deadline.active():
            deadline.cancel()


class BoundedFactory(HTTPFactory):
    """Makes the connections of one server; HTTP/2, for which daphne would need more packages, is not spoken."""

    protocol = BoundedChannel

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.waiting = Waiting(most_waiting())
        self._watch = Watch(UnfinishedSettings(max_bytes=_BUDGET_BYTES, deadline_s=BODY_S))

    def buildProtocol(self, addr: Any) -> Any:
        """A connection of this address."""
        channel = super().buildProtocol(addr)
        channel.requestFactory = BoundedRequest
        channel.watch = self._watch
        channel.waiting = self.waiting
        return channel


class BoundedSocket(WebSocketProtocol):
    """A websocket. Of a client that does not read what it is sent nothing more is read, and one that says much more than is
    listened to is closed: each page says a few words, and waits.

    The library holds its bound for messages against what is sent, too, and what pages are sent may be longer.
    """

    _is_refused = False
    _linger: Any = None

    def connectionMade(self) -> None:
        """It takes the connection over from a channel, which was asked to pause until now."""
        self.transport.unregisterProducer()
        self.transport.registerProducer(self, True)
        super().connectionMade()

    def pauseProducing(self) -> None:
        """Much of what it was sent is unread."""
        self.transport.pauseProducing()

    def resumeProducing(self) -> None:
        self.transport.resumeProducing()

    def stopProducing(self) -> None:
        """The connection is gone, which the library hears by itself."""

    def onMessage(self, payload: bytes, isBinary: bool) -> None:
        """The client says something."""
        if self._is_refused:
            return
        if self.application_queue.qsize() >= MAX_SOCKET_MESSAGES:
            self._is_refused = True
            log.info("closing the websocket of %s: it says more than is listened to", self.client_addr)
            self.sendCloseFrame(code=_POLICY_VIOLATION, reasonUtf8=b"too many messages at once")
            return
        super().onMessage(payload, isBinary)

    def _closeConnection(self, abort: bool = False) -> None:
        self.transport.unregisterProducer()  # TLS is not ended before somebody who might still write
        super()._closeConnection(abort)
        if self._linger is None and not abort:  # nor before the client says so, which a stranger need not do
            self._linger = self.factory.reactor.callLater(_LINGER_S, self.transport.abortConnection)
            self.server.waiting.begin(self)

    def give_way(self) -> None:
        """See `waiting.Waiter`: it is closing."""
        self.transport.abortConnection()

    def connectionLost(self, reason: Any) -> None:
        """The connection is gone."""
        self.server.waiting.end(self)
        if self._linger is not None and self._linger.active():
            self._linger.cancel()
        super().connectionLost(reason)

    def sendMessage(self, *arguments: Any, **more: Any) -> None:
        """To the page, however long."""
        bound, self.maxMessagePayloadSize = self.maxMessagePayloadSize, 0
        try:
            super().sendMessage(*arguments, **more)
        finally:
            self.maxMessagePayloadSize = bound


@dataclass(frozen=True)
class Https:
    """A port that speaks HTTPS alone."""

    host: str
    port: int
    certificate: Certificate

    def listen(self, channels: BoundedFactory) -> None:
        """Take connections. Raises SettingsError when something else listens there."""
        reactor = channels.reactor
        try:
            reactor.listenTCP(self.port, in_tls(channels, self.certificate, reactor), interface=self.host)
        except CannotListenError as error:
            raise SettingsError(f"--https {join_address(self.host, self.port)}: {error}") from error


class BoundedServer(Server):
    """Daphne's server, which makes its factories itself when it runs, and asks nobody: it gets others here."""

    def __init__(
        self, *arguments: Any, certificate: Certificate | None = None, https: Https | None = None, **more: Any
    ) -> None:
        super().__init__(*arguments, **more)
        self._certificate = certificate
        self._https = https

    @property
    def ws_factory(self) -> WebSocketFactory:
        return self._ws_factory

    @ws_factory.setter
    def ws_factory(self, made: WebSocketFactory) -> None:
        made.protocol = BoundedSocket
        self._ws_factory = made

    @property
    def http_factory(self) -> BoundedFactory | FirstByteFactory:
        return self._http_factory

    @http_factory.setter
    def http_factory(self, _made: HTTPFactory) -> None:
        channels = BoundedFactory(self)
        self.waiting = channels.waiting
        if self._https is not None:
            self._https.listen(channels)
        self._http_factory = (
            channels if self._certificate is None else FirstByteFactory(channels, self._certificate, channels.reactor)
        )


class ConsoleServer(CommandLineInterface):
    """Daphne's command line, with more options."""

    def run(self, args: list[str]) -> None:
        """Serve until a signal comes."""
        own, others = _own_options().parse_known_args(args)
        if (own.certificate is None) != (own.key is None):
            raise SettingsError("--certificate and --key belong together; give both, or none")
        certificate = Certificate(own.certificate, own.key) if own.certificate is not None else None
        self.server_class = partial(BoundedServer, certificate=certificate, https=_https(own, certificate))
        bounds = ("--websocket-max-frame-size", "--websocket-max-message-size")
        super().run([*(word for name in bounds for word in (name, str(MAX_SOCKET_BYTES))), *others])


def _https(own: argparse.Namespace, certificate: Certificate | None) -> Https | None:
    """The port for HTTPS alone, if there is to be one."""
    if (own.https_certificate is None) != (own.https_key is None):
        raise SettingsError("--https-certificate and --https-key belong together; give both, or none")
    if own.https is None:
        return None
    if own.https_certificate is not None:
        certificate = Certificate(own.https_certificate, own.https_key)
    if certificate is None:
        raise SettingsError("--https needs a certificate: --https-certificate and --https-key")
    return Https(*split_address(own.https), certificate)


def _own_options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--certificate", metavar="FILE", help="shown to those who begin with TLS, with its chain: PEM")
    parser.add_argument("--key", metavar="FILE", help="its private key: PEM")
    parser.add_argument("--https", metavar="HOST:PORT", help="a port that speaks HTTPS alone")
    parser.add_argument("--https-certificate", metavar="FILE", help="shown there, when it is another one")
    parser.add_argument("--https-key", metavar="FILE", help="its private key")
    return parser


if __name__ == "__main__":
    try:
        ConsoleServer().run(sys.argv[1:])
    except (SettingsError, InvalidParameter) as error:
        sys.exit(f"error: {error}")
