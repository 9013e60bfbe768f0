"""An object store, as far as tiers need one: put, get a range, list, remove, and append where it can. No byte is ever changed.

Every method may raise `ObjectStoreError`. After `Unknown` a put may have been carried out, then or later; so nobody puts other
bytes under that name. After any error of an append a part of it may be there, then or later; so nobody appends to that object any
more.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from remoting.disk import Bytes
from remoting.errors import LogboomError

_T = TypeVar("_T")

PAST_CACHE_BYTES: Final = 1 << 20
"""So much is worth being put as an object of its own, which a directory writes past the page cache."""

# `ObjectStore.get` for who may wait: a thread that is not the event loop's
Read = Callable[[str, int, int], Bytes]


class ObjectStoreError(LogboomError):
    """It did not do what it was asked; the text says what a person can do about it."""


class Unknown(ObjectStoreError):
    """A time-out, a lost connection, an error of the server: whether it was done is not known; it may help to ask again."""


class Refused(ObjectStoreError):
    """Credentials, permissions, a bucket that is not there, no room: it was not done, and is not until somebody mends that."""


class NotThere(ObjectStoreError):
    """There is no such object, or it is shorter than what was asked of it."""


class AlreadyThere(ObjectStoreError):
    """An object of that name exists; it was not replaced."""


class Listed(NamedTuple):
    """One object of a listing."""

    name: str
    size: int
    modified_ms: int


class ObjectStore(Protocol):
    """All names are below one directory, that of a broker group. Used from one event loop."""

    @property
    def appends(self) -> bool:
        """Whether it can."""

    async def put(self, name: str, content: bytes | Sequence[Bytes]) -> None:
        """Store the object, durably; atomic: it is there as a whole or not at all. Raises AlreadyThere when it is there.

        Nobody looks at the content any more when it is there; after an error somebody may.
        """

    async def put_stream(self, name: str, parts: AsyncIterator[bytes]) -> None:
        """The same for a long object, which is never in memory as a whole; nobody else puts that name.

        An ObjectStoreError that the parts raise is raised here; then the object is not there.
        """

    async def append(self, name: str, at: int, content: Sequence[Bytes]) -> None:
        """Make the object longer, durably, though not at once: others may see a part of it. It ends at `at` with what this
        process put or appended there and was told to be there. Raises AlreadyThere when it ends behind that, and NotThere when
        before it or when there is none; then nothing was changed.
        """

    async def get(self, name: str, start: int, length: int) -> Bytes:
        """Exactly that many bytes from `start` on. Raises NotThere when they are not all there."""

    def read_in_thread(self, work: Callable[[Read], _T]) -> Awaitable[_T] | None:
        """Have a thread do work that gets ranges one behind the other, and what else needs no loop. Raises what that raises.
        None, and nothing is done, where gets are no matter of a thread, but of requests."""

    async def get_all(self, name: str, most: int) -> bytes:
        """The object; raises NotThere, and ObjectStoreError when it has more than `most` bytes."""

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[Listed]:
        """Up to `limit` objects whose names begin so and are behind `after`, ascending. May miss what was put just now."""

    async def remove(self, names: Sequence[str]) -> None:
        """What is not there counts as removed."""

    async def remove_unfinished(self, before_ms: int) -> int:
        """Remove what was begun by who ended in the middle of it, and is no object: what was written to last before that time, by
        the store's clock. How many; 0 where a store sees to that itself."""

    async def close(self) -> None: ...
