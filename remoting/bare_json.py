"""JSON as the original reads and writes it: maps whose keys are no texts, which no JSON parser takes (pure).

Keys that are numbers have no quotes; keys that are objects are written as they are: `{{"queueId":0,"topic":"t"}:5}`. Readers of
the original take such keys bare or as texts.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from remoting.disk import Bytes
from remoting.errors import ProtocolError

MAX_DEPTH: Final = 128
_QUOTE: Final = 0x22
_BACKSLASH: Final = 0x5C
_OPENING: Final = frozenset(b"{[")
_BLANKS: Final = b" \t\r\n"
_NUMBER: Final = frozenset(b"-0123456789")


def loads_bare(encoded: Bytes) -> Any:
    """Decode JSON in which keys of objects may be integers without quotes, or objects.

    Such keys become texts; those of objects hold strict JSON. Raises ProtocolError.
    """
    try:
        return orjson.loads(encoded)
    except ValueError:
        try:
            return orjson.loads(_quote_keys(bytes(encoded)))
        except ValueError as error:
            raise ProtocolError(f"undecodable JSON: {error}") from error


def _quote_keys(encoded: bytes) -> bytes:
    """The same document with every key as a text. What is no JSON otherwise stays so."""
    out: list[bytes] = []
    containers: list[tuple[int, int, bool]] = []  # (opening byte, place in `out` of its text, whether it is a key)
    expects_key = in_key = False
    position, end = 0, len(encoded)
    while position < end:
        byte = encoded[position]
        start = position
        position += 1
        if byte == _QUOTE:
            position = _end_of_text(encoded, position)
            out.append(encoded[start:position])
            expects_key = False
        elif byte in _OPENING:
            if len(containers) == MAX_DEPTH:
                raise ProtocolError(f"undecodable JSON: it is nested deeper than {MAX_DEPTH}")
            if expects_key:
                if in_key:  # each level would double the quotes of the levels inside
                    raise ProtocolError("undecodable JSON: a key of a key that is an object is an object itself")
                in_key = True
            containers.append((byte, len(out), expects_key))
            out.append(encoded[start:position])
            expects_key = byte == 0x7B
        elif byte in b"}]":
            out.append(encoded[start:position])
            if not containers:
                raise ProtocolError("undecodable JSON: a bracket closes nothing")
            _, first, is_key = containers.pop()
            if is_key:
                in_key = False
                out[first:] = [orjson.dumps(b"".join(out[first:]).decode("utf-8", "replace"))]
            expects_key = False
        elif byte == 0x2C:
            out.append(b",")
            expects_key = bool(containers) and containers[-1][0] == 0x7B
        elif byte in _BLANKS:
            out.append(encoded[start:position])
        else:
            while position < end and encoded[position] not in b'{}[],:" \t\r\n':
                position += 1
            word = encoded[start:position]
            out.append(b'"' + word + b'"' if expects_key and set(word) <= _NUMBER else word)
            expects_key = False
    return b"".join(out)


def _end_of_text(encoded: bytes, position: int) -> int:
    """Behind the closing quote of a text whose content starts at `position`."""
    while position < len(encoded):
        byte = encoded[position]
        position += 2 if byte == _BACKSLASH else 1
        if byte == _QUOTE:
            break
    return position
