"""Signatures of remoting requests and of gRPC calls (pure)

Remoting: the values of all ext entries but the signature itself, in the order of their keys, then the body; HMAC-SHA1 under the
user's secret, in Base64. Clients up to 4.9.3 leave one more entry out. gRPC: HMAC-SHA1 over the date header as it was sent, in
hexadecimal digits of either case.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import re
from binascii import b2a_base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from operator import itemgetter
from typing import Final, Protocol

from remoting.disk import Bytes
from remoting.frame import Command

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"

# Request versions up to 4.9.3 leave this entry out of what they sign.
UNSIGNED_ENTRY: Final = "_UNIQUE_KEY_QUERY"
LAST_VERSION_LEAVING_OUT: Final = 399

AUTHORIZATION: Final = "authorization"
DATE_TIME: Final = "x-mq-date-time"

_MAX_AUTHORIZATION: Final = 4096
_MAX_NAME: Final = 256
_SHA1_BLOCK_BYTES: Final = 64
_JOINED_BYTES: Final = 8192  # up to here a copy costs less than one more call
_MAX_PICKS: Final = 1024
_MAX_PICKED: Final = 64
_MAX_PICKED_LENGTH: Final = 1024
_DATE_FORMATS: Final = ("%Y%m%dT%H%M%SZ", "%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M:%S.%f%z")
# What such a date looks like. Some clients' are in another calendar or zone, so that is all that can be asked of each.
_DATE_FORM: Final = re.compile(
    r"[0-9]{8}T[0-9]{6}Z|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:?[0-9]{2})"
)


# By the names of a request's ext entries as they came, and the one that is left out: what takes the signed ones in their order
_PICKS: Final[dict[tuple[tuple[str, ...], str | None], Callable[[Mapping[str, str]], tuple[str, ...]]]] = {}


class SigningKey:
    """HMAC-SHA1 under one secret, with what depends on the secret alone computed once: that is most of the time for a message."""

    __slots__ = ("_inner", "_outer", "first_blocks")

    def __init__(self, secret: bytes) -> None:
        block = (secret if len(secret) <= _SHA1_BLOCK_BYTES else hashlib.sha1(secret).digest()).ljust(
            _SHA1_BLOCK_BYTES, b"\0"
        )
        inner, outer = bytes(byte ^ 0x36 for byte in block), bytes(byte ^ 0x5C for byte in block)
        self._inner, self._outer = hashlib.sha1(inner), hashlib.sha1(outer)
        self.first_blocks = inner + outer  # of the two digests, for who computes them elsewhere

    def digest(self, *parts: Bytes) -> bytes:
        """Of the parts one after the other."""
        inner, outer = self._inner.copy(), self._outer.copy()
        for part in parts:
            inner.update(part)
        outer.update(inner.digest())
        return outer.digest()


class Sign(Protocol):
    """Signs what goes out on one connection."""

    def __call__(self, code: int, ext: Mapping[str, str] | None, body: Bytes, is_oneway: bool) -> dict[str, str]:
        """The ext entries of a request, with who asks and the signature."""


class SignsRequests(Protocol):
    """What one dials with: a client's keys (`Credentials`) or a component's (`component.ComponentCredentials`)."""

    def signer(self, targets: Sequence[str]) -> Sign:
        """For a connection to whom the addresses name."""


@lru_cache(maxsize=64)
def _key(secret: bytes) -> SigningKey:
    return SigningKey(secret)


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client signs with."""

    access_key: str
    secret: bytes = field(repr=False)

    def sign(self, ext: Mapping[str, str] | None, body: Bytes) -> dict[str, str]:
        """The ext entries of a request, with the access key and the signature."""
        signed = {**(ext or {}), ACCESS_KEY: self.access_key}
        signed[SIGNATURE] = sign(_key(self.secret), signed, body)
        return signed

    def signer(self, targets: Sequence[str]) -> Sign:
        """RocketMQ's signature covers neither the request's code nor whom it is for."""
        return lambda _code, ext, body, _is_oneway: self.sign(ext, body)


@dataclass(frozen=True, slots=True)
class GrpcSignature:
    """What an authorization header of gRPC says."""

    access_key: str
    digest: bytes


