"""Topics, groups and consumer offsets in the tier, for whoever mounts it (shell over an object store)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from brokerd.tiers.objects.interface import AlreadyThere, ObjectStore, ObjectStoreError
from remoting.checksum import crc32
from remoting.tier.names import STATES, parse_state_name, state_name
from remoting.tier.states import MAX_BYTES, Row, decode_state, encode_state

_KEPT: Final = 2
_MANY: Final = 1000


class StateWriter:
    """The one of a master epoch. After a put whose outcome is not known the next one has another number."""

    def __init__(self, objects: ObjectStore, epoch: int) -> None:
        self._objects = objects
        self._epoch = epoch
        self._number = 0
        self._stored: tuple[int, int] | None = None  # length and checksum of what was written last

    async def write(self, rows: Sequence[Row]) -> None:
        """Have that in the tier, unless it is there. Raises ObjectStoreError."""
        content = encode_state(rows)
        print_of = len(content), crc32(content)
        if print_of == self._stored:
            return
        while True:
            name, self._number = state_name(self._epoch, self._number), self._number + 1
            try:
                await self._objects.put(name, content)
            except AlreadyThere:
                continue
            break
        self._stored = print_of
        await self._remove_old(name)

    async def _remove_old(self, last: str) -> None:
        listed = await self._objects.list(STATES, "", _MANY)
        old = sorted(each.name for each in listed if each.name < last and parse_state_name(each.name) is not None)[
            : -(_KEPT - 1)
        ]
        if old:
            await self._objects.remove(old)


async def read_state(objects: ObjectStore) -> list[Row]:
    """The rows of the last one; none when there never was one. Raises ObjectStoreError."""
    last, after = "", ""
    while True:
        listed = await objects.list(STATES, after, _MANY)
        last = max([last, *(each.name for each in listed if parse_state_name(each.name) is not None)])
        if len(listed) < _MANY:
            break
        after = listed[-1].name
    if not last:
        return []
    try:
        return decode_state(await objects.get_all(last, MAX_BYTES), last)
    except ValueError as error:
        raise ObjectStoreError(str(error)) from error
