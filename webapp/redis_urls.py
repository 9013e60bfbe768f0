"""The addresses of Redis, as each library wants them (pure)

People and this project write `redis://`, `rediss://` and `unix://`, as the Redis client and the channel layer read them. Celery
has a form of its own for a socket.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit


def of_socket(socket: Path, user: str, password: str) -> str:
    """The address of a server that listens on a socket of this machine."""
    return f"unix://{quote(user, safe='')}:{quote(password, safe='')}@{quote(str(socket))}?db=0"


def for_celery(url: str) -> str:
    """The same server for Celery."""
    parts = urlsplit(url)
    if parts.scheme != "unix":
        return url
    database = parse_qs(parts.query).get("db", ["0"])[0]
    return f"redis+socket://{parts.netloc}{parts.path}?virtual_host={quote(database)}"
