"""A broker group as its tier has it: what a mount begins with (shell over an object store)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from brokerd.replication.epochs.epoch_list import EpochEntry
from brokerd.tiers.manifests import Manifests
from brokerd.tiers.mounting.states import read_state
from brokerd.tiers.objects.interface import ObjectStore, ObjectStoreError
from remoting.tier.contents import TierContents
from remoting.tier.manifest import Followed
from remoting.tier.states import Row


class NothingThere(ObjectStoreError):
    """The group never uploaded anything."""


class MountedGroup(NamedTuple):
    """`contents` as the last manifest has them, `epochs` those of the log that they were made of; somebody wrote to the manifest
    up to `highest_epoch`. `rows` are topics, groups and consumer offsets."""

    contents: TierContents
    epochs: Sequence[EpochEntry]
    highest_epoch: int
    rows: Sequence[Row]


async def read_group(objects: ObjectStore, broker_name: str) -> MountedGroup:
    """Raises NothingThere, and other ObjectStoreErrors when it may be tried again."""
    manifests = Manifests(objects)
    parts = await manifests.newest(-1)
    highest = await manifests.highest_epoch(-1)
    if not parts or highest is None:
        raise NothingThere(
            f"there is no manifest of broker group {broker_name} in the tier: see that --cluster, --name and tiers.url are those "
            "that its brokers had"
        )
    followed = Followed(TierContents())
    try:
        for part in parts:
            followed.take(part)
    except ValueError as error:
        raise ObjectStoreError(f"the manifest of the tier contradicts itself: {error}") from error
    epochs = [EpochEntry(*entry) for entry in parts[-1].epochs]
    return MountedGroup(followed.contents, epochs, highest, await read_state(objects))
