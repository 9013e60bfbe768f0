"""A message that is too large for one request, in pieces: cut, and put together again within bounds (pure)"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from remoting.errors import ProtocolError

CHUNK_BYTES: Final = 256 << 10
MAX_TOTAL_BYTES: Final = 256 << 20


def cut(content: bytes) -> Iterator[tuple[int, bytes]]:
    """(position, piece) in order; at least one."""
    for position in range(0, max(len(content), 1), CHUNK_BYTES):
        yield position, content[position : position + CHUNK_BYTES]


class Assembly:
    """Pieces in order until they are whole. Memory grows with what arrived, never with what was announced."""

    def __init__(self, total_bytes: int) -> None:
        if not 0 < total_bytes <= MAX_TOTAL_BYTES:
            raise ProtocolError(f"a snapshot of {total_bytes} bytes is announced; the limit is {MAX_TOTAL_BYTES}")
        self.total_bytes = total_bytes
        self._content = bytearray()

    def add(self, position: int, total_bytes: int, piece: bytes) -> bytes | None:
        """The whole content when this was the last piece. Raises ProtocolError for a piece that does not follow."""
        if position != len(self._content) or total_bytes != self.total_bytes or not 0 < len(piece) <= CHUNK_BYTES:
            raise ProtocolError(
                f"{len(piece)} bytes at {position} of {total_bytes} do not follow {len(self._content)} of {self.total_bytes}"
            )
        if position + len(piece) > total_bytes:
            raise ProtocolError(f"a piece ends at {position + len(piece)}, behind the announced end at {total_bytes}")
        self._content += piece
        return bytes(self._content) if len(self._content) == total_bytes else None
