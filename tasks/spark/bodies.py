"""Unpacking compressed message bodies, up to a limit (pure)"""

from __future__ import annotations

import zlib

import lz4.frame
import zstandard

from remoting.record.layout import SYS_COMPRESSED, SYS_COMPRESSION_TYPE_MASK

MAX_UNPACKED_BYTES = 32 * 1024 * 1024
_WINDOW_BYTES = 32 * 1024 * 1024


def unpack(stored: bytes, sys_flag: int) -> bytes | None:
    """The body as it was sent; None when it cannot be unpacked, or only to more than the limit."""
    if not sys_flag & SYS_COMPRESSED:
        return stored
    try:
        content = _unpack(stored, (sys_flag & SYS_COMPRESSION_TYPE_MASK) >> 8)
    except (zlib.error, zstandard.ZstdError, RuntimeError, ValueError, EOFError):
        return None
    return content if len(content) <= MAX_UNPACKED_BYTES else None


def _unpack(stored: bytes, compression: int) -> bytes:
    most = MAX_UNPACKED_BYTES + 1
    if compression in (0, 3):
        return zlib.decompressobj().decompress(stored, most)
    if compression == 1:
        return bytes(lz4.frame.LZ4FrameDecompressor().decompress(stored, max_length=most))
    if compression == 2:
        with zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES).stream_reader(stored) as reader:
            return bytes(reader.read(most))
    raise ValueError("unknown compression")
