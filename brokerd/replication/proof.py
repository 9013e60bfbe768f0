"""The proof that both ends of a replication connection know the cluster's secret, and nothing of it on the wire (pure).

    replica -> master   hello       who it is, and 32 random bytes
    master -> replica   challenge   32 random bytes
    replica -> master   proof       HMAC-SHA256 under the secret over "replica", hello and challenge
    master -> replica   welcome     HMAC-SHA256 under the secret over "master", hello, challenge and proof

Each side answers random bytes that the other one has just drawn, so nothing recorded is of use; the two words keep a proof from
being sent back as a welcome; and the hello is covered, so nobody can put another broker id into it. The replica proves itself
first: whoever merely connects learns neither the master's epoch nor anything that was made with the secret.
What comes behind the welcome is neither signed nor encrypted: the network between brokers must be their own.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from remoting.errors import ProtocolError

NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32
LEAST_SECRET_BYTES: Final = 16


class NotProven(ProtocolError):
    """The other end does not know the secret, or this end has none."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a broker proves itself with. `group` is the same on all brokers of a group; `nonce` draws 32 unguessable bytes."""

    secret: bytes | None = field(repr=False)
    group: bytes
    incarnation: int
    nonce: Callable[[], bytes] = field(repr=False)

    def key(self) -> bytes:
        """The secret. Raises NotProven when this broker has none."""
        if self.secret is None:
            raise NotProven("this broker has no secret to prove itself with; give it one with --replication-secret")
        return self.secret


def prove_replica(key: bytes, hello: bytes, challenge: bytes) -> bytes:
    return hmac.digest(key, b"replica" + hello + challenge, "sha256")


def prove_master(key: bytes, hello: bytes, challenge: bytes, proof: bytes) -> bytes:
    return hmac.digest(key, b"master" + hello + challenge + proof, "sha256")


def check(expected: bytes, given: bytes, who: str) -> None:
    """Compare two proofs in constant time. Raises NotProven."""
    if not hmac.compare_digest(expected, given):
        raise NotProven(f"the {who} does not know this cluster's replication secret; give both brokers the same file")