def sign(key: SigningKey, ext: Mapping[str, str], body: Bytes, *, leave_out: str | None = None) -> str:
    """The signature over ext entries and body; an entry of the name `leave_out` is not covered."""
    return _signature(key, ext, body, leave_out).decode()


def _signature(key: SigningKey, ext: Mapping[str, str], body: Bytes, leave_out: str | None) -> bytes:
    text = "".join(covered(ext, leave_out)).encode("utf-8", "surrogatepass")
    if len(body) <= _JOINED_BYTES:
        return b2a_base64(key.digest(text + body), newline=False)
    return b2a_base64(key.digest(text, body), newline=False)


def covered(ext: Mapping[str, str], leave_out: str | None) -> Sequence[str]:
    """The values of ext entries that are signed, in the order of their names. Clients send the same few sets of names again and
    again, so which order that is gets remembered, for sets of ordinary size."""
    names = tuple(ext)
    pick = _PICKS.get((names, leave_out))
    if pick is not None:
        return pick(ext)
    signed = [name for name in sorted(names) if name not in (SIGNATURE, leave_out)]
    if (
        2 <= len(signed) <= _MAX_PICKED and sum(map(len, names)) <= _MAX_PICKED_LENGTH
    ):  # of one entry it would give no tuple
        if len(_PICKS) >= _MAX_PICKS:
            _PICKS.clear()
        _PICKS[names, leave_out] = itemgetter(*signed)
    return [ext[name] for name in signed]


def access_key(request: Command) -> str:
    """Who a request says that it comes from; "" = nobody. Empty entries (some clients always send them) count as absent."""
    return request.ext.get(ACCESS_KEY, "")


def is_signed_by(request: Command, key: SigningKey) -> bool:
    """Whether the request carries the signature that the key gives; takes the same time whatever it carries."""
    ext, leave_out = request.ext, None
    if UNSIGNED_ENTRY in ext and request.version <= LAST_VERSION_LEAVING_OUT:
        leave_out = UNSIGNED_ENTRY
    expected = _signature(key, ext, request.body, leave_out)
    return hmac.compare_digest(expected, ext.get(SIGNATURE, "").encode("utf-8", "replace"))


def read_authorization(header: str) -> GrpcSignature | None:
    """The header of a gRPC call; None when there is none or it names nobody. Raises ValueError when it cannot be read."""
    if not header:
        return None
    if len(header) > _MAX_AUTHORIZATION:
        raise ValueError("the authorization header is too long")
    _, separator, rest = header.partition(" ")
    if not separator:
        raise ValueError("the authorization header must be: ALGORITHM Credential=..., SignedHeaders=..., Signature=...")
    parts: dict[str, str] = {}
    for part in rest.split(","):
        name, equals, value = part.strip().partition("=")
        if not equals:
            raise ValueError(f"the part {name[:40]!r} of the authorization header has no value")
        parts[name] = value
    key = parts.get("Credential", "").partition("/")[0]
    if not key:
        return None
    if len(key) > _MAX_NAME:
        raise ValueError("the credential of the authorization header is too long")
    try:
        digest = binascii.unhexlify(parts.get("Signature", ""))
    except (binascii.Error, ValueError) as error:
        raise ValueError("the signature of the authorization header is not hexadecimal") from error
    return GrpcSignature(key, digest)


def is_date_signed_by(date_time: str, signature: GrpcSignature, key: SigningKey) -> bool:
    """Whether a gRPC call carries the signature that the key gives over its date header."""
    expected = key.digest(date_time.encode("utf-8", "surrogatepass"))
    return hmac.compare_digest(expected, signature.digest)


def is_date(date_time: str) -> bool:
    """Whether a date header has the form of a date: anything else could be the text of somebody's signed request of remoting."""
    return _DATE_FORM.fullmatch(date_time) is not None


def date_age_ms(date_time: str, now_ms: int) -> int | None:
    """How long ago (or how far ahead, as a positive number too) a date header is; None when it is in no known form.

    Some clients write their local time with a Z: theirs is off by their distance from UTC.
    """
    for pattern in _DATE_FORMATS:
        try:
            parsed = datetime.strptime(date_time, pattern)  # noqa: DTZ007 - the first pattern means UTC
        except ValueError:
            continue
        if parsed.tzinfo is None:
            parsed = parsed.replace(tzinfo=UTC)
        return abs(now_ms - int(parsed.timestamp() * 1000))
    return None
