"""Users' secrets at rest (pure)

A secret that clients sign with must be known in full to check a signature, so it cannot be hashed; it is encrypted instead, by
AES-256-GCM under a key that HKDF derives from the cluster's secret file, bound to the user's name. Whoever has a controller's
log or a broker's copy without that file learns only how long a secret is, and cannot give one user another one's.
"""

from __future__ import annotations

import contextlib
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

NONCE_BYTES: Final = 12
LEAST_SECRET_BYTES: Final = 16
MAX_PASSWORD_BYTES: Final = 256


class CannotOpen(ValueError):
    """No key of the cluster's secret file opens a sealed secret."""


def seal(cluster_secret: bytes, owner: str, password: str, nonce: bytes) -> str:
    """A password for the disk. `nonce` = `NONCE_BYTES` random bytes that were never used before."""
    assert len(nonce) == NONCE_BYTES
    return b64encode(nonce + _cipher(cluster_secret).encrypt(nonce, password.encode(), owner.encode())).decode()


def unseal(cluster_secrets: Sequence[bytes], owner: str, sealed: str) -> str:
    """The password again; one of the secrets must be the one it was sealed under. Raises CannotOpen."""
    from cryptography.exceptions import InvalidTag

    try:
        content = b64decode(sealed, validate=True)
    except ValueError as error:
        raise CannotOpen(f"the sealed secret of {owner} is damaged") from error
    nonce, hidden = content[:NONCE_BYTES], content[NONCE_BYTES:]
    for secret in cluster_secrets if len(nonce) == NONCE_BYTES else ():
        with contextlib.suppress(InvalidTag):
            return _cipher(secret).decrypt(nonce, hidden, owner.encode()).decode()
    raise CannotOpen(f"the secret of {owner} was sealed under another cluster secret: give the user a new one")


def _cipher(cluster_secret: bytes) -> AESGCM:
    # Imported where it is needed: it takes ten megabytes, which a daemon without users can do without.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return AESGCM(HKDF(SHA256(), 32, salt=None, info=b"logboom users' secrets").derive(cluster_secret))
