"""The bytes between a master and its replicas, both directions, and their incremental decoders (pure).

One TCP connection, dialled by the replica; each direction is framed on its own. Integers are big-endian.

    replica -> master  handshake  state=1 (4)  from_last_file (2)  learner (2)  broker id (8)
                       ack        state=2 (4)  offset (8)
    master -> replica  reply      state=1 (4)  body size (4)  log end (8)  last epoch (4)  then n x { epoch (4)  start (8) }
                       transfer   state=2 (4)  body size (4)  offset (8)  epoch (4)  epoch start (8)  confirm offset (8)  body

A body size of 0 makes a transfer a heartbeat. A first ack says from where to send; every later one how far the replica's log is
safe. A body may be cut anywhere, also inside a message, so the replica's decoder hands on what has arrived as a `Piece` with its
own offset: no body is ever put together, and no length that a peer names is ever allocated.

How a stale master is refused although neither the handshake nor the ack carries an epoch:

- the reply ends with the master's newest epoch. A replica goes on only if it equals the epoch that a controller named to it and
  is not below the highest it has persisted (`following`); else it closes and sends nothing, so it never acks to that master;
- the master counts acks only of connections that were greeted with its present epoch; it closes all of them when its epoch or
  role changes (`core`), so an ack on an open connection means: this replica accepted this epoch;
- the master answers only ids that a controller registered in its group, never its own, and before a complete handshake a
  connection acks nothing (`leading`).

A decoder that raised ProtocolError is finished: close the connection.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from brokerd.replication.epochs import EpochEntry, is_increasing
from remoting.disk import Bytes
from remoting.errors import ProtocolError

MAX_BODY_BYTES = 64 * 1024 * 1024
MAX_EPOCHS_SENT = 1000  # what the original's buffer holds
MAX_EPOCHS_READ = 10_000

_STATE = struct.Struct(">i")
_HANDSHAKE = struct.Struct(">ihhq")
_ACK = struct.Struct(">iq")
_REPLY = struct.Struct(">iiqi")
_REPLY_ENTRY = struct.Struct(">iq")
_TRANSFER = struct.Struct(">iiqiqq")

TRANSFER_HEADER_BYTES = _TRANSFER.size


# The states that frames name; the original's other ordinals (READY 0, SUSPEND 3, SHUTDOWN 4) never travel.
_HANDSHAKE_STATE = 1
_TRANSFER_STATE = 2


class Handshake(NamedTuple):
    broker_id: int
    from_last_file: bool = False
    learner: bool = False


class Ack(NamedTuple):
    offset: int


class Reply(NamedTuple):
    """What the master has: the end of its log, its newest epoch (-1 = none) and its epoch list."""

    end_offset: int
    last_epoch: int
    entries: Sequence[EpochEntry]


class TransferHeader(NamedTuple):
    """What travels before log bytes. `offset` is where the body belongs; a heartbeat has the next offset (-1 = not known)."""

    offset: int
    epoch: int
    epoch_start: int
    confirm_offset: int


class Piece(NamedTuple):
    """Log bytes that arrived: `header.offset` is that of the first byte of `body`; an empty body is a heartbeat."""

    header: TransferHeader
    body: Bytes


def encode_handshake(handshake: Handshake) -> bytes:
    return _HANDSHAKE.pack(_HANDSHAKE_STATE, handshake.from_last_file, handshake.learner, handshake.broker_id)


def encode_ack(offset: int) -> bytes:
    return _ACK.pack(_TRANSFER_STATE, offset)


def encode_reply(reply: Reply) -> bytes:
    """The reply with the newest entries: a replica that shares only older ones copies the log again."""
    entries = reply.entries[-MAX_EPOCHS_SENT:]
    head = _REPLY.pack(_HANDSHAKE_STATE, _REPLY_ENTRY.size * len(entries), reply.end_offset, reply.last_epoch)
    return head + b"".join(_REPLY_ENTRY.pack(*entry) for entry in entries)


def encode_transfer_header(header: TransferHeader, body_bytes: int) -> bytes:
    return _TRANSFER.pack(_TRANSFER_STATE, body_bytes, *header)


class MasterDecoder:
    """Decodes what a replica sends. Runs of acks in one read are given as their last."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: Bytes) -> list[Handshake | Ack]:
        if len(data) == _ACK.size and not self._rest:  # what nearly every read is
            state, offset = _ACK.unpack(data)
            if state == _TRANSFER_STATE:
                return [Ack(offset)]
        buffer = self._rest + bytes(data) if self._rest else bytes(data)
        position, length = 0, len(buffer)
        events: list[Handshake | Ack] = []
        while length - position >= _STATE.size:
            (state,) = _STATE.unpack_from(buffer, position)
            if state == _TRANSFER_STATE:
                if length - position < _ACK.size:
                    break
                ack = Ack(_ACK.unpack_from(buffer, position)[1])
                position += _ACK.size
                last = events[-1] if events else None
                if isinstance(last, Ack) and last.offset <= ack.offset:
                    events[-1] = ack
                else:
                    events.append(ack)
            elif state == _HANDSHAKE_STATE:
                if length - position < _HANDSHAKE.size:
                    break
                _, from_last_file, learner, broker_id = _HANDSHAKE.unpack_from(buffer, position)
                position += _HANDSHAKE.size
                events.append(Handshake(broker_id, from_last_file != 0, learner != 0))
            else:
                raise ProtocolError(f"a replica sent a frame of state {state}; only 1 (handshake) and 2 (ack) exist")
        self._rest = buffer[position:]
        return events


