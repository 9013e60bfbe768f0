"""An object store that cannot be opened when its broker starts, and perhaps later: each request tries again.

A directory that is not mounted yet, or a file of options that cannot be read, must not keep a broker from taking messages.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from brokerd.tiers.objects.backend import Backend, open_backend
from brokerd.tiers.objects.interface import Listed, ObjectStore, Read, Refused
from brokerd.tiers.settings import TierSettings
from remoting.disk import Bytes
from remoting.errors import SettingsError
from remoting.tier.object_stores import check_url

log = logging.getLogger(__name__)

_T = TypeVar("_T")


class LateBackend:
    """A `interface.ObjectStore`. Until it is open every request is refused, with what there is to mend."""

    def __init__(self, open_it: Callable[[], ObjectStore]) -> None:
        self._open = open_it
        self._store: ObjectStore | None = None

    async def put(self, name: str, content: bytes | Sequence[Bytes]) -> None:
        await self._opened().put(name, content)

    @property
    def appends(self) -> bool:
        return self._store is not None and self._store.appends

    async def append(self, name: str, at: int, content: Sequence[Bytes]) -> None:
        await self._opened().append(name, at, content)

    async def put_stream(self, name: str, parts: AsyncIterator[bytes]) -> None:
        await self._opened().put_stream(name, parts)

    async def get(self, name: str, start: int, length: int) -> Bytes:
        return await self._opened().get(name, start, length)

    def read_in_thread(self, work: Callable[[Read], _T]) -> Awaitable[_T] | None:
        return None if self._store is None else self._store.read_in_thread(work)

    async def get_all(self, name: str, most: int) -> bytes:
        return await self._opened().get_all(name, most)

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[Listed]:
        return await self._opened().list(prefix, after, limit)

    async def remove(self, names: Sequence[str]) -> None:
        await self._opened().remove(names)

    async def remove_unfinished(self, before_ms: int) -> int:
        return await self._opened().remove_unfinished(before_ms)

    async def close(self) -> None:
        if self._store is not None:
            await self._store.close()

    def _opened(self) -> ObjectStore:
        """Raises Refused."""
        if self._store is None:
            try:
                self._store = self._open()
            except SettingsError as error:
                raise Refused(f"the object store cannot be opened: {error}") from error
            log.info("the object store of the tier is open now")
        return self._store


def open_sooner_or_later(settings: TierSettings, directory: str) -> Backend | LateBackend:
    """Raises SettingsError for a url that can never be opened; what else is wrong is said, and tried again."""
    check_url(settings.url)
    try:
        return open_backend(settings, directory)
    except SettingsError as error:
        log.error("the tier cannot be opened yet, so messages stay here, and sends go on: %s", error)
        return LateBackend(lambda: open_backend(settings, directory))
