"""What was read on a connection and waits there: for the rest of its frame, or for a taker who was offered it."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from remoting import frame
from remoting.errors import ProtocolError
from remoting.frame import Command
from remoting.transport.unfinished import SMALL_BYTES, Holder, Piece, keep
from remoting.transport.watch import Watch


class Incoming:
    """Of one connection. `chunks` wait; once there are as many bytes as are wanted, there is a frame, or so much that no more is
    to be read before the taker took some (`is_offered`)."""

    __slots__ = ("_may_send_much", "_piece", "_received_bytes", "_wanted_bytes", "_watch", "chunks", "is_offered")

    def __init__(self, watch: Watch | None = None, may_send_much: Callable[[Command], bool] | None = None) -> None:
        """Unfinished frames are counted with the watch, if there is one. `may_send_much` as `connection.Intake` has it."""
        self._watch, self._may_send_much = watch, may_send_much
        self._piece: Piece | None = None
        self.chunks: list[bytes | bytearray] = []
        self.is_offered = False
        self._received_bytes, self._wanted_bytes = 0, frame.PREFIX_BYTES

    @property
    def is_full(self) -> bool:
        """Whether no more is to be read for now."""
        if self.is_offered and self._received_bytes >= self._wanted_bytes:
            return True
        return self._piece is not None and self._piece.waits

    def add(self, data: bytes) -> bool:
        """Behind what waits: whether that is as much as is wanted."""
        keep(self.chunks, data)
        self._received_bytes += len(data)
        if self._piece is not None:
            self._piece.received_bytes = self._received_bytes
        return self._received_bytes >= self._wanted_bytes

    def take(self) -> bytes:
        data = b"".join(self.chunks)
        self.chunks.clear()
        self.end_piece()
        return data

    def may_leave(self, most_bytes: int) -> bool:
        """Whether what waits is nothing, or the beginning of a frame of so many bytes at most."""
        return not (self.is_offered or (self.chunks and self._wanted_bytes > most_bytes))

    # ---- what a taker was offered

    def offer(self, data: bytes, most_bytes: int) -> None:
        """What comes meanwhile waits behind it: about so many bytes."""
        self.is_offered = True
        self.chunks.append(data)
        self._received_bytes, self._wanted_bytes = len(data), most_bytes

    @property
    def offered(self) -> bytes:
        """With all that came since; nothing when nothing is offered."""
        if not self.is_offered:
            return b""
        if len(self.chunks) > 1:
            self.chunks = [b"".join(self.chunks)]
        return cast(bytes, self.chunks[0])  # what it was offered

    def take_offered(self) -> bytes:
        data = self.offered
        if self.is_offered:
            self.chunks.clear()
            self.is_offered = False
        return data

    # ---- a frame that is not all there

    def keep_rest(self, rest: bytes) -> None:
        """Of what was decoded: the beginning of a frame."""
        self.chunks.append(rest)
        self._received_bytes, self._wanted_bytes = len(rest), frame.bytes_wanted(rest)

    def refusal(self, *, is_proven: bool) -> str:
        """Why the rest of the frame is not waited for; empty when it is. A long one of somebody who has not shown who he is may
        come when its header names somebody who is known."""
        if is_proven or self._may_send_much is None or self._wanted_bytes <= SMALL_BYTES:
            return ""
        rest = cast(bytes, self.chunks[0])
        header_end = frame.header_end(rest)
        if len(rest) < header_end:
            self._wanted_bytes = header_end  # it is asked again when that is there
            return ""
        try:
            if self._may_send_much(frame.decode_head(rest)):
                return ""
        except ProtocolError as error:
            return str(error)
        return f"its first request has {self._wanted_bytes} bytes and names no user who is known; {SMALL_BYTES} are taken then"

    def begin_piece(self, holder: Holder, peer: str, *, is_proven: bool) -> None:
        """Count what is there of it."""
        if self._watch is None:
            return
        piece = self._watch.begin(holder, peer, self._wanted_bytes, self._received_bytes, is_proven=is_proven)
        if not piece.is_over:
            self._piece = piece

    def end_piece(self) -> None:
        """It is all there, or is not waited for any more."""
        piece, self._piece = self._piece, None
        if piece is not None and self._watch is not None:
            self._watch.end(piece)

    def drop(self) -> None:
        """It had to go, and counts no more."""
        self._piece = None
        self.chunks.clear()