class ReplicaDecoder:
    """Decodes what a master sends. Bodies are handed on as views of the fed bytes: use them before the next `feed`."""

    __slots__ = ("_header", "_missing", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._header: TransferHeader | None = None
        self._missing = 0  # bytes of the current body that have not arrived

    def feed(self, data: Bytes) -> list[Reply | Piece]:
        view = memoryview(self._rest + bytes(data) if self._rest else data)
        self._rest = b""
        position, length = 0, len(view)
        events: list[Reply | Piece] = []
        while position < length:
            if self._missing:
                assert self._header is not None
                body = view[position : position + self._missing]
                events.append(Piece(self._header, body))
                position += len(body)
                self._missing -= len(body)
                self._header = self._header._replace(offset=self._header.offset + len(body))
                continue
            used = self._decode_head(view, position, length - position, events)
            if not used:
                break
            position += used
        if position < length:
            self._rest = bytes(view[position:])
        return events

    def _decode_head(self, view: memoryview, position: int, available: int, events: list[Reply | Piece]) -> int:
        """Decode a reply or a transfer header at `position`; return its length, 0 = not all there."""
        if available < _STATE.size:
            return 0
        (state,) = _STATE.unpack_from(view, position)
        if state == _TRANSFER_STATE:
            if available < _TRANSFER.size:
                return 0
            _, body_bytes, *fields = _TRANSFER.unpack_from(view, position)
            if not 0 <= body_bytes <= MAX_BODY_BYTES:
                raise ProtocolError(f"a transfer of {body_bytes} bytes; the limit is {MAX_BODY_BYTES}")
            self._header = TransferHeader(*fields)
            self._missing = body_bytes
            if not body_bytes:
                events.append(Piece(self._header, b""))
            return _TRANSFER.size
        if state == _HANDSHAKE_STATE:
            return _decode_reply(view, position, available, events)
        raise ProtocolError(f"a master sent a frame of state {state}; only 1 (handshake) and 2 (transfer) exist")


def _decode_reply(view: memoryview, position: int, available: int, events: list[Reply | Piece]) -> int:
    if available < _REPLY.size:
        return 0
    _, body_bytes, end_offset, last_epoch = _REPLY.unpack_from(view, position)
    if body_bytes % _REPLY_ENTRY.size or not 0 <= body_bytes <= MAX_EPOCHS_READ * _REPLY_ENTRY.size:
        raise ProtocolError(f"a handshake reply with {body_bytes} bytes of epochs")
    total: int = _REPLY.size + body_bytes
    if available < total:
        return 0
    entries = [EpochEntry(*pair) for pair in _REPLY_ENTRY.iter_unpack(view[position + _REPLY.size : position + total])]
    if end_offset < 0 or not is_increasing(entries) or (entries[-1].epoch if entries else -1) != last_epoch:
        raise ProtocolError("a handshake reply whose epochs contradict each other")
    if entries and entries[-1].start_offset > end_offset:
        raise ProtocolError("a handshake reply with an epoch that begins beyond the end of the log")
    events.append(Reply(end_offset, last_epoch, tuple(entries)))
    return total
