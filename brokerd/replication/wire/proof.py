"""The proof that both ends of a replication connection know the cluster's secret, and nothing of it on the wire (pure).

    replica -> master   hello       who it is, and 32 random bytes
    master -> replica   challenge   32 random bytes
    replica -> master   proof       HMAC-SHA256 under the secret over "replica", hello and challenge
    master -> replica   welcome     HMAC-SHA256 under the secret over "master", hello, challenge and proof

Each side answers random bytes that the other one has just drawn, so nothing recorded is of use; the two words keep a proof from
being sent back as a welcome; and the hello is covered, so nobody can put another broker id into it. The replica proves itself
first: whoever merely connects learns neither the master's epoch nor anything that was made with the secret.
What comes behind the welcome is neither signed nor encrypted here: TLS below does that, or the network is the brokers' own.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from remoting.errors import ProtocolError

NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32


class NotProven(ProtocolError):
    """The other end does not know the secret, or this end has none."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a broker proves itself with. `group` is the same on all brokers of a group; `nonce` draws 32 unguessable bytes.

    `others` are secrets that a replica may prove itself with as well: those of before or after while the secret is being changed.
    """

    secret: bytes | None = field(repr=False)
    group: bytes
    incarnation: int
    nonce: Callable[[], bytes] = field(repr=False)
    others: tuple[bytes, ...] = field(default=(), repr=False)

    def key(self) -> bytes:
        """The secret. Raises NotProven when this broker has none."""
        if self.secret is None:
            raise NotProven("this broker has no secret to prove itself with; give it one with --cluster-secret")
        return self.secret


def prove_replica(key: bytes, hello: bytes, challenge: bytes) -> bytes:
    return hmac.digest(key, b"replica" + hello + challenge, "sha256")


def prove_master(key: bytes, hello: bytes, challenge: bytes, proof: bytes) -> bytes:
    return hmac.digest(key, b"master" + hello + challenge + proof, "sha256")


def check_replica(credentials: Credentials, hello: bytes, challenge: bytes, proof: bytes) -> bytes:
    """The secret that a replica proved to know. Raises NotProven; that takes the same time whatever the proof is."""
    keys = (credentials.key(), *credentials.others)
    known = [key for key in keys if hmac.compare_digest(prove_replica(key, hello, challenge), proof)]
    if not known:
        raise NotProven("the replica does not know this cluster's secret; give both brokers the same file")
    return known[0]


def check_master(key: bytes, hello: bytes, challenge: bytes, proof: bytes, welcome: bytes) -> None:
    """Raise NotProven unless a master knows the secret that this replica proved itself with."""
    if not hmac.compare_digest(prove_master(key, hello, challenge, proof), welcome):
        raise NotProven("the master does not know this cluster's secret; give both brokers the same file")
