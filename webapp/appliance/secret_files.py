"""Generated secrets: one file each, readable by the owner only, made once.

Called by the supervisor and by Django's settings; two processes that ask for the same missing secret at the same time
end up with the same one.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path


def read_or_create(path: Path, length_bytes: int = 32, prefix: str = "") -> str:
    """Return the secret in `path`, generating it first (behind the prefix) if the file does not exist."""
    with contextlib.suppress(FileNotFoundError):
        return _read(path)
    with _draft(path, prefix + secrets.token_urlsafe(length_bytes)) as draft, contextlib.suppress(FileExistsError):
        os.link(draft, path)  # unlike a rename, a link never replaces what another process made first
    return _read(path)


def write(path: Path, secret: str) -> None:
    """Put a secret in the place of the one that is there; a reader sees the old or the new one, never a part."""
    with _draft(path, secret) as draft:
        os.replace(draft, path)


@contextlib.contextmanager
def _draft(path: Path, secret: str) -> Iterator[str]:
    """A file beside `path` with the secret; whatever happens, no copy of the secret stays there."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # its mode is 0600
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secret + "\n")
            file.flush()
            os.fsync(file.fileno())
        yield draft
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)


def _read(path: Path) -> str:
    secret = path.read_text().strip()
    if not secret:
        raise ValueError(f"{path} is empty; delete it and start again to have a new secret made")
    return secret
