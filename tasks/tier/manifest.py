"""What a broker group has in its tier, read from the manifest alone: the last checkpoint of the highest epoch, and on."""

from __future__ import annotations

from typing import Final

from remoting.tier.contents import TierContents
from remoting.tier.manifest import ManifestPart, Position, decode_part
from remoting.tier.names import manifest_name
from tasks.tier.objects import NotThere, Objects, TierError

_DIRECTORY: Final = "manifest"


class Manifest:
    """The contents as they were at the last `refresh`; before the first, empty."""

    def __init__(self, objects: Objects) -> None:
        self.contents = TierContents()
        self.position: Position | None = None
        self._objects = objects

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
            begin = self._checkpoint([each for each in positions if each.epoch == epoch])
            if begin is not None:
                self._apply(begin)
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
            self._apply(part)

    def _checkpoint(self, positions: list[Position]) -> ManifestPart | None:
        for position in sorted(positions, reverse=True):
            part = self._read(position)
            if part.is_checkpoint:
                return part
        return None  # its writer did not get as far

    def _apply(self, part: ManifestPart) -> None:
        contents = TierContents() if part.is_checkpoint else self.contents
        try:
            for change in part.changes:
                contents.apply(change)
        except ValueError as error:
            raise TierError(f"{manifest_name(*part.position)} cannot be followed: {error}") from error
        self.contents, self.position = contents, part.position

    def _positions(self) -> list[Position]:
        found = []
        for each in self._objects.list(_DIRECTORY):
            epoch, _, number = each.name.removeprefix(f"{_DIRECTORY}/").partition("-")
            if epoch.isdigit() and number.isdigit():
                found.append(Position(int(epoch), int(number)))
        return found

    def _read(self, position: Position) -> ManifestPart:
        name = manifest_name(*position)
        try:
            part = decode_part(self._objects.get_all(name), name)
        except ValueError as error:
            raise TierError(str(error)) from error
        if part.position != position:
            raise TierError(f"{name} says that it is another one: {part.position}")
        return part
