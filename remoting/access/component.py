"""How components of one cluster sign their requests to one another (pure)

HMAC-SHA256 under a key that follows from the cluster's secret, over a request's code, whether it is one-way, the names and values
of its ext entries, each with its length, and the body; and over when it was sent, the nonce of the sender's connection, its
number on that connection, and whom it is for. So what one component was asked cannot be made into another request, nor be asked
again, nor be asked of somebody else. The signatures of clients are RocketMQ's own (`signature`) and promise none of this, so they
do not count as a component's, and what a component signed is no user's signature of anything.

    Signature: component SENT_AT_MS NONCE NUMBER TARGET[,TARGET] MAC
"""

from __future__ import annotations

import hmac
import re
import struct
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from remoting.access.signature import ACCESS_KEY, SIGNATURE, Sign
from remoting.disk import Bytes
from remoting.frame import Command

INNER_USER: Final = "logboom-inner"
NONCE_BYTES: Final = 16
WINDOW_MS: Final = 300_000  # how far the clocks of two components may differ

_MAX_TEXT: Final = 1024
_TEXT: Final = re.compile(
    r"component ([0-9]{1,15}) ([0-9a-f]{32}) ([0-9]{1,15}) ([!-~]{1,600}) ([0-9a-f]{64})", re.ASCII
)
_HEAD: Final = struct.Struct(">iBI")
_LENGTH: Final = struct.Struct(">I")
_LENGTHS: Final = tuple(_LENGTH.pack(length).decode() for length in range(128))  # as they are in texts of ASCII


class ComponentKey:
    """What follows from one secret of the cluster."""

    __slots__ = ("_begun",)

    def __init__(self, cluster_secret: bytes) -> None:
        secret = hmac.digest(cluster_secret, b"logboom requests of components", "sha256")
        self._begun = hmac.new(secret, digestmod="sha256")

    def mac(self, head: str, request: Signed) -> str:
        """Of a request; `head` is all of the signature's text but the digest itself."""
        digest = self._begun.copy()
        digest.update(_covered(head, request))
        digest.update(request.body)
        return digest.hexdigest()


class Signed(NamedTuple):
    """What a signature covers of a request."""

    code: int
    is_oneway: bool
    ext: Mapping[str, str]
    body: Bytes


class Claims(NamedTuple):
    """What a component's signature says, beside being one."""

    sent_at_ms: int
    nonce: str  # of the sender's connection
    number: int  # of the request on it, rising
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ComponentCredentials:
    """What a component signs with. `nonce` gives `NONCE_BYTES` random bytes each time; `wall_ms` is the time."""

    key: ComponentKey = field(repr=False)
    nonce: Callable[[int], bytes]
    wall_ms: Callable[[], int]

    def signer(self, targets: Sequence[str]) -> Sign:
        """For one connection to whom the addresses name: that of the socket, and the one that was dialled."""
        nonce, whom, number = self.nonce(NONCE_BYTES).hex(), ",".join(targets), 0

        def sign(code: int, ext: Mapping[str, str] | None, body: Bytes, is_oneway: bool) -> dict[str, str]:
            nonlocal number
            number += 1
            signed = {**(ext or {}), ACCESS_KEY: INNER_USER}
            head = f"component {self.wall_ms()} {nonce} {number} {whom}"
            signed[SIGNATURE] = f"{head} {self.key.mac(head, Signed(code, is_oneway, signed, body))}"
            return signed

        return sign


def read_claims(request: Command, keys: Sequence[ComponentKey]) -> Claims | None:
    """What a request's signature says; None when it is not that of a component which knows one of the secrets.

    Takes the same time whichever secret it was.
    """
    text = request.ext.get(SIGNATURE, "")
    found = _TEXT.fullmatch(text) if len(text) <= _MAX_TEXT else None
    if found is None:
        return None
    sent_at_ms, nonce, number, targets, mac = found.groups()
    head = text[: found.start(5) - 1]
    signed = Signed(request.code, request.is_oneway, request.ext, request.body)
    if not any([hmac.compare_digest(key.mac(head, signed), mac) for key in keys]):
        return None
    return Claims(int(sent_at_ms), nonce, int(number), tuple(targets.split(",")))


def objection(claims: Claims, own_addresses: Set[str], now_ms: int) -> str:
    """Why a component's request does not count here and now; "" when it does."""
    if own_addresses.isdisjoint(claims.targets):
        return f"the request is for {' or '.join(claims.targets)}, and this is {' or '.join(sorted(own_addresses))}"
    off_ms = claims.sent_at_ms - now_ms
    if abs(off_ms) > WINDOW_MS:
        return (
            f"the sender's clock is {abs(off_ms) // 1000} s {'ahead of' if off_ms > 0 else 'behind'} this one's: set both; "
            f"{WINDOW_MS // 1000} s are the most that components believe"
        )
    return ""


def _covered(head: str, request: Signed) -> bytes:
    names = sorted(name for name in request.ext if name != SIGNATURE)
    texts = [head, *(text for name in names for text in (name, request.ext[name]))]
    begin = _HEAD.pack(request.code, request.is_oneway, len(texts))
    joined = "".join(texts)
    if joined.isascii() and max(map(len, texts)) < len(_LENGTHS):
        # mostly: a length is then one character, too, so that all is encoded at once
        return begin + "".join([part for text in texts for part in (_LENGTHS[len(text)], text)]).encode()
    return begin + _each_covered(texts)


def _each_covered(texts: Sequence[str]) -> bytes:
    parts: list[bytes] = []
    for text in texts:
        encoded = text.encode("utf-8", "surrogatepass")
        parts += (_LENGTH.pack(len(encoded)), encoded)
    return b"".join(parts)
