"""JSON as the original writes it: maps whose keys are numbers have them without quotes, which no JSON parser takes (pure)"""

from __future__ import annotations

import re
from typing import Any

import orjson

from remoting.disk import Bytes
from remoting.errors import ProtocolError

_BARE_KEYS = re.compile(rb'"(?:\\.|[^"\\])*"|([{,]\s*)(-?\d+)(\s*:)')


def loads_bare(encoded: Bytes) -> Any:
    """Decode JSON, with or without quotes around integer keys; those become texts. Raises ProtocolError."""
    try:
        return orjson.loads(encoded)
    except ValueError:
        try:
            return orjson.loads(_BARE_KEYS.sub(_quote_key, bytes(encoded)))
        except ValueError as error:
            raise ProtocolError(f"undecodable JSON: {error}") from error


def _quote_key(match: re.Match[bytes]) -> bytes:
    if match[2] is None:
        return match[0]  # a string: whatever it holds is no key
    return match[1] + b'"' + match[2] + b'"' + match[3]
