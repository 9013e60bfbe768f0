"""The manifest in the tier: read what others wrote, write what the own master commits (shell over an object store).

There is one writer for each master epoch, so after a put whose outcome is not known the same object is put again under its name
until it is there. Who finds that it is has written it. Objects before the last whole checkpoint are of no use to anybody and are
removed.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Final

from brokerd.tiers.objects.interface import AlreadyThere, NotThere, ObjectStore, ObjectStoreError, Unknown
from remoting.tier.contents import Change
from remoting.tier.manifest import ManifestPart, Position, decode_part, encode_part, has_whole_checkpoint
from remoting.tier.names import MANIFEST, manifest_name, parse_manifest_name

log = logging.getLogger(__name__)

MAX_PART_BYTES: Final = 256 << 20  # as stored
PARTS_BEFORE_CHECKPOINT: Final = 256
_MANY: Final = 1000
_TRIES: Final = 4  # of a read whose outcome is not known; the library pauses between its own


class Fenced(ObjectStoreError):
    """Somebody else owns what is in the tier: a later master, or another log that was given the same name."""


class Manifests:
    """Reads of a broker group's manifest."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    async def beyond(self, position: Position) -> list[ManifestPart]:
        """What was written since that one by anybody: what follows it, or a later checkpoint and on. Raises ObjectStoreError."""
        if parts := await self.newest(position.epoch):
            return parts
        parts = await self.behind(position)
        last = parts[-1].position if parts else position
        same = [each for each in await self._positions(position.epoch - 1) if each.epoch == position.epoch]
        if same and same[-1] > last:
            # some that followed are gone: a log that was cut far back knows nothing of a checkpoint since then
            return await self._from_checkpoint(same)
        return parts

    async def behind(self, position: Position) -> list[ManifestPart]:
        """What was written in that epoch behind that number. Raises ObjectStoreError."""
        parts: list[ManifestPart] = []
        while True:
            position = Position(position.epoch, position.number + 1)
            try:
                parts.append(await self._read(position))
            except NotThere:
                return parts

    async def newest(self, above: int) -> list[ManifestPart]:
        """The last whole checkpoint of the highest epoch above that one that has one, and what follows it; nothing when there is
        none. Raises ObjectStoreError.
        """
        positions = await self._positions(above)
        while positions:
            epoch = positions[-1].epoch
            if parts := await self._from_checkpoint([each for each in positions if each.epoch == epoch]):
                return parts
            positions = [
                each for each in positions if each.epoch != epoch
            ]  # its writer did not get as far as a checkpoint
        return []

    async def _from_checkpoint(self, positions: Sequence[Position]) -> list[ManifestPart]:
        """The same of these, which are of one epoch."""
        parts = deque(await self.behind(positions[-1]))
        for position in reversed(positions):
            parts.appendleft(await self._read(position))
            if parts[0].is_begin and has_whole_checkpoint(parts):
                return list(parts)
        return []

    async def highest_epoch(self, above: int) -> int | None:
        """The highest epoch above that one in which somebody wrote. Raises ObjectStoreError."""
        positions = await self._positions(above)
        return positions[-1].epoch if positions else None

    async def _positions(self, above: int) -> list[Position]:
        found: list[Position] = []
        after = manifest_name(above + 1, 0)[:-1] if above >= 0 else ""
        while True:
            listed = await self._objects.list(MANIFEST, after, _MANY)
            found += [Position(*parsed) for each in listed if (parsed := parse_manifest_name(each.name)) is not None]
            if len(listed) < _MANY:
                return [each for each in found if each.epoch > above]
            after = listed[-1].name

    async def _read(self, position: Position) -> ManifestPart:
        name = manifest_name(*position)
        content = await self._content(name)
        try:
            part = decode_part(content, name)
        except ValueError as error:
            raise ObjectStoreError(str(error)) from error
        if part.position != position:
            raise ObjectStoreError(f"{name} says that it is another one: {part.position}")
        return part

    async def _content(self, name: str) -> bytes:
        """Of hundreds of objects in a row one fails now and then: the others are not read again for that."""
        for _ in range(_TRIES - 1):
            try:
                return await self._objects.get_all(name, MAX_PART_BYTES)
            except Unknown as error:
                log.warning("a part of the manifest of the tier is read again: %s", error)
        return await self._objects.get_all(name, MAX_PART_BYTES)


class ManifestWriter:
    """What the master of one epoch writes. The first object has to be a checkpoint. `begun` numbers were begun before."""

    def __init__(self, objects: ObjectStore, epoch: int, begun: int = 0) -> None:
        self.position = Position(epoch, begun - 1)  # of the last object that is there
        self._objects = objects
        self._checkpoint = self._checkpoint_end = -1  # the first and the last object of the last whole one
        self._pending: tuple[ManifestPart, bytes] | None = None  # was put, and the outcome is not known

    @property
    def wants_checkpoint(self) -> bool:
        """Whether who reads the manifest would have to read many objects, and many more than the last checkpoint has."""
        pieces = self._checkpoint_end - self._checkpoint + 1
        return self.position.number - self._checkpoint_end >= max(PARTS_BEFORE_CHECKPOINT, 2 * pieces)

    def begin(self, changes: Sequence[Change], epochs: Sequence[tuple[int, int]]) -> None:
        """The next object, which `finish` puts. Nothing else is begun before it is there."""
        self._begin(ManifestPart(self._next, False, list(epochs), list(changes)))

    def begin_piece(
        self, rows: Sequence[Change], epochs: Sequence[tuple[int, int]], piece: int, *, is_last: bool
    ) -> None:
        """The same of a checkpoint; its other pieces follow, and nothing between them."""
        self._begin(ManifestPart(self._next, True, list(epochs), list(rows), piece, is_last))

    @property
    def begun(self) -> int:
        """How many numbers of the epoch were begun; the last one may be put yet."""
        return self.position.number + (2 if self._pending is not None else 1)

    @property
    def _next(self) -> Position:
        return Position(self.position.epoch, self.position.number + 1)

    def _begin(self, part: ManifestPart) -> None:
        assert self._pending is None, "what was begun is there first"
        self._pending = part, encode_part(part)

    async def finish(self) -> None:
        """Put what was begun, once more after an error; then it is there. Raises ObjectStoreError, Fenced among them."""
        assert self._pending is not None, "nothing was begun"
        part, content = self._pending
        name = manifest_name(*part.position)
        try:
            await self._objects.put(name, content)
        except AlreadyThere:
            if await self._objects.get_all(name, MAX_PART_BYTES) != content:
                raise Fenced(
                    f"the tier has another {name}: somebody else writes as the master of this broker group in epoch "
                    f"{part.position.epoch}. Two clusters of one name must not share a tier: give each its own prefix in "
                    "tiers.url"
                ) from None
        self._pending = None
        self.position = part.position
        if part.is_checkpoint and part.is_last:
            self._checkpoint, self._checkpoint_end = part.position.number - part.piece, part.position.number

    async def remove_old(self) -> None:
        """Remove what is before the last checkpoint, and what earlier masters wrote. Raises ObjectStoreError."""
        last = manifest_name(self.position.epoch, self._checkpoint)
        while True:
            listed = await self._objects.list(MANIFEST, "", _MANY)
            old = [each.name for each in listed if each.name < last]
            if old:
                await self._objects.remove(old)
            if len(listed) < _MANY or len(old) < len(listed):
                return
