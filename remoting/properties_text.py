"""Settings as the protocol's tools send and print them: Java's properties, `key=value` lines with escapes (pure)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from remoting import codes
from remoting.disk import Bytes
from remoting.errors import RequestError

MAX_BODY_BYTES: Final = 64 << 10
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.?))", re.DOTALL)
_SEPARATOR = re.compile(r"(?<!\\)((?:\\\\)*)[=:]")
_LETTERS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_WRITTEN: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"})


def decode(body: Bytes) -> dict[str, str]:
    """The lines of a request. Raises RequestError for what cannot be read, or names nothing."""
    if not len(body) or len(body) > MAX_BODY_BYTES:
        raise RequestError(codes.SYSTEM_ERROR, f"the body must be key=value lines of at most {MAX_BODY_BYTES} bytes")
    try:
        lines = re.split(r"\r\n|\n|\r", bytes(body).decode())
    except UnicodeDecodeError as error:
        raise RequestError(codes.SYSTEM_ERROR, f"the body is not text: {error}") from error
    found = {}
    for line in lines:
        if not line.strip() or line.lstrip().startswith(("#", "!")):
            continue
        separator = _SEPARATOR.search(line)
        if separator is None:
            raise RequestError(codes.SYSTEM_ERROR, f"{line[:80]!r} is not a key=value line")
        key, text = line[: separator.end(1)], line[separator.end() :]
        found[_unescape(key.strip())] = _unescape(text.strip())
    if not found:
        raise RequestError(codes.SYSTEM_ERROR, "the body names no setting")
    return found


def encode(values: Mapping[str, str]) -> bytes:
    return "".join(f"{key}={text.translate(_WRITTEN)}\n" for key, text in values.items()).encode()


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else _LETTERS.get(found[2], found[2]), text)
