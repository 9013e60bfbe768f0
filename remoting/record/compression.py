"""Compressed bodies of records: unpacked as far as somebody wants them (pure)

A small body can unpack to gigabytes, so there is always a limit, and a window that is larger than any client's is refused.
"""

from __future__ import annotations

import zlib
from typing import Final

import lz4.frame
import zstandard

from remoting.record.layout import SYS_COMPRESSED, SYS_COMPRESSION_TYPE_MASK

_NAMES: Final = {0: "zlib", 1: "lz4", 2: "zstd", 3: "zlib"}
_WINDOW_BYTES: Final = 32 * 1024 * 1024


def compression(sys_flag: int) -> str | None:
    """How the body of a record with these flags is compressed; None when it is not."""
    if not sys_flag & SYS_COMPRESSED:
        return None
    return _NAMES.get((sys_flag & SYS_COMPRESSION_TYPE_MASK) >> 8, "unknown")


def unpack(stored: bytes, sys_flag: int, most: int) -> bytes:
    """The body as it was sent, of a compressed one at most so many bytes. Raises ValueError when it cannot be unpacked."""
    try:
        match compression(sys_flag):
            case None:
                return stored
            case "zlib":
                return zlib.decompressobj().decompress(stored, most)
            case "lz4":
                return bytes(lz4.frame.LZ4FrameDecompressor().decompress(stored, max_length=most))
            case "zstd":
                with zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES).stream_reader(stored) as reader:
                    return bytes(reader.read(most))
            case _:
                raise ValueError("its compression is not known")
    except (zlib.error, zstandard.ZstdError, RuntimeError, EOFError) as error:
        raise ValueError(str(error)) from error
