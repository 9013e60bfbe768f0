"""The digest of a body that each language's client finds right (pure).

All of them compute it over the body as it came, before they unpack it, compare the two texts, and treat a message whose texts
differ as damaged: it comes again and again, and then it is a dead letter. MD5 is the same text everywhere, but blocks the loop
for milliseconds when a body is large; CRC-32 does not, and how it is written is each client's own:

    JAVA, GO, DOTNET     upper-case hexadecimal digits, without leading zeros
    CPP, PYTHON, RUST    eight of them (Rust's client does not look)
    HTTP                 Node.js, which writes it in decimal: whoever mends that there must not lose messages here, so it gets MD5

A client that is not named here gets MD5, too, as the original's proxy gives it to all. The checksum that a record has of its body
lacks the highest bit, so the CRC is computed here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final

from remoting.checksum import crc32
from remoting.disk import Bytes

Digest = Callable[[Bytes], bytes]  # from a body to the encoded field 4 of SystemProperties: Digest{type 1, checksum 2}

_LEAST_OF_EIGHT_DIGITS: Final = 0x10000000
# tag and length of the field, the type, and tag and length of the text
_CRC32: Final = b"\x22%c\x08\x01\x12%c%X"
_CRC32_OF_EIGHT_DIGITS: Final = b"\x22\x0c\x08\x01\x12\x08%08X"
_MD5: Final = b"\x22\x24\x08\x02\x12\x20"


def digest_for(language: str) -> Digest:
    """What the client whose `x-mq-language` this is verifies rightly."""
    return _DIGESTS.get(language, _md5)


def eight_digits(language: str) -> bool | None:
    """Whether its CRC-32 has always eight digits; None where it gets none."""
    digest = _DIGESTS.get(language)
    return None if digest is None else digest is _crc32_full


def _crc32_short(body: Bytes) -> bytes:
    crc = crc32(body)
    if crc >= _LEAST_OF_EIGHT_DIGITS:
        return _CRC32_OF_EIGHT_DIGITS % crc
    digits = (crc.bit_length() + 3) // 4 or 1
    return _CRC32 % (4 + digits, digits, crc)


def _crc32_full(body: Bytes) -> bytes:
    return _CRC32_OF_EIGHT_DIGITS % crc32(body)


def _md5(body: Bytes) -> bytes:
    return _MD5 + hashlib.md5(body, usedforsecurity=False).hexdigest().upper().encode()


_DIGESTS: Final[dict[str, Digest]] = {
    "JAVA": _crc32_short,
    "GO": _crc32_short,
    "DOTNET": _crc32_short,
    "CPP": _crc32_full,
    "PYTHON": _crc32_full,
    "RUST": _crc32_full,
}
