"""Opening an object store by its url and a file of options: the same rules and sentences for all who reach a tier.

The library is loaded when a store is opened, since most programs have none.
"""

from __future__ import annotations

import os
import stat
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from remoting.errors import SettingsError
from remoting.tier.complaints import reason_of

_RETRIES: Final = 2  # of a request, by the library, after errors of servers and connections
_SCHEMES: Final = ("file", "s3", "gs", "az", "memory")


class StorePlace(NamedTuple):
    """Where a store is. `names` are those of the two settings, for sentences."""

    url: str
    options_path: str
    request_timeout_ms: int
    names: tuple[str, str] = ("tiers.url", "tiers.options_path")


def open_store(place: StorePlace) -> tuple[Any, Path | None]:
    """The library's store, and the directory that it is, if it is one. Raises SettingsError, which says what to change."""
    from obstore.store import LocalStore, from_url

    options = _options(place)
    (url_name, options_name), url = place.names, place.url
    scheme, _, rest = url.partition("://")
    if scheme == "file":
        root = Path("/" + rest.lstrip("/"))
        if options:
            raise SettingsError(
                f"{options_name} has options, and a directory ({url_name}=file://...) knows none: leave it away"
            )
        try:
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
            return LocalStore(prefix=root), root
        except OSError as error:
            raise SettingsError(f"{url_name}={url}: the directory cannot be used: {error}") from error
    check_url(url, url_name)
    try:
        if scheme == "memory":
            return from_url("memory:///"), None
        open_any: Any = from_url
        store = open_any(
            url,
            config=options,
            client_options={
                "timeout": timedelta(milliseconds=place.request_timeout_ms),
                "allow_http": str(options.get("endpoint", "")).startswith("http://"),
            },
            retry_config={"max_retries": _RETRIES},
        )
    except Exception as error:
        raise SettingsError(f"{url_name}={url} with its options: {reason_of(error)}") from error
    return store, None


def check_url(url: str, name: str = "tiers.url") -> None:
    """Raises SettingsError for what names no kind of store that there is."""
    if url.partition("://")[0] not in _SCHEMES:
        raise SettingsError(
            f"{name}={url}: write file:///directory, s3://bucket/prefix, gs://bucket/prefix, "
            "az://container/prefix or memory:///"
        )


def _options(place: StorePlace) -> dict[str, Any]:
    name, path = place.names[1], place.options_path
    if not path:
        return {}
    try:
        with open(path, "rb") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise SettingsError(f"{name}={path}: others can read it; chmod 600 {path}")
            found = orjson.loads(file.read())
    except (OSError, ValueError) as error:
        raise SettingsError(f"{name}={path} cannot be read as JSON: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise SettingsError(f'{name}={path}: write one JSON object of texts, like {{"region": "..."}}')
    return found
