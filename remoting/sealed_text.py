"""A short text with its checksum, for small files of which one flipped bit must not make another valid one (pure).

    text separator crc32-xxxxxxxx LF        the CRC-32 of the text, as eight hexadecimal digits

The word before the digits keeps a damaged seal from being taken for a part of the text: whoever reads text without a seal, as
earlier versions wrote it, must refuse letters there.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from remoting.checksum import crc32
from remoting.errors import CorruptedFile

_MARK: Final = "crc32-"


class Unsealed(NamedTuple):
    """The text of a file, and whether it had a seal."""

    text: str
    is_sealed: bool


def seal(text: str, separator: str) -> bytes:
    return f"{text}{separator}{_MARK}{crc32(text.encode()):08x}\n".encode()


def unseal(content: bytes, separator: str, path: str) -> Unsealed:
    """What `seal` was given, or the whole content when there is no seal. Raises CorruptedFile for one that does not fit."""
    whole = content.decode("utf-8", "replace").strip()
    text, _, checksum = whole.rpartition(separator)
    if not checksum.startswith(_MARK):
        return Unsealed(whole, is_sealed=False)
    if checksum != f"{_MARK}{crc32(text.encode()):08x}":
        raise CorruptedFile(f"{path} does not fit its checksum; restore it from a copy of this data directory")
    return Unsealed(text, is_sealed=True)
