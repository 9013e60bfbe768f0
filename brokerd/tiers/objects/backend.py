"""Object stores through `obstore`: a directory, memory, S3, GCS or Azure behind one API, below a broker group's directory.

The library puts whole objects only; so it is a directory, whose files are written here, that can append.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import obstore
from obstore.exceptions import NotSupportedError
from obstore.store import MemoryStore

from brokerd.tiers.objects.complaints import translated
from brokerd.tiers.objects.directory import DirectoryFiles
from brokerd.tiers.objects.interface import AlreadyThere, Listed, NotThere, ObjectStoreError, Read, Refused, Unknown
from brokerd.tiers.settings import TierSettings
from remoting.disk import Bytes
from remoting.tier.complaints import is_without_bucket
from remoting.tier.names import STOWED, parse_object_name
from remoting.tier.object_stores import StorePlace, open_store

_PART_BYTES: Final = 4 << 20  # longer ranges are read in parts, side by side
_STREAM_PART_BYTES: Final = 8 << 20
_STREAM_PARTS: Final = 4  # on their way at the same time

_B = TypeVar("_B", bytes, Bytes)
_T = TypeVar("_T")
Page = list[Listed]
# What a listing left: of which prefix and behind which name it goes on, and the objects
_NOTHING_LISTED: Final[tuple[tuple[str, str], Page]] = ("", ""), []


class Backend:
    """A `interface.ObjectStore`, below `directory` of the store. With a `root` it is files there, which are made durable."""

    def __init__(self, store: Any, directory: str, root: Path | None = None) -> None:
        self._store = store
        self._directory = directory
        self._root = root
        self._files = DirectoryFiles(root) if root is not None else None
        self._keeps_pieces = isinstance(store, MemoryStore)  # of what it is given, and no copy
        self._listed: tuple[tuple[str, str], Page] = _NOTHING_LISTED
        self._creates = True  # it can refuse to replace an object

    @property
    def appends(self) -> bool:
        return self._files is not None

    async def put(self, name: str, content: bytes | Sequence[Bytes]) -> None:
        path = f"{self._directory}/{name}"
        if self._files is not None:
            await _put_file(self._files, path, name, [content] if isinstance(content, bytes) else content)
            return
        pieces = b"".join(content) if self._keeps_pieces and not isinstance(content, bytes) else content
        try:
            await obstore.put_async(
                self._store, path, pieces or b"", mode="create" if self._creates else "overwrite", use_multipart=False
            )
        except NotSupportedError:
            if not self._creates:
                raise
            self._creates = False
            await self.put(name, content)
            return
        except FileNotFoundError as error:  # there is no such bucket
            raise Refused(str(translated(error, f"store {name}"))) from error
        except Exception as error:
            raise translated(error, f"store {name}") from error

    async def put_stream(self, name: str, parts: AsyncIterator[bytes]) -> None:
        if self._files is not None and _leaves_room(name):
            parts = _while_there_is_room(self._files, name, parts)
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
            raise (failures[0] if failures else translated(error, f"store {name}")) from error
        if self._files is not None:
            await self._files.make_durable(path)
            await _make_names_durable(self._files, path, name)

    async def append(self, name: str, at: int, content: Sequence[Bytes]) -> None:
        assert self._files is not None, "it cannot append"
        try:
            await self._files.append(f"{self._directory}/{name}", at, content, leaves_room=_leaves_room(name))
        except FileExistsError as error:
            raise AlreadyThere(f"could not append to {name}: {error}") from None
        except OSError as error:
            raise translated(error, f"append to {name}") from error

    async def get(self, name: str, start: int, length: int) -> Bytes:
        path = f"{self._directory}/{name}"
        if self._files is not None:
            return await self._files.in_thread(_read_file, self._files, path, name, start, length)
        parts = [(at, min(_PART_BYTES, start + length - at)) for at in range(start, start + length, _PART_BYTES)]
        try:
            got = await asyncio.gather(
                *(obstore.get_range_async(self._store, path, start=at, length=size) for at, size in parts)
            )
        except Exception as error:
            raise translated(error, f"read {name}") from error
        found = memoryview(got[0]) if len(got) == 1 else b"".join(got)  # fresh memory is what costs
        return _whole(found, name, start, length)

    def read_in_thread(self, work: Callable[[Read], _T]) -> Awaitable[_T] | None:
        files = self._files
        if files is None:
            return None

        def read(name: str, start: int, length: int) -> Bytes:
            return _read_file(files, f"{self._directory}/{name}", name, start, length)

        return files.in_thread(work, read)

    async def get_all(self, name: str, most: int) -> bytes:
        try:
            found = await obstore.get_async(self._store, f"{self._directory}/{name}")
            if found.meta["size"] > most:
                raise ObjectStoreError(f"{name} has {found.meta['size']} bytes, and at most {most} are read")
            return bytes(await found.bytes_async())
        except ObjectStoreError:
            raise
        except Exception as error:
            raise translated(error, f"read {name}") from error

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[Listed]:
        below = f"{self._directory}/"
        (asked, rest), self._listed = self._listed, _NOTHING_LISTED
        found: list[Listed] = []
        if rest and asked == (prefix, after):
            return self._page(prefix, rest, limit)
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
            raise translated(error, f"list {prefix}") from error
        return self._page(prefix, sorted(found), limit)

    def _page(self, prefix: str, found: Sequence[Listed], limit: int) -> Page:
        """So many of them. A directory has to be walked in whole for each listing, so the rest is kept for who goes on."""
        page = [*found[:limit]]
        if self._root is not None and len(found) > limit:
            self._listed = (prefix, page[-1].name), [*found[limit:]]
        return page

    async def remove(self, names: Sequence[str]) -> None:
        try:
            await obstore.delete_async(self._store, [f"{self._directory}/{name}" for name in names])
        except FileNotFoundError as error:
            if is_without_bucket(error):
                raise translated(error, f"remove {len(names)} objects") from error
            if len(names) > 1:
                for name in names:
                    await self.remove([name])
        except Exception as error:
            raise translated(error, f"remove {len(names)} objects") from error

    async def remove_unfinished(self, before_ms: int) -> int:
        if self._files is None:
            return 0
        try:
            return await self._files.in_thread(self._files.remove_unfinished, self._directory, before_ms)
        except OSError as error:
            raise translated(error, "remove what was begun and not ended") from error

    async def close(self) -> None:
        """The library keeps no connection of which it would have to be told, and threads of a directory end with it."""


def open_backend(settings: TierSettings, directory: str) -> Backend:
    """The store that the settings name. Raises SettingsError with the sentence that says what to change."""
    store, root = open_store(StorePlace(settings.url, settings.options_path, settings.request_timeout_ms))
    return Backend(store, directory, root)


async def _put_file(files: DirectoryFiles, path: str, name: str, pieces: Sequence[Bytes]) -> None:
    try:
        await files.put(path, pieces, leaves_room=_leaves_room(name))
    except FileExistsError:
        raise AlreadyThere(f"the object store has that already: could not store {name}") from None
    except FileNotFoundError as error:
        raise Refused(str(translated(error, f"store {name}"))) from error
    except OSError as error:
        raise translated(error, f"store {name}") from error
    await _make_names_durable(files, path, name)


def _leaves_room(name: str) -> bool:
    """Whether it is of messages, and not what says which of them are there."""
    return parse_object_name(name) is not None or name.startswith(STOWED)


async def _while_there_is_room(files: DirectoryFiles, name: str, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The parts of a long object, as far as they leave room. Raises ObjectStoreError."""
    given = 0
    async for part in parts:
        given += len(part)
        try:  # so much at most may not be in the file yet
            await files.in_thread(files.require_room, min(given, _STREAM_PARTS * _STREAM_PART_BYTES))
        except OSError as error:
            raise translated(error, f"store {name}") from error
        yield part


async def _make_names_durable(files: DirectoryFiles, path: str, name: str) -> None:
    try:
        await files.make_names_durable(path)
    except OSError as error:
        raise Unknown(f"it is not known whether {name} would be there after a loss of power: {error}") from error


def _read_file(files: DirectoryFiles, path: str, name: str, start: int, length: int) -> Bytes:
    try:
        found = files.read(path, start, length)
    except OSError as error:
        raise translated(error, f"read {name}") from error
    return _whole(found, name, start, length)


def _whole(found: _B, name: str, start: int, length: int) -> _B:
    if len(found) != length:
        raise NotThere(f"{name} has {len(found)} of the {length} bytes from {start} on")
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
