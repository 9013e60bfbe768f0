"""An object of a tier's index that is not what was stored any more: whoever looks for all messages has to notice."""

from __future__ import annotations

import asyncio
from operator import attrgetter
from typing import Final

from brokerd.tiers.objects.backend import open_backend
from brokerd.tiers.settings import TierSettings
from remoting.tier.index import ITEM, IndexObject, decode_index, encode_index
from remoting.tier.names import group_directory
from tests.tier.alone import contents_by_manifest
from tests.tier.found import GROUP

HARMS: Final = ("bytes", "items")
_CLUSTER: Final = "DefaultCluster"


def harm_index(settings: TierSettings, how: str) -> None:
    """Change the largest object of the index, in a way of `HARMS`."""
    asyncio.run(_harm_index(settings, how))


async def _harm_index(settings: TierSettings, how: str) -> None:
    store = open_backend(settings, group_directory("", _CLUSTER, GROUP))
    entry = max((await contents_by_manifest(store)).index.values(), key=attrgetter("items"))
    content = await store.get_all(entry.name, entry.size)
    await store.remove([entry.name])
    await store.put(entry.name, harmed(content, entry, how))
    print(f"{entry.name}, of {entry.items} keys, has other {how} now", flush=True)


def harmed(content: bytes, entry: IndexObject, how: str) -> bytes:
    """It with one byte changed; or with an item that names another message, and all checksums of its blocks."""
    if how == "bytes":
        middle = len(content) // 2
        return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    items = bytearray(decode_index(content, entry))
    at = entry.items // 2 * ITEM.size
    hashed, queue_id, queue_offset, timestamp_ms = ITEM.unpack_from(items, at)
    ITEM.pack_into(items, at, hashed, queue_id, queue_offset ^ 1, timestamp_ms)
    return encode_index(bytes(items), entry.spread)
