"""Budgets for what is unfinished, with a clock that tests turn."""

from __future__ import annotations

from typing import Any

from brokerd.proxy.http2.streams import Stream
from remoting.transport.unfinished import Holder, Piece, Unfinished

DEADLINE_MS = 30_000


class Budget:
    """As a daemon's (`remoting/transport/watch.py`): five times what may wait or be small."""

    def __init__(self, most_bytes: int = 1 << 30) -> None:
        self.now_ms = 0
        self.unfinished = Unfinished(most_bytes, DEADLINE_MS)

    @property
    def held_bytes(self) -> int:
        return self.unfinished.held_bytes

    def begin(self, holder: Holder, peer: str, wanted_bytes: int, received_bytes: int) -> Piece:
        return self.unfinished.begin(holder, peer, wanted_bytes, received_bytes, self.now_ms)

    def end(self, piece: Piece) -> None:
        self.unfinished.end(piece, self.now_ms)

    def pass_ms(self, passed_ms: int) -> None:
        """Let time pass, with looks in between as a daemon has them."""
        until_ms = self.now_ms + passed_ms
        while self.now_ms < until_ms:
            self.now_ms = min(until_ms, self.now_ms + 250)
            self.unfinished.look(self.now_ms)


class Streams:
    """What a connection of HTTP/2 without gRPC counts its bodies with; `refused` has the streams that had to go."""

    def __init__(self, budget: Budget, peer: str = "peer") -> None:
        self._budget = budget
        self._peer = peer
        self._streams: dict[Piece, Stream[Any]] = {}
        self.came: list[Stream[Any]] = []
        self.refused: list[int] = []

    def begin(self, stream: Stream[Any], wanted_bytes: int, received_bytes: int) -> bool:
        piece = self._budget.begin(self, self._peer, wanted_bytes, received_bytes)
        if piece.is_over:
            self.refused.append(stream.stream_id)
            return False
        stream.piece = piece
        self._streams[piece] = stream
        return True

    def end(self, stream: Stream[Any]) -> None:
        if stream.piece is not None:
            self._budget.end(stream.piece)
            stream.piece = None

    def grew(self, stream: Stream[Any]) -> None:
        assert stream.piece is not None
        self._budget.unfinished.grew(stream.piece)

    def room_came(self, piece: Piece) -> None:
        self.came.append(self._streams[piece])

    def dropped(self, piece: Piece, reason: str) -> None:
        if piece in self._streams:
            self.refused.append(self._streams[piece].stream_id)
