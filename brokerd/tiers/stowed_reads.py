"""What is read of objects of timers beside their return: for limits and for people. Nothing comes back by that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from brokerd.tiers.objects.interface import ObjectStore
from brokerd.timers.tier import Looked, Wanted
from remoting.tier.stowed import Block, StowedObject, Waiting, blocks_of, timers_of
from remoting.tier.stowed_summary import Summary, summary_of

MOST_BYTES: Final = 1 << 20  # of blocks that are read at once, but always one

_Numbered = tuple[int, Waiting]


async def read_summary(objects: ObjectStore, entry: StowedObject) -> Summary:
    """Two requests. Raises ObjectStoreError, and ValueError for what is damaged, or was made without a summary."""
    _, block = await _read_head(objects, entry)
    return await _summary(objects, entry, block)


async def look(objects: ObjectStore, entry: StowedObject, wanted: Wanted) -> Looked:
    """See `timers.tier.TimerTier.look`. Raises as `read_summary`."""
    blocks, summary = await _read_head(objects, entry)
    first = max(wanted.first, entry.returned)
    if wanted.hashed is not None:
        numbers = (await _summary(objects, entry, summary)).with_key(wanted.hashed)
        return await _read_numbers(objects, entry, blocks, [number for number in numbers if number >= first])
    ends_ms = [*(block.due_ms for block in blocks[1:]), wanted.to_ms]
    chosen = [
        block
        for block, end_ms in zip(blocks, ends_ms, strict=True)
        if block.first + block.timers > first and block.due_ms < wanted.to_ms and end_ms >= wanted.from_ms
    ]
    together = _together(chosen)
    found = [each for each in await _read(objects, entry, together) if each[0] >= first]
    return Looked(found, chosen[len(together)].first if len(together) < len(chosen) else None)


async def _read_numbers(
    objects: ObjectStore, entry: StowedObject, blocks: Sequence[Block], numbers: Sequence[int]
) -> Looked:
    """Those of the first block that has some."""
    if not numbers:
        return Looked((), None)
    (block,) = (each for each in blocks if each.first <= numbers[0] < each.first + each.timers)
    wanted = set(numbers)
    found = [each for each in await _read(objects, entry, [block]) if each[0] in wanted]
    return Looked(found, next((number for number in numbers if number >= block.first + block.timers), None))


async def _read_head(objects: ObjectStore, entry: StowedObject) -> tuple[list[Block], Block | None]:
    return blocks_of(entry, bytes(await objects.get(entry.name, 0, entry.head_bytes)))


async def _summary(objects: ObjectStore, entry: StowedObject, block: Block | None) -> Summary:
    if block is None:
        raise ValueError(f"{entry.name} was made by an earlier version, and does not say what it has")
    return summary_of(entry, block, bytes(await objects.get(entry.name, block.position, block.size)))


def _together(blocks: Sequence[Block]) -> list[Block]:
    """The first of them that lie side by side, as many as are read at once."""
    found: list[Block] = []
    size = 0
    for block in blocks:
        size += block.size
        if found and (size > MOST_BYTES or block.position != found[-1].position + found[-1].size):
            break
        found.append(block)
    return found


async def _read(objects: ObjectStore, entry: StowedObject, blocks: Sequence[Block]) -> list[_Numbered]:
    """The timers of blocks that lie side by side."""
    if not blocks:
        return []
    begin = blocks[0].position
    content = bytes(await objects.get(entry.name, begin, blocks[-1].position + blocks[-1].size - begin))
    return [
        numbered
        for block in blocks
        for numbered in enumerate(
            timers_of(entry, block, content[block.position - begin : block.position - begin + block.size]), block.first
        )
    ]
