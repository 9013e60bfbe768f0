"""Object stores through `obstore`: a directory, memory, S3, GCS or Azure behind one API, below a broker group's directory."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import obstore
import orjson
from obstore.exceptions import AlreadyExistsError, NotSupportedError, PermissionDeniedError, UnauthenticatedError
from obstore.store import LocalStore, from_url

from brokerd.tiers.objects.interface import AlreadyThere, Listed, NotThere, ObjectStoreError, Refused, Unknown
from brokerd.tiers.settings import TierSettings
from remoting.errors import SettingsError

_RETRIES: Final = 2  # of a request, by the library, after errors of servers and connections
_PART_BYTES: Final = 4 << 20  # longer ranges are read in parts, side by side
_STREAM_PART_BYTES: Final = 8 << 20
_STREAM_PARTS: Final = 4  # on their way at the same time
_LONGEST_REASON: Final = 300
_TOO_SHORT: Final = ("range was invalid", "Invalid range", "416 Range Not Satisfiable")
# How the servers and systems behind the one "generic" error say that asking again is of no use
_FINAL: Final = (
    "NoSuchBucket",
    "AccessDenied",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "No space left on device",
    "Disk quota exceeded",
    "QuotaExceeded",
    "Read-only file system",
    "Permission denied",
)


class Backend:
    """A `interface.ObjectStore`, below `directory` of the store. With a `root` it is files there, which are made durable."""

    def __init__(self, store: Any, directory: str, root: Path | None = None) -> None:
        self._store = store
        self._directory = directory
        self._root = root
        self._creates = True  # it can refuse to replace an object

    async def put(self, name: str, content: bytes | Sequence[bytes]) -> None:
        path = f"{self._directory}/{name}"
        whole = content if isinstance(content, bytes) else b"".join(content)
        try:
            await obstore.put_async(
                self._store, path, whole, mode="create" if self._creates else "overwrite", use_multipart=False
            )
        except NotSupportedError:
            if not self._creates:
                raise
            self._creates = False
            await self.put(name, whole)
            return
        except FileNotFoundError as error:  # there is no such bucket
            raise Refused(f"the object store did not store {name}: {_reason(error)}") from error
        except Exception as error:
            raise _translated(error, f"store {name}") from error
        if self._root is not None:
            await asyncio.to_thread(_make_durable, self._root, self._root / path)

    async def put_stream(self, name: str, parts: AsyncIterator[bytes]) -> None:
        begin, size = [], 0
        async for part in parts:
            begin.append(part)
            size += len(part)
            if size >= _STREAM_PART_BYTES:
                break
        else:
            await self.put(name, begin)
            return
        path, failures = f"{self._directory}/{name}", list[ObjectStoreError]()
        try:
            await obstore.put_async(
                self._store,
                path,
                _followed(begin, parts, failures),
                use_multipart=True,
                chunk_size=_STREAM_PART_BYTES,
                max_concurrency=_STREAM_PARTS,
            )
        except Exception as error:
            raise (failures[0] if failures else _translated(error, f"store {name}")) from error
        if self._root is not None:
            await asyncio.to_thread(_make_durable, self._root, self._root / path)

    async def get(self, name: str, start: int, length: int) -> bytes:
        path = f"{self._directory}/{name}"
        parts = [(at, min(_PART_BYTES, start + length - at)) for at in range(start, start + length, _PART_BYTES)]
        try:
            got = await asyncio.gather(
                *(obstore.get_range_async(self._store, path, start=at, length=size) for at, size in parts)
            )
        except Exception as error:
            raise _translated(error, f"read {name}") from error
        found = bytes(got[0]) if len(got) == 1 else b"".join(got)
        if len(found) != length:
            raise NotThere(f"{name} has {len(found)} of the {length} bytes from {start} on")
        return found

    async def get_all(self, name: str, most: int) -> bytes:
        try:
            found = await obstore.get_async(self._store, f"{self._directory}/{name}")
            if found.meta["size"] > most:
                raise ObjectStoreError(f"{name} has {found.meta['size']} bytes, and at most {most} are read")
            return bytes(await found.bytes_async())
        except ObjectStoreError:
            raise
        except Exception as error:
            raise _translated(error, f"read {name}") from error

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[Listed]:
        below = f"{self._directory}/"
        found: list[Listed] = []
        try:
            # a prefix is whole parts of a name for the library, so the rest of ours is looked for here
            parent = prefix.rpartition("/")[0]
            stream = obstore.list(
                self._store, below + parent if parent else self._directory, offset=below + after if after else None
            )
            async for chunk in stream:
                for each in chunk:
                    name = each["path"].removeprefix(below)
                    if name.startswith(prefix) and name > after:
                        found.append(Listed(name, each["size"], int(each["last_modified"].timestamp() * 1000)))
                if self._root is None and len(found) >= limit:
                    break  # object stores list in the order of names; directories do not
        except Exception as error:
            raise _translated(error, f"list {prefix}") from error
        return sorted(found)[:limit]

    async def remove(self, names: Sequence[str]) -> None:
        try:
            await obstore.delete_async(self._store, [f"{self._directory}/{name}" for name in names])
        except FileNotFoundError:
            if len(names) > 1:
                for name in names:
                    await self.remove([name])
        except Exception as error:
            raise _translated(error, f"remove {len(names)} objects") from error

    async def close(self) -> None:
        """The library keeps no connection of which it would have to be told."""


def open_backend(settings: TierSettings, directory: str) -> Backend:
    """The store that the settings name. Raises SettingsError with the sentence that says what to change."""
    options = _options(settings.options_path)
    scheme, _, rest = settings.url.partition("://")
    if scheme == "file":
        root = Path("/" + rest.lstrip("/"))
        if options:
            raise SettingsError("tiers.options_path has options, and a directory (tiers.url=file://...) knows none")
        try:
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
            return Backend(LocalStore(prefix=root), directory, root)
        except OSError as error:
            raise SettingsError(f"tiers.url={settings.url}: the directory cannot be used: {error}") from error
    if scheme not in ("s3", "gs", "az", "memory"):
        raise SettingsError(
            f"tiers.url={settings.url}: write file:///directory, s3://bucket/prefix, gs://bucket/prefix, "
            "az://container/prefix or memory:///"
        )
    try:
        if scheme == "memory":
            return Backend(from_url("memory:///"), directory)
        open_any: Any = from_url
        store = open_any(
            settings.url,
            config=options,
            client_options={
                "timeout": timedelta(milliseconds=settings.request_timeout_ms),
                "allow_http": str(options.get("endpoint", "")).startswith("http://"),
            },
            retry_config={"max_retries": _RETRIES},
        )
    except Exception as error:
        raise SettingsError(f"tiers.url={settings.url} with its options: {_reason(error)}") from error
    return Backend(store, directory)


def _options(path: str) -> dict[str, Any]:
    if not path:
        return {}
    try:
        with open(path, "rb") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise SettingsError(f"tiers.options_path={path}: others can read it; chmod 600 {path}")
            found = orjson.loads(file.read())
    except (OSError, ValueError) as error:
        raise SettingsError(f"tiers.options_path={path} cannot be read as JSON: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise SettingsError(f'tiers.options_path={path}: write one JSON object of texts, like {{"region": "..."}}')
    return found


async def _followed(
    begin: Sequence[bytes], parts: AsyncIterator[bytes], failures: list[ObjectStoreError]
) -> AsyncIterator[bytes]:
    """What was taken of the parts already, and the rest; the library wraps what they raise, so that is kept."""
    for part in begin:
        yield part
    try:
        async for part in parts:
            yield part
    except ObjectStoreError as error:
        failures.append(error)
        raise


def _make_durable(root: Path, path: Path) -> None:
    """The file, and the directories that may have been made for it."""
    for each in (path, *path.parents):
        descriptor = os.open(each, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if each == root:
            return


def _translated(error: Exception, what: str) -> ObjectStoreError:
    if isinstance(error, AlreadyExistsError):
        return AlreadyThere(f"the object store has that already: could not {what}")
    reason = _reason(error)
    if isinstance(error, FileNotFoundError) or any(say in reason for say in _TOO_SHORT):
        return NotThere(f"the object store does not have it: could not {what}: {reason}")
    text = f"the object store did not {what}: {reason}"
    is_final = isinstance(error, (PermissionDeniedError, UnauthenticatedError)) or any(
        say in str(error) for say in _FINAL
    )
    return Refused(text) if is_final else Unknown(text)


def _reason(error: Exception) -> str:
    """The library's first line; what follows is for its authors."""
    return str(error).strip().partition("\n")[0][:_LONGEST_REASON]
