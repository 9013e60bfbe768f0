"""An object store whose requests are counted and timed, for metrics.

What the store answered is no failure: that an object is not there, or is there already.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from brokerd.tiers.objects.interface import AlreadyThere, Listed, NotThere, ObjectStore, ObjectStoreError, Read
from remoting.disk import Bytes
from remoting.exposition import Histogram

_T = TypeVar("_T")

BOUNDS_S: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
OPERATIONS: Final = ("put", "append", "get", "list", "remove")


@dataclass(slots=True)
class Requests:
    """Of one kind, since the start. `bytes` went there, or came from there."""

    failed: int = 0
    bytes: int = 0
    seconds: Histogram = field(default_factory=lambda: Histogram(BOUNDS_S))

    @property
    def count(self) -> int:
        """How many were answered, or failed."""
        return sum(self.seconds.counts)


class Counted:
    """A `interface.ObjectStore` over another one. `now_s` is monotonic."""

    def __init__(self, objects: ObjectStore, now_s: Callable[[], float]) -> None:
        self.requests = {operation: Requests() for operation in OPERATIONS}
        self._objects = objects
        self._now_s = now_s

    async def put(self, name: str, content: bytes | Sequence[Bytes]) -> None:
        with self._request("put") as requests:
            await self._objects.put(name, content)
            requests.bytes += len(content) if isinstance(content, bytes) else sum(map(len, content))

    @property
    def appends(self) -> bool:
        return self._objects.appends

    async def append(self, name: str, at: int, content: Sequence[Bytes]) -> None:
        with self._request("append") as requests:
            await self._objects.append(name, at, content)
            requests.bytes += sum(map(len, content))

    async def put_stream(self, name: str, parts: AsyncIterator[bytes]) -> None:
        with self._request("put") as requests:

            async def counted() -> AsyncIterator[bytes]:
                async for part in parts:
                    requests.bytes += len(part)
                    yield part

            await self._objects.put_stream(name, counted())

    async def get(self, name: str, start: int, length: int) -> Bytes:
        with self._request("get") as requests:
            found = await self._objects.get(name, start, length)
            requests.bytes += len(found)
            return found

    def read_in_thread(self, work: Callable[[Read], _T]) -> Awaitable[_T] | None:
        done: list[tuple[float, int | None]] = []  # by the thread, and counted when it is over: seconds, and bytes

        def counted(read: Read) -> _T:
            return work(partial(_timed, read, self._now_s, done))

        result = self._objects.read_in_thread(counted)
        return None if result is None else self._when_read(result, done)

    async def _when_read(self, result: Awaitable[_T], done: Sequence[tuple[float, int | None]]) -> _T:
        try:
            return await result
        finally:
            requests = self.requests["get"]
            for seconds, size in done:
                requests.seconds.observe(seconds)
                if size is None:
                    requests.failed += 1
                else:
                    requests.bytes += size

    async def get_all(self, name: str, most: int) -> bytes:
        with self._request("get") as requests:
            found = await self._objects.get_all(name, most)
            requests.bytes += len(found)
            return found

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[Listed]:
        with self._request("list"):
            return await self._objects.list(prefix, after, limit)

    async def remove(self, names: Sequence[str]) -> None:
        with self._request("remove"):
            await self._objects.remove(names)

    async def remove_unfinished(self, before_ms: int) -> int:
        with self._request("remove"):
            return await self._objects.remove_unfinished(before_ms)

    async def close(self) -> None:
        await self._objects.close()

    @contextmanager
    def _request(self, operation: str) -> Iterator[Requests]:
        requests, began_s = self.requests[operation], self._now_s()
        try:
            yield requests
        except (NotThere, AlreadyThere):
            raise
        except ObjectStoreError:
            requests.failed += 1
            raise
        finally:
            requests.seconds.observe(self._now_s() - began_s)


def _timed(
    read: Read, now_s: Callable[[], float], done: list[tuple[float, int | None]], name: str, start: int, length: int
) -> Bytes:
    """Read, and note how many seconds it took, and how many bytes there were; None for those of a request that failed."""
    began_s, size = now_s(), None
    try:
        found = read(name, start, length)
        size = len(found)
        return found
    except NotThere:
        size = 0
        raise
    finally:
        done.append((now_s() - began_s, size))
