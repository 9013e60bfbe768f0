"""Which Redis the appliance uses: the one of REDIS_URL, or an embedded one that only the owner of the data directory reaches.

The embedded server listens on a socket in a directory of mode 0700, and on no port. It keeps nothing on disk: it carries tasks on
their way and the console's live messages, both of which are made again by those who need them. Its one user has a generated
password, and may do what the queue, the channel layer and the snapshot need: no scripts, no administration. What is written of
the password stands in files that only the owner may read, never on a command line.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remoting.errors import SettingsError
from webapp import redis_urls
from webapp.appliance import secret_files
from webapp.appliance.layout import DataLayout
from webapp.appliance.redis_binary import Server

USER = "logboom"
RIGHTS = (
    "~* &* -@all +@connection +@transaction +@pubsub +@keyspace +@string +@list +@hash +@set +@sortedset "
    "-@dangerous -@admin -@scripting"
)
"""All keys and channels, as the server is there for nothing else; the commands of the kinds of values that are in use."""

_EXTERNAL_DEADLINE_S = 3
_MOST_PATH_BYTES = 107
"""Of a socket: the kernel's `sun_path` with the zero behind it."""


@dataclass(frozen=True, slots=True)
class Embedded:
    """What runs it, where it listens, and the address with its user and password."""

    argv: tuple[str, ...]
    socket: Path
    url: str


def prepare_embedded(layout: DataLayout, server: Server) -> Embedded:
    """Write the embedded server's configuration. Raises SettingsError."""
    password = secret_files.read_or_create(layout.redis_password_file)
    layout.redis.chmod(0o700)
    socket = _socket(layout)
    url = redis_urls.of_socket(socket, USER, password)
    configuration = layout.redis / "redis.conf"
    lines = [
        "port 0",
        f"unixsocket {_quoted(socket)}",
        "unixsocketperm 700",
        "user default reset off",
        f"user {USER} on #{hashlib.sha256(password.encode()).hexdigest()} {RIGHTS}",
        "daemonize no",
        'save ""',
        "appendonly no",
        "maxmemory-policy noeviction",
        "hz 2",  # how often a second it looks around with nothing to do; what waits for a time waits by half a second
        f"dir {_quoted(layout.redis)}",
        'logfile ""',
    ]
    secret_files.write(configuration, "\n".join(lines))
    secret_files.write(layout.redis_url_file, url)
    return Embedded((server.path, str(configuration)), socket, url)


def embedded_url(layout: DataLayout) -> str | None:
    """The URL of the embedded Redis that was started last with this data directory; None when there was none."""
    try:
        return layout.redis_url_file.read_text().strip() or None
    except FileNotFoundError:
        return None


def check_external(url: str) -> str:
    """Make sure that the Redis of REDIS_URL answers; what it is, for people. Raises SettingsError with what it said instead."""
    import redis  # with an embedded one the supervisor has no use for the library, a third of its memory

    try:
        client = redis.Redis.from_url(
            url, socket_timeout=_EXTERNAL_DEADLINE_S, socket_connect_timeout=_EXTERNAL_DEADLINE_S
        )
        try:
            client.ping()
            return f"{_version(client)} (REDIS_URL)"
        finally:
            client.close()
    except (redis.RedisError, ValueError, OSError) as error:
        raise SettingsError(
            f"the Redis that REDIS_URL names does not answer ({error}); correct REDIS_URL, or unset it to use an embedded one"
        ) from error


def _version(client: Any) -> str:
    from redis import ResponseError

    try:
        told = client.info("server")
    except ResponseError:  # our user there need not have the right to ask
        return "Redis of a version that it does not tell"
    if "valkey_version" in told:
        return f"Valkey {told['valkey_version']}"
    return f"Redis {told.get('redis_version', 'of an unknown version')}"


def _socket(layout: DataLayout) -> Path:
    """In the data directory, or where its path would be too long for a socket, in a short directory of the same owner."""
    usual = layout.redis / "redis.sock"
    if len(os.fsencode(usual)) <= _MOST_PATH_BYTES:
        return usual
    name = hashlib.sha256(os.fsencode(layout.root.resolve())).hexdigest()[:16]
    directory = Path(tempfile.gettempdir()) / f"logboom-{os.getuid()}-{name}"
    _make_private(directory)
    short = directory / "redis.sock"
    if len(os.fsencode(short)) > _MOST_PATH_BYTES:
        raise SettingsError(
            f"neither {usual} nor {short} is short enough for a socket ({_MOST_PATH_BYTES} bytes); choose a data directory with "
            "a shorter path with --data, or set TMPDIR to one"
        )
    return short


def _make_private(directory: Path) -> None:
    """Make it, or make sure that nobody else made or reaches it: others may write where it lies. Raises SettingsError."""
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        found = directory.lstat()
    except OSError as error:
        raise SettingsError(f"cannot make {directory}, for the embedded Redis ({error.strerror})") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) != 0o700:
        raise SettingsError(
            f"{directory} is not a directory of this user alone, so the embedded Redis would not be safe there; delete it, or "
            "choose a data directory with a shorter path with --data"
        )


def _quoted(path: Path) -> str:
    """As a word of the server's configuration."""
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
