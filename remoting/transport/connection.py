"""One remoting connection on asyncio: the same protocol object serves an accepted and a dialled connection.

Requests that arrive in one read event are handed to their handlers in runs of equal code, in order, so that a handler sees a
batch and no Task is made. Those of one kind may be taken undecoded, buffer by buffer (`BufferTaker`). Answers and requests that
are written during a loop turn leave in one write.

What a peer can make us hold is bounded: a frame by its size limit, frames that are not all there by the daemon's budget for them
(`unfinished`; reading stops until there is room), unanswered requests by `max_in_flight` (reading stops until answers are given),
what waits for a taker by `max_held_bytes` (likewise), unsent answers by the transport's high-water mark (reading stops until the
peer reads). What we ask is bounded by the same mark of bytes that the peer does not read. Where reading never stops
(`always_reads`), the connection is closed at `max_in_flight`, and at `max_unsent_bytes` as everywhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from remoting import codes, frame
from remoting.access.signature import Sign
from remoting.disk import Bytes, is_small_part, is_unchanging
from remoting.errors import ConnectionLost, LogboomError, ProtocolError
from remoting.frame import Command
from remoting.record.hosts import pack_host
from remoting.transport.carrying import Carrier, nothing
from remoting.transport.identity import socket_address
from remoting.transport.incoming import Incoming
from remoting.transport.limits import ConnectionLimits
from remoting.transport.outgoing import Outgoing
from remoting.transport.requests import Answered, OpenRequests, told_to
from remoting.transport.taking import MOST_TAKEN, BufferTaker, Density, RequestTaker
from remoting.transport.unfinished import Piece, peer_of
from remoting.transport.watch import Watch

log = logging.getLogger(__name__)

Handler = Callable[["RemotingConnection", Sequence[Command]], None]

_HIGH_WATER_BYTES: Final = 4 * 1024 * 1024
_BEHIND_BYTES: Final = 256 * 1024  # so much that the peer has not read: answers come faster than it reads
_PROVEN_WATER_BYTES: Final = _HIGH_WATER_BYTES, 1024 * 1024
_UNPROVEN_WATER_BYTES: Final = 256 * 1024, 64 * 1024  # of those who have not shown who they are
_LONG_BODY_BYTES: Final = 8192  # from here on a body is not copied behind its header
_LONG_READ_BYTES: Final = 512 * 1024  # more than one read of a socket brings
_READS_AFTER_VAIN_OFFER: Final = 16  # that are not offered: what a peer sends is mostly like what it sent before


@dataclass(frozen=True, slots=True)
class Intake:
    """What a listener's connections count unfinished frames with. `may_send_much` is asked, where requests are signed, for the
    header of a long frame on a connection that has not shown who it is yet (None: for none). `quick` is shown what would be
    decoded otherwise, `catch_up` called before: who asks may have heard of all that was answered. A carrier may write answers."""

    watch: Watch
    may_send_much: Callable[[Command], bool] | None = None
    quick: RequestTaker[RemotingConnection] | None = None
    carrier: Carrier | None = None
    catch_up: Callable[[], None] = nothing


class RemotingConnection(asyncio.Protocol):
    """Frames in and out, answers matched by opaque, handlers called by code."""

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        limits: ConnectionLimits,
        opened: Callable[[RemotingConnection], None] | None = None,
        closed: Callable[[RemotingConnection], None] | None = None,
        *,
        taker: BufferTaker[RemotingConnection] | None = None,
        intake: Intake | None = None,
    ) -> None:
        """The taker is offered what was read, where requests are signed once one of them has shown who sends them. Without an
        intake, as on dialled connections, unfinished frames are not counted."""
        self._taker = taker
        self._quick = None if intake is None else intake.quick
        self._catch_up = nothing if intake is None else intake.catch_up
        self._incoming = Incoming() if intake is None else Incoming(intake.watch, intake.may_send_much)
        self._outgoing = Outgoing(None if intake is None else intake.carrier)
        self._is_away = False  # somebody else reads from the socket, too
        self.density = Density()  # of what is taken undecoded
        self._is_proven = intake is None or intake.may_send_much is None
        self.user = ""  # who sent the last request that was let in, where they are signed
        self._asks_quickly = False  # what came last was for who takes it undecoded
        self._sign: Sign | None = None
        self.own_address = self.peer_address = self.peer_host = ""  # own: of this end's socket
        self.peer_port, self.packed_peer = 0, bytes(8)  # packed: address and port as a record's host field has them
        self.last_active = 0.0
        self._handlers, self._limits = handlers, limits
        self._opened, self._closed = opened, closed
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._in_flight = self._reads_to_decode = 0
        self._backlog: deque[Command] = deque()
        self._backlog_since = 0.0  # when the requests in it were read; 0 without any
        self._write_scheduled = self._work_scheduled = self._puts_off = False
        self._on_proven: Callable[[RemotingConnection], None] | None = None
        self._on_slow: Callable[[RemotingConnection, bool], None] | None = None
        self._write_paused = self._reading_paused = False
        self._requests = OpenRequests(self._loop)

    @property
    def peer(self) -> str:
        """host:port of the other side, for messages."""
        return f"{self.peer_host}:{self.peer_port}"

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    @property
    def is_slow(self) -> bool:
        """Whether the peer leaves so much unread that nothing large should be given to it now."""
        return self._write_paused or self._outgoing.size > _HIGH_WATER_BYTES

    def sign_with(self, sign: Sign) -> None:
        """From now on, sign the requests that go out here."""
        self._sign = sign

    def watch_slowness(self, listener: Callable[[RemotingConnection, bool], None]) -> None:
        """`listener` is told when the peer leaves too many answers unread (True), and when it has read again."""
        self._on_slow = listener

    @property
    def is_stranger(self) -> bool:
        """Whether requests are signed here, and none of this connection's was let in yet."""
        return not self._is_proven

    def watch_proof(self, listener: Callable[[RemotingConnection], None]) -> None:
        """`listener` is told when a stranger's first signed request was let in."""
        self._on_proven = listener

    def give_way(self) -> None:
        """See `waiting.Waiter`."""
        log.info("dropping the connection of %s: it has not shown who it is, and too many others come", self.peer)
        self.abort()

    def prove(self, user: str) -> None:
        """A signed request of this user was let in."""
        self.user = user
        if not self._is_proven:
            self._is_proven = True
            if self._on_proven is not None:
                self._on_proven(self)
            if self._transport is not None:
                self._transport.set_write_buffer_limits(*_PROVEN_WATER_BYTES)

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A uvloop transport has the methods of asyncio.Transport without being one.
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(*(_PROVEN_WATER_BYTES if self._is_proven else _UNPROVEN_WATER_BYTES))
        self.last_active = self._loop.time()
        address = transport.get_extra_info("peername")
        if address:
            self.peer_host, self.peer_port = address[0], address[1]
            self.packed_peer = pack_host(self.peer_host, self.peer_port)
            self.peer_address = socket_address(address)
            self.own_address = socket_address(transport.get_extra_info("sockname"))
        self._outgoing.open(transport)
        if self._opened is not None:
            self._opened(self)

    def data_received(self, data: bytes) -> None:
        self.last_active = self._loop.time()
        if (incoming := self._incoming).chunks:
            if not incoming.add(data):
                return
            if incoming.is_offered:
                self._regulate_reading()
                return
            data = incoming.take()
        self._read(data)

    def _read(self, data: bytes) -> None:
        """Have what was read taken, or decode it; behind what is to be taken first, if that is for others."""
        taker = self._taker
        if self._asks_quickly and not self._backlog and (taker is None or not taker.goes_first):
            # like what came before: it begins with nothing that is for the taker
            assert self._quick is not None
            self._catch_up()
            if (taken := self._take_quickly(self._quick, data)) == len(data):
                return
            self._asks_quickly = False
            data = data[taken:]
        if taker is None or self._reads_to_decode:
            self._reads_to_decode = max(0, self._reads_to_decode - 1)
            self._decode(data)
        elif (
            self._is_proven
            and not (self._backlog or self.is_slow)
            and self._in_flight + MOST_TAKEN <= self._limits.max_in_flight
            and taker.offer(self, data)
        ):
            self._incoming.offer(data, self._limits.max_held_bytes)
        elif taker.goes_first:
            self._incoming.offer(data, self._limits.max_held_bytes)
            self._loop.call_soon(self._decode_held)
        else:
            self._decode(data)

    def _decode_held(self) -> None:
        if data := self._incoming.take_offered():
            self._decode(data)
            if self._reading_paused:
                self._regulate_reading()

    def _decode(self, data: bytes) -> None:
        self._catch_up()
        if self._quick is not None and not self._backlog and (taken := self._take_quickly(self._quick, data)):
            if taken == len(data):
                self._asks_quickly = True
                return
            data = data[taken:]
        commands: list[Command] = []
        try:
            consumed = frame.decode_frames(data, commands, self._limits.max_frame_bytes)
        except ProtocolError as error:
            self._dispatch(commands)
            log.warning("closing the connection of %s: %s", self.peer, error)
            self.close()
            return
        if consumed < len(data):
            self._incoming.keep_rest(data[consumed:])
        self._dispatch(commands)
        if self._backlog and len(data) > _LONG_READ_BYTES:
            self._part_backlog_from_what_was_read()
        if self._incoming.chunks and self._transport is not None:
            self._begin_piece()

    def _take_quickly(self, quick: RequestTaker[RemotingConnection], data: bytes) -> int:
        """Have requests taken from the beginning of what was read: where the last of them ends."""
        position, end = 0, len(data)
        for _ in range(MOST_TAKEN):
            if self._is_congested():
                self._regulate_reading()
                break
            taken = quick.take(self, data, position)
            if taken == position:
                break
            position = taken
            if position == end:
                break
        return position

    def _part_backlog_from_what_was_read(self) -> None:
        """The bodies are views of it, and behind a long frame a short one that waits would keep all of that."""
        for command in self._backlog:
            command.body = bytes(command.body)

    def _begin_piece(self) -> None:
        """Count what is there of a frame."""
        incoming = self._incoming
        if reason := incoming.refusal(is_proven=self._is_proven):
            log.warning("closing the connection of %s: %s", self.peer, reason)
            self.close()
            return
        incoming.begin_piece(self, self.user or peer_of(self.peer_host), is_proven=self._is_proven)
        if incoming.is_full:
            self._regulate_reading()

    def room_came(self, piece: Piece) -> None:
        """See `unfinished.Holder`."""
        self._regulate_reading()

    def dropped(self, piece: Piece, reason: str) -> None:
        """See `unfinished.Holder`."""
        self._incoming.drop()
        log.warning(
            "closing the connection of %s, which sent %d of a frame's %d bytes: %s",
            *(self.peer, piece.received_bytes, piece.wanted_bytes, reason),
        )
        self.abort()

    @property
    def offered(self) -> bytes:
        """What the taker may take from, with all that came since it said so; nothing when the connection closed meanwhile."""
        return self._incoming.offered

    def go_on(self, position: int, requests: int, *, decoding: bool) -> None:
        """The taker took what is before `position`, with so many two-way requests; what follows is decoded, or offered again."""
        data = self._incoming.take_offered()
        self._in_flight += requests
        if decoding and not position:
            self._reads_to_decode = _READS_AFTER_VAIN_OFFER
        if position < len(data):
            (self._decode if decoding else self._read)(data[position:])
        if self._reading_paused:
            self._regulate_reading()

    def give_up(self) -> None:
        """The taker failed amid what was offered, of which some may be done: close, and take nothing of it again."""
        self._incoming.take_offered()
        self.abort()

    def pause_writing(self) -> None:
        self._write_paused = True
        self._regulate_reading()
        if self._on_slow is not None:
            self._on_slow(self, True)

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._on_slow is not None:
            self._on_slow(self, False)
        self._handle_backlog()

    def eof_received(self) -> None:
        """The peer sends no more: the transport closes behind this, and takes nothing to send any more."""
        if self._outgoing.is_lent:
            self._outgoing.get_back()
            self.go_on_sending()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._outgoing.close()
        self._incoming.end_piece()
        if self._incoming.is_offered:
            self.go_on(0, 0, decoding=True)  # of what came before the end, as much as one turn serves
        self._backlog.clear()
        self._requests.lose(self.peer)
        if self._closed is not None:
            self._closed(self)

    # ---- answering

    def respond(
        self,
        request: Command,
        code: int = codes.SUCCESS,
        ext: Mapping[str, str] | None = None,
        body: Bytes = b"",
        remark: str | None = None,
        *,
        body_stays: bool = False,
    ) -> None:
        """Answer one request; nothing is sent for a one-way request or on a closed connection. Once per request. `body_stays`:
        nobody changes what the body is a view of while that is there, so it is not copied, but for who would keep more unread."""
        if request.flag & codes.FLAG_ONEWAY:
            return
        self._in_flight -= 1
        is_copied = len(body) < _LONG_BODY_BYTES or not (body_stays or is_unchanging(body))
        if is_copied or (is_small_part(body) and self._is_behind()):
            self._write(frame.encode_response(code, request.opaque, ext, body, remark))
        else:
            self._write(frame.encode_response_head(code, request.opaque, ext, len(body), remark))
            self._write(body)

    def _is_behind(self) -> bool:
        transport = self._transport
        return transport is not None and self._outgoing.size + transport.get_write_buffer_size() > _BEHIND_BYTES

    def owe(self, requests: int) -> None:
        """So many two-way requests, which were not decoded here, are to be answered."""
        self._in_flight += requests

    def take_back(self, request: Command) -> None:
        """Of a request that was put off, when this connection `is_slow`: its handler has it again when that is over."""
        if self._transport is None:
            return
        if not request.flag & codes.FLAG_ONEWAY:
            self._in_flight -= 1
        self._backlog.append(request)
        self._note_backlog()
        self._regulate_reading()

    def respond_error(self, request: Command, error: LogboomError) -> None:
        """Answer with the error's code and its sentence as the remark."""
        self.respond(request, error.code, remark=str(error))

    def respond_encoded(self, frames: Bytes, count: int) -> None:
        """Send already encoded answers of `count` two-way requests; they leave in this turn of the loop, before what is put off
        to the next one."""
        self._in_flight -= count
        if self._write_scheduled or self._backlog or self._reading_paused:
            self._write(frames)
        elif self._transport is not None:
            self._outgoing.add(frames)
            self._send_out()

    def put_off_answers(self) -> None:
        """What is answered in this turn of the loop leaves in one write, at the beginning of the next."""
        self._puts_off = True
        if not self._write_scheduled:
            self._write_scheduled = True
            self._loop.call_soon(self.go_on_sending)

    # ---- lending the socket: see `carrying.Lender`

    def lend(self, ticket: int, seen: int, count: int) -> int:
        descriptor = -1 if self._is_busy() else self._outgoing.lend(ticket, seen)
        return self._lent(descriptor, count)

    def lend_more(self, count: int) -> tuple[int, int]:
        descriptor, ticket = (-1, 0) if self._is_busy() else self._outgoing.lend_more()
        return self._lent(descriptor, count), ticket

    def keep_lent(self, ticket: int) -> None:
        self._outgoing.ticket = ticket

    def go_away(self, seen: int, most_bytes: int = 0) -> tuple[int, int, bytes]:
        descriptor = -1 if self._is_busy() else self._outgoing.socket_to_lend
        if descriptor < 0 or not self._incoming.may_leave(most_bytes):
            return -1, 0, b""
        begun = self._incoming.take()
        self._is_away = True
        self._regulate_reading()
        return descriptor, self._outgoing.ticket if self._outgoing.ticket > seen else 0, begun

    def come_back(self, data: Bytes) -> None:
        self._is_away = False
        if self._transport is None or self._transport.is_closing():
            return
        self.last_active = self._loop.time()
        if self._outgoing.parts:
            self.go_on_sending()
        self._regulate_reading()
        if data:
            self.data_received(bytes(data))

    def give_back(self, rest: Bytes) -> None:
        self._outgoing.give_back(rest)

    def take_out(self) -> list[Bytes]:
        return self._outgoing.take()

    def _is_busy(self) -> bool:
        """Whether something is to be done here before what somebody else does."""
        return self._transport is None or self._puts_off or bool(self._backlog) or self._reading_paused

    def _lent(self, descriptor: int, count: int) -> int:
        """The socket, if it was lent, to who answers so many requests."""
        if descriptor >= 0:
            self._in_flight -= count
            self.last_active = self._loop.time()
        return descriptor

    # ---- requesting

    def request(
        self, code: int, ext: Mapping[str, str] | None, body: Bytes, timeout_ms: int, answered: Answered
    ) -> None:
        """Send a request; `answered` gets the response, ConnectionLost or RequestTimeout, exactly once."""
        if self._transport is None:
            answered(ConnectionLost(f"the connection to {self.peer} is closed"))
            return
        opaque = self._requests.begin(code, self.peer, timeout_ms, answered)
        if self._sign is not None:
            ext = self._sign(code, ext, body, False)
        self._write(frame.encode_request(code, opaque, ext, body))

    async def call(
        self, code: int, ext: Mapping[str, str] | None = None, body: Bytes = b"", timeout_ms: int = 3000
    ) -> Command:
        """Send a request and wait for its response, whatever its code. Raises ConnectionLost or RequestTimeout."""
        future: asyncio.Future[Command] = self._loop.create_future()
        self.request(code, ext, body, timeout_ms, told_to(future))
        return await future

    def notify(self, code: int, ext: Mapping[str, str] | None = None, body: Bytes = b"") -> bool:
        """Send a one-way request; False (and nothing sent) when the connection is closed or the peer does not read."""
        if self._transport is None or self._write_paused:
            return False
        if self._sign is not None:
            ext = self._sign(code, ext, body, True)
        self._write(frame.encode_request(code, self._requests.next_opaque(), ext, body, oneway=True))
        return True

    def close(self) -> None:
        """Send what is queued and close; `closed` is called when the socket is gone."""
        if self._transport is not None:
            self._outgoing.get_back()
            self.go_on_sending()
            self._transport.close()

    def abort(self) -> None:
        """Close at once and drop what is queued."""
        if self._transport is not None:
            self._transport.abort()

    # ---- inside

    def _dispatch(self, commands: list[Command]) -> None:
        if self._limits.always_reads and self._in_flight > self._limits.max_in_flight:
            log.warning("closing the connection of %s: it has %d requests open at once", self.peer, self._in_flight)
            self.abort()
            return
        if len(commands) == 1 and not (commands[0].flag & codes.FLAG_RESPONSE or self._backlog or self._is_congested()):
            self._take_one(commands)  # nothing is before it: it needs no backlog
            return
        for command in commands:
            if command.flag & codes.FLAG_RESPONSE:
                self._requests.resolve(command)
            else:
                self._backlog.append(command)
        self._handle_backlog()

    def _take_one(self, commands: list[Command]) -> None:
        """Handle the only request of a read event; what it is answered at once leaves without another turn of the loop."""
        scheduled, self._write_scheduled = self._write_scheduled, True
        self._handle(commands[0].code, commands)
        self._write_scheduled = scheduled
        if self._outgoing.parts:
            self._send_out()
        self._regulate_reading()

    def _handle_backlog(self) -> None:
        """Hand requests to their handlers in runs, until none is left, the peer has to read or wait first, or others are to be
        served before this connection goes on."""
        backlog = self._backlog
        served = 0
        while backlog and served < MOST_TAKEN and not self._is_congested():
            code = backlog[0].code
            run: list[Command] = []
            most = self._limits.most_at_once(code)
            while backlog and len(run) < most and backlog[0].code == code:
                run.append(backlog.popleft())
            served += len(run) if most > 1 else MOST_TAKEN
            if self._backlog_since and self._waited_too_long(code):
                self._refuse_late(run)
            else:
                self._handle(code, run)
        self._note_backlog()
        if backlog and served >= MOST_TAKEN and not self._work_scheduled:
            self._work_scheduled = True
            self._loop.call_soon(self._resume_backlog)
        self._regulate_reading()

    def _note_backlog(self) -> None:
        """Reading stops while there is a backlog, so what is in it was read at about one time."""
        self._backlog_since = (self._backlog_since or self._loop.time()) if self._backlog else 0.0

    def _waited_too_long(self, code: int) -> bool:
        return self._loop.time() - self._backlog_since > self._limits.may_wait_s(code)

    def _refuse_late(self, requests: Sequence[Command]) -> None:
        waited_ms = int((self._loop.time() - self._backlog_since) * 1000)
        remark = f"[TIMEOUT_CLEAN_QUEUE]this request waited {waited_ms} ms here, longer than its kind may; try again"
        for request in requests:
            if not request.is_oneway:
                self._in_flight += 1
                self.respond(request, codes.SYSTEM_BUSY, remark=remark)

    def _resume_backlog(self) -> None:
        self._work_scheduled = False
        self._handle_backlog()

    def _is_congested(self) -> bool:
        return not self._limits.always_reads and (self.is_slow or self._in_flight > self._limits.max_in_flight)

    def _handle(self, code: int, requests: Sequence[Command]) -> None:
        for request in requests:
            if not request.flag & codes.FLAG_ONEWAY:
                self._in_flight += 1
        handler = self._handlers.get(code)
        if handler is None:
            for request in requests:
                self.respond(request, codes.REQUEST_CODE_NOT_SUPPORTED, remark=f" request type {code} not supported")
        else:
            try:
                handler(self, requests)
            except Exception:
                log.exception("the handler of request code %d failed; closing the connection of %s", code, self.peer)
                self.close()

    def _write(self, data: Bytes) -> None:
        if self._transport is None:
            return
        self._outgoing.add(data)
        if not self._write_scheduled:
            self._write_scheduled = True
            self._loop.call_soon(self.go_on_sending)

    def go_on_sending(self) -> None:
        """Send what is put off; see also `carrying.Lender`."""
        self._write_scheduled = self._puts_off = False
        goes_on = self._outgoing.parts and self._send_out()
        if goes_on and (self._backlog or self._reading_paused) and not self._work_scheduled:
            self._handle_backlog()

    def _send_out(self) -> bool:
        """Hand what is to be sent to the transport; False on a connection that is closed, given up, or lent."""
        outgoing = self._outgoing
        if outgoing.is_lent and outgoing.stays_lent(self):
            return False
        if self._transport is None:
            outgoing.take()
            return False
        self.last_active = self._loop.time()
        outgoing.write_to(self._transport)
        if self._write_paused and self._transport.get_write_buffer_size() > self._limits.max_unsent_bytes:
            log.warning("closing the connection of %s: it does not read what is sent to it", self.peer)
            self.abort()
            return False
        return True

    def _regulate_reading(self) -> None:
        """Read only while the peer reads our answers, has not too many requests open, not too much waits for the taker, and there
        is room for the frame that is coming."""
        pause = self._is_away or self._incoming.is_full or bool(self._backlog) or self._is_congested()
        if self._transport is None or pause == self._reading_paused or self._transport.is_closing():
            return
        self._reading_paused = pause
        if pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()
