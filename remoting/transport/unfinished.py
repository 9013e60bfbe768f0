"""Frames and bodies that have begun to come and are not all there yet: one budget for all peers of a daemon (pure; the clock is
an argument).

A piece says how long it will be. Up to `SMALL_BYTES` it is taken at once. For a longer one its whole length is reserved; while
there is no room for that it waits, and nothing more of it is read. So what peers make a daemon hold is bounded, whoever is within
the reservations can come to an end, and a crowd of honest peers is slowed down, not turned away.

Room is given to the peer that holds the least, and of one peer's pieces to the shortest, then the newest: a crowd that only waits
keeps nobody of its own address out. Who waited for `PATIENCE_MS` is made room: first those go that came on, in the last
`PACE_MS`, less than a quarter of what brings them to an end by their deadline; then the oldest of a peer that without it would
still hold at least what the one that waits will. Small pieces, and what came of those that wait, have a fifth of the budget:
beyond it the oldest of the peer that holds most of it goes. So nobody keeps others out by holding on, whether many connections
are one peer or each is its own, and equal peers do not turn each other out.

A peer is a user where requests are signed and the connection has shown who it is, and its network address before that: a user has
one share on how many machines ever, and nobody takes another one's share by coming from his address. Who has not shown who he is,
where that is asked, has a budget apart, so strangers cost users nothing.
"""

from __future__ import annotations

import heapq
import ipaddress
from collections.abc import Iterator
from enum import Enum, auto
from typing import Final, Protocol

SMALL_BYTES: Final = 64 * 1024
PATIENCE_MS: Final = 1000
PACE_MS: Final = 1000

_WAITING_BYTES: Final = 32 * 1024  # what one that waits counts as, at least: that bounds how many there are
_LOBBY_SHARE: Final = 5
_MERGED_BYTES: Final = 1024
_PACE_DIVISOR: Final = 4
_PAUSE_MS: Final = 1000  # between two looks: this daemon stood still itself, and read nothing
_NETWORK_BITS: Final = 64  # of IPv6: whoever has one address of a network has them all


class Holder(Protocol):
    """Where a piece comes in."""

    def room_came(self, piece: Piece) -> None:
        """There is room now: read on."""

    def dropped(self, piece: Piece, reason: str) -> None:
        """The piece has to go, with all that came of it; it counts no more. May be called while it begins."""


class _State(Enum):
    SMALL = auto()
    WAITING = auto()
    RESERVED = auto()
    ARRIVED = auto()
    OVER = auto()


class Piece:
    """One frame or body. Who receives it keeps `received_bytes` true."""

    __slots__ = (
        "_counted",
        "_seen_bytes",
        "_state",
        "_taken_ms",
        "budget",
        "holder",
        "peer",
        "received_bytes",
        "since_ms",
        "wanted_bytes",
    )

    def __init__(
        self, budget: Unfinished, holder: Holder, peer: str, wanted_bytes: int, received_bytes: int, since_ms: int
    ) -> None:
        self.budget = budget
        self.holder = holder
        self.peer = peer
        self.wanted_bytes = wanted_bytes
        self.received_bytes = received_bytes
        self.since_ms = since_ms
        self._state = _State.OVER
        self._counted = 0  # bytes of the lobby
        self._seen_bytes = received_bytes  # at the last look
        self._taken_ms = since_ms

    @property
    def waits(self) -> bool:
        """Nothing more of it is to be read yet."""
        return self._state is _State.WAITING

    @property
    def is_over(self) -> bool:
        return self._state is _State.OVER


class _Share:
    """What one peer has."""

    __slots__ = ("lobby", "lobby_bytes", "reserved", "reserved_bytes")

    def __init__(self) -> None:
        self.reserved_bytes = 0
        self.reserved: dict[Piece, None] = {}
        self.lobby_bytes = 0
        self.lobby: dict[Piece, None] = {}


