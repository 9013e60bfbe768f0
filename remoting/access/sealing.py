"""Users' secrets at rest, and what is derived from the cluster's secret (pure)

A secret that clients sign with must be known in full to check a signature, so it cannot be hashed; it is encrypted instead, under
a key derived from the cluster's secret file: the keystream is HMAC-SHA256 in counter mode over a random nonce, and an HMAC-SHA256
over owner, nonce and ciphertext goes before it (encrypt, then authenticate; separate keys for both). Whoever has a controller's
log or a broker's copy without that file learns only how long a secret is, and cannot give one user another one's.
"""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Final

from remoting.access.signature import Credentials

NONCE_BYTES: Final = 16
LEAST_SECRET_BYTES: Final = 16
MAX_PASSWORD_BYTES: Final = 256
INNER_USER: Final = "logboom-inner"

_TAG_BYTES: Final = 32
_BLOCK_BYTES: Final = 32


class CannotOpen(ValueError):
    """No key of the cluster's secret file opens a sealed secret."""


def inner_credentials(cluster_secret: bytes) -> Credentials:
    """What the components of one cluster sign their requests to one another with."""
    derived = hmac.digest(cluster_secret, b"logboom inner credential", "sha256")
    return Credentials(INNER_USER, derived.hex().encode())


def seal(cluster_secret: bytes, owner: str, password: str, nonce: bytes) -> str:
    """A password for the disk. `nonce` = `NONCE_BYTES` random bytes that were never used before."""
    assert len(nonce) == NONCE_BYTES
    plain = password.encode()
    hidden = _mask(cluster_secret, nonce, plain)
    return b64encode(nonce + _tag(cluster_secret, owner, nonce, hidden) + hidden).decode()


def unseal(cluster_secrets: Sequence[bytes], owner: str, sealed: str) -> str:
    """The password again; one of the secrets must be the one it was sealed under. Raises CannotOpen."""
    try:
        content = b64decode(sealed, validate=True)
    except ValueError as error:
        raise CannotOpen(f"the sealed secret of {owner} is damaged") from error
    nonce, tag, hidden = content[:NONCE_BYTES], content[NONCE_BYTES : NONCE_BYTES + _TAG_BYTES], content[48:]
    for secret in cluster_secrets:
        if hmac.compare_digest(_tag(secret, owner, nonce, hidden), tag):
            return _mask(secret, nonce, hidden).decode()
    raise CannotOpen(f"the secret of {owner} was sealed under another cluster secret: give the user a new one")


def _mask(cluster_secret: bytes, nonce: bytes, content: bytes) -> bytes:
    key = hmac.digest(cluster_secret, b"logboom seal: encrypt", "sha256")
    blocks = range((len(content) + _BLOCK_BYTES - 1) // _BLOCK_BYTES)
    stream = b"".join(hmac.digest(key, nonce + number.to_bytes(8, "big"), "sha256") for number in blocks)
    return bytes(byte ^ mask for byte, mask in zip(content, stream, strict=False))


def _tag(cluster_secret: bytes, owner: str, nonce: bytes, hidden: bytes) -> bytes:
    key = hmac.digest(cluster_secret, b"logboom seal: authenticate", "sha256")
    name = owner.encode()
    return hmac.digest(key, len(name).to_bytes(4, "big") + name + nonce + hidden, "sha256")
