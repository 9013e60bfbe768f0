"""What a broker group has in its tier, read from the manifest alone: the last checkpoint of the highest epoch, and on."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from remoting.tier.contents import TierContents
from remoting.tier.manifest import Followed, ManifestPart, Position, decode_part, has_whole_checkpoint
from remoting.tier.names import MANIFEST, manifest_name, parse_manifest_name
from tasks.tier.objects import NotThere, Objects, TierError

_DIRECTORY: Final = MANIFEST.rstrip("/")


class Manifest:
    """The contents as they were at the last `refresh`; before the first, empty."""

    def __init__(self, objects: Objects) -> None:
        self.position: Position | None = None
        self._followed = Followed(TierContents())
        self._objects = objects

    @property
    def contents(self) -> TierContents:
        return self._followed.contents

    def refresh(self) -> bool:
        """Read what was written since; whether that is anything. Raises TierError.

        A checkpoint that is removed while this reads has a later one behind it, so the listing is looked at once more then.
        """
        before = self.position
        try:
            self._catch_up()
        except NotThere:
            self._catch_up()
        return self.position != before

    def _catch_up(self) -> None:
        positions = self._positions()
        for epoch in sorted({each.epoch for each in positions}, reverse=True):
            if self.position is not None and epoch <= self.position.epoch:
                break
            if parts := self._from_checkpoint([each for each in positions if each.epoch == epoch]):
                self._followed = Followed(TierContents())
                for part in parts:
                    self._take(part)
                break
        while self.position is not None:
            following = Position(self.position.epoch, self.position.number + 1)
            try:
                part = self._read(following)
            except NotThere:
                if any(each.epoch == following.epoch and each.number >= following.number for each in positions):
                    self.position = None  # what follows was replaced by a checkpoint: begin there
                    raise
                return
            self._take(part)

    def _from_checkpoint(self, positions: list[Position]) -> Sequence[ManifestPart]:
        """The last whole checkpoint of these, which are of one epoch, and what follows it; nothing when its writer did not get as
        far."""
        parts: deque[ManifestPart] = deque()
        for position in sorted(positions, reverse=True):
            parts.appendleft(self._read(position))
            if parts[0].is_begin and has_whole_checkpoint(parts):
                return parts
        return ()

    def _take(self, part: ManifestPart) -> None:
        try:
            self._followed.take(part)
        except ValueError as error:
            raise TierError(f"{manifest_name(*part.position)} cannot be followed: {error}") from error
        self.position = part.position

    def _positions(self) -> list[Position]:
        parsed = [parse_manifest_name(each.name) for each in self._objects.list(_DIRECTORY)]
        return [Position(*each) for each in parsed if each is not None]

    def _read(self, position: Position) -> ManifestPart:
        name = manifest_name(*position)
        try:
            part = decode_part(self._objects.get_all(name), name)
        except ValueError as error:
            raise TierError(str(error)) from error
        if part.position != position:
            raise TierError(f"{name} says that it is another one: {part.position}")
        return part
