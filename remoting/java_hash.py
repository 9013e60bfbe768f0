"""Hashes as Java computes them, which tags and keys are found by (pure)."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

_DIGITS: Final = b"0123456789abcdefghijklmnopqrstu"
_LOW_DIGITS: Final = bytes(_DIGITS[unit % 31] for unit in range(256))
_HIGH_DIGITS: Final = bytes(_DIGITS[unit // 31] for unit in range(256))
_HASHED_AT_ONCE: Final = 256
_SHORT_TEXT: Final = 64  # characters; hashes of longer ones are not remembered


def java_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 units, wrapped to a signed 32-bit integer."""
    return _known_hash(text) if len(text) <= _SHORT_TEXT else _hash_of(text)


def _hash_of(text: str) -> int:
    if text.isascii():
        value = _polynomial(text.encode())
    else:
        units = text.encode("utf-16-le", "surrogatepass")
        value = (_polynomial(units[::2]) + 256 * _polynomial(units[1::2])) & 0xFFFFFFFF
    return value - 0x100000000 if value & 0x80000000 else value


_known_hash = lru_cache(maxsize=16384)(_hash_of)


def java_hash_bits(text: bytes) -> int:
    """The same for UTF-8 text, as an unsigned 32-bit integer; what is no UTF-8 counts as replacement characters."""
    return _polynomial(text) if text.isascii() else java_hash(str(text, "utf-8", "replace")) & 0xFFFFFFFF


def _polynomial(units: bytes) -> int:
    """The sum of units[i] * 31 ** (n - 1 - i), modulo 2 ** 32.

    `int` evaluates such polynomials: a unit is 31 * high + low, and both are digits of base 31.
    """
    if len(units) > _HASHED_AT_ONCE:  # `int` takes a limited number of digits, in a time that grows with their square
        value = 0
        for start in range(0, len(units), _HASHED_AT_ONCE):
            part = units[start : start + _HASHED_AT_ONCE]
            value = value * pow(31, len(part), 1 << 32) + _polynomial(part)
        return value & 0xFFFFFFFF
    if not units:
        return 0
    return (int(units.translate(_LOW_DIGITS), 31) + 31 * int(units.translate(_HIGH_DIGITS), 31)) & 0xFFFFFFFF
