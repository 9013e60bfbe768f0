"""Settings as the protocol's tools send and print them: `key=value` lines (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from remoting import codes
from remoting.disk import Bytes
from remoting.errors import RequestError

MAX_BODY_BYTES: Final = 64 << 10


def decode(body: Bytes) -> dict[str, str]:
    """The lines of a request. Raises RequestError for what cannot be read, or names nothing."""
    if not len(body) or len(body) > MAX_BODY_BYTES:
        raise RequestError(codes.SYSTEM_ERROR, f"the body must be key=value lines of at most {MAX_BODY_BYTES} bytes")
    try:
        lines = bytes(body).decode().splitlines()
    except UnicodeDecodeError as error:
        raise RequestError(codes.SYSTEM_ERROR, f"the body is not text: {error}") from error
    found = {}
    for line in lines:
        if not line.strip() or line.lstrip().startswith(("#", "!")):
            continue
        key, separator, text = line.partition("=")
        if not separator:
            raise RequestError(codes.SYSTEM_ERROR, f"{line[:80]!r} is not a key=value line")
        found[key.strip()] = text.strip()
    if not found:
        raise RequestError(codes.SYSTEM_ERROR, "the body names no setting")
    return found


def encode(values: Mapping[str, str]) -> bytes:
    return "".join(f"{key}={text}\n" for key, text in values.items()).encode()