class Unfinished:
    """The pieces of one budget of `most_bytes`; a fifth of it is for small ones and those that wait. Each has `deadline_ms`."""

    def __init__(self, most_bytes: int, deadline_ms: int) -> None:
        self._most_lobby_bytes = most_bytes // _LOBBY_SHARE
        self.most_piece_bytes = most_bytes - self._most_lobby_bytes
        self._deadline_ms = deadline_ms
        self._looked_ms = 0
        self._is_paused = False  # at the last look
        self._paced_ms = 0  # since when `_seen_bytes` hold
        self._pieces: dict[Piece, None] = {}  # in the order in which they began
        self._waiting: dict[Piece, None] = {}
        self._shares: dict[str, _Share] = {}
        self.reserved_bytes = 0
        self.lobby_bytes = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._pieces)

    @property
    def held_bytes(self) -> int:
        """What all of them may have come to."""
        return self.reserved_bytes + self.lobby_bytes

    @property
    def waiting(self) -> int:
        """Pieces that wait for room."""
        return len(self._waiting)

    def begin(self, holder: Holder, peer: str, wanted_bytes: int, received_bytes: int, now_ms: int) -> Piece:
        """A piece that is not longer than `most_piece_bytes` has begun to come; look whether it `waits`, or `is_over` already."""
        assert wanted_bytes <= self.most_piece_bytes
        piece = Piece(self, holder, peer, wanted_bytes, received_bytes, now_ms)
        self._pieces[piece] = None
        if wanted_bytes <= SMALL_BYTES:
            self._put_in_lobby(piece, _State.SMALL, wanted_bytes)
        elif not self._waiting and self._fits(piece):
            self._reserve(piece, now_ms)
        else:
            self._waiting[piece] = None
            self._put_in_lobby(piece, _State.WAITING, max(received_bytes, _WAITING_BYTES))
        self._clear_lobby()
        return piece

    def grew(self, piece: Piece) -> None:
        """More came of one that waits, as nobody could stop it at once; it may be over now."""
        more = piece.received_bytes - piece._counted
        if piece.waits and more > 0:
            piece._counted += more
            self._shares[piece.peer].lobby_bytes += more
            self.lobby_bytes += more
            self._clear_lobby()

    def end(self, piece: Piece, now_ms: int) -> None:
        """It is all there, or nobody wants it any more."""
        state = piece._state
        if state is not _State.OVER:
            self._remove(piece)
            if self._waiting and state is not _State.SMALL:  # a small one kept nobody out
                self._admit(now_ms)

    def arrived(self, piece: Piece, now_ms: int) -> None:
        """It is all there, and is held until its `end`: a long one counts on, and goes for nobody any more."""
        if piece._state is _State.RESERVED:
            piece._state = _State.ARRIVED
            del self._shares[piece.peer].reserved[piece]
            del self._pieces[piece]
        else:
            self.end(piece, now_ms)

    def look(self, now_ms: int) -> None:
        """Drop what is late, and what others wait for. To be called some times a second while there are pieces."""
        was_paused, self._is_paused = self._is_paused, now_ms - self._looked_ms > _PAUSE_MS
        is_paused, self._looked_ms = self._is_paused, now_ms
        if was_paused or not is_paused:  # else what came while this daemon stood still is to be read first
            for piece in self._late(now_ms):
                self._drop(piece, f"it did not come within {self._deadline_ms / 1000:g} s")
        passed_ms = 0 if is_paused else now_ms - self._paced_ms
        if self._waiting:
            self._admit(now_ms)
            self._make_room(now_ms, passed_ms)
        if is_paused or passed_ms >= PACE_MS:
            self._paced_ms = now_ms
            for share in self._shares.values():
                for piece in share.reserved:
                    piece._seen_bytes = piece.received_bytes

    # ---- inside

    def _fits(self, piece: Piece) -> bool:
        return self.reserved_bytes + piece.wanted_bytes <= self.most_piece_bytes

    def _late(self, now_ms: int) -> list[Piece]:
        late = []
        for piece in self._pieces:
            if now_ms - piece.since_ms < self._deadline_ms:
                break
            late.append(piece)
        return late

    def _admit(self, now_ms: int) -> None:
        """Let those in that there is room for."""
        while self._waiting:
            first = min(self._waiting, key=self._precedence)
            if not self._fits(first):
                return
            self._let_in(first, now_ms)

    def _let_in(self, piece: Piece, now_ms: int) -> None:
        self._take_out_of_lobby(piece)
        self._reserve(piece, now_ms)
        piece.holder.room_came(piece)

    def _precedence(self, piece: Piece) -> tuple[int, int, int]:
        return self._shares[piece.peer].reserved_bytes, piece.wanted_bytes, -piece.since_ms

    def _make_room(self, now_ms: int, passed_ms: int) -> None:
        """For those who waited long enough, until one finds none. What came in the last `passed_ms` is known. Who was made room
        has it: a stream of shorter ones of the same peer would take it away again and again."""
        standing = self._standing_still(now_ms, passed_ms) if passed_ms >= PACE_MS else iter(())
        for waiter in self._by_precedence([each for each in self._waiting if now_ms - each.since_ms >= PATIENCE_MS]):
            while not self._fits(waiter) and not waiter.is_over and waiter.waits:
                victim = next(standing, None) or self._in_excess(waiter)
                if victim is None:
                    return
                self._drop(
                    victim, "others wait, and it did not come on, or its sender has more than his share: try again"
                )
            if waiter.waits:
                self._let_in(waiter, now_ms)
        self._admit(now_ms)

    def _by_precedence(self, pieces: list[Piece]) -> Iterator[Piece]:
        """Those that still wait, as each has it when its turn comes: who was let in makes his peer's others wait."""
        heap = [(self._precedence(piece), number, piece) for number, piece in enumerate(pieces)]
        heapq.heapify(heap)
        while heap:
            was, number, piece = heapq.heappop(heap)
            if piece.waits:
                now = self._precedence(piece)
                if now > was and heap and now > heap[0][0]:
                    heapq.heappush(heap, (now, number, piece))
                else:
                    yield piece

    def _standing_still(self, now_ms: int, passed_ms: int) -> Iterator[Piece]:
        """Those that come much too slowly to be in time, of the peers that hold most first."""
        found = [
            (-share.reserved_bytes, piece.since_ms, piece)
            for share in self._shares.values()
            for piece in share.reserved
            if now_ms - piece._taken_ms >= passed_ms
            and (piece.received_bytes - piece._seen_bytes) * self._deadline_ms * _PACE_DIVISOR
            < piece.wanted_bytes * passed_ms
        ]
        found.sort(key=lambda each: each[:2])
        return (piece for _, _, piece in found if not piece.is_over)

    def _in_excess(self, waiter: Piece) -> Piece | None:
        """The oldest piece of the peer that has most and some that can go, if it has more than its share beside the waiter's."""
        most = max(self._shares.values(), key=lambda share: (bool(share.reserved), share.reserved_bytes))
        oldest = next(iter(most.reserved), None)
        will_have = self._shares[waiter.peer].reserved_bytes + waiter.wanted_bytes
        if oldest is None or most.reserved_bytes - oldest.wanted_bytes < will_have:
            return None
        return oldest

    def _clear_lobby(self) -> None:
        while self.lobby_bytes > self._most_lobby_bytes:
            most = max(self._shares.values(), key=lambda share: share.lobby_bytes)
            self._drop(next(iter(most.lobby)), "too much is unfinished at once: try again")

    def _drop(self, piece: Piece, reason: str) -> None:
        self.dropped += 1
        self._remove(piece)
        piece.holder.dropped(piece, reason)

    # ---- numbers

    def _share(self, piece: Piece) -> _Share:
        share = self._shares.get(piece.peer)
        if share is None:
            share = self._shares[piece.peer] = _Share()
        return share

    def _put_in_lobby(self, piece: Piece, state: _State, counted: int) -> None:
        share = self._share(piece)
        piece._state = state
        piece._counted = counted
        share.lobby[piece] = None
        share.lobby_bytes += counted
        self.lobby_bytes += counted

    def _take_out_of_lobby(self, piece: Piece) -> None:
        share = self._shares[piece.peer]
        del share.lobby[piece]
        share.lobby_bytes -= piece._counted
        self.lobby_bytes -= piece._counted
        self._waiting.pop(piece, None)

    def _reserve(self, piece: Piece, now_ms: int) -> None:
        share = self._share(piece)
        piece._state = _State.RESERVED
        piece._taken_ms = now_ms
        piece._seen_bytes = piece.received_bytes
        share.reserved[piece] = None
        share.reserved_bytes += piece.wanted_bytes
        self.reserved_bytes += piece.wanted_bytes

    def _remove(self, piece: Piece) -> None:
        share = self._shares[piece.peer]
        if piece._state in (_State.RESERVED, _State.ARRIVED):
            share.reserved.pop(piece, None)
            share.reserved_bytes -= piece.wanted_bytes
            self.reserved_bytes -= piece.wanted_bytes
        else:
            self._take_out_of_lobby(piece)
        piece._state = _State.OVER
        self._pieces.pop(piece, None)
        if not share.reserved_bytes and not share.lobby:
            del self._shares[piece.peer]


def peer_of(host: str) -> str:
    """Who is behind an address, as far as that tells."""
    if ":" not in host:
        return host
    try:
        return str(ipaddress.ip_network((host.partition("%")[0], _NETWORK_BITS), strict=False))
    except ValueError:
        return host


def keep(chunks: list[bytes | bytearray], data: bytes) -> None:
    """Put what came behind what came before it. Crumbs are put together, each of which would cost more than its bytes."""
    if len(data) >= _MERGED_BYTES:
        chunks.append(data)
    elif chunks and type(chunks[-1]) is bytearray:
        chunks[-1] += data
    else:
        chunks.append(bytearray(data))
