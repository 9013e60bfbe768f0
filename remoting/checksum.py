"""CRC-32 as every file and frame of the project uses it."""

from __future__ import annotations

from zlib_ng.zlib_ng import crc32

__all__ = ["crc32"]
