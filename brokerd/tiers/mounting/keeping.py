"""What the master of a group with a tier does now and then for whoever mounts it, and against serving beside a mount (shell)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from brokerd.tiers.manifests import Fenced
from brokerd.tiers.mounting.leases import latest_lease
from brokerd.tiers.mounting.states import StateWriter
from brokerd.tiers.objects.interface import ObjectStore, ObjectStoreError
from brokerd.tiers.settings import TierSettings
from brokerd.tiers.upload.uploader import Loop
from remoting.tier.leases import sentence_of
from remoting.tier.states import Row


class MountedElsewhere(Fenced):
    """Another broker serves this group from its tier, or did, and nobody gave it back."""


async def refuse_mounted(objects: ObjectStore, broker_name: str) -> None:
    """Raises MountedElsewhere, and other ObjectStoreErrors when that cannot be told now."""
    lease = await latest_lease(objects)
    if lease is not None and lease.keeps_group_from_leading:
        raise MountedElsewhere(sentence_of(lease, broker_name))


class Owner(Protocol):
    """The master."""

    @property
    def settings(self) -> TierSettings: ...

    def state_rows(self) -> Sequence[Row]:
        """What a mount needs besides messages."""

    def troubled(self, error: ObjectStoreError | None) -> None:
        """The object store does not do what it should; None: it does again."""

    def end_for(self, error: Fenced) -> None:
        """Somebody else serves the group."""


class StateKeeper:
    """One life: from when the tier is open until this broker is not the master any more. It looks for mounts of the group
    `broker_name`; a mount, which has a lease of its own to look at, names none. `rounds`: so often what is to be kept was
    in the tier as it had been at the round's begin."""

    def __init__(self, objects: ObjectStore, epoch: int, broker_name: str, owner: Owner, loop: Loop) -> None:
        self._objects = objects
        self._broker_name = broker_name
        self._owner = owner
        self._loop = loop
        self._writer = StateWriter(objects, epoch)
        self._stopped = False
        self.rounds = 0

    def begin(self) -> None:
        self._loop.spawn(self._run(), "keep topics, groups and consumer offsets in the tier")

    def stop(self) -> None:
        """Begin nothing more."""
        self._stopped = True

    async def write(self) -> None:
        """What is so now. Raises ObjectStoreError."""
        await self._writer.write(self._owner.state_rows())
        self.rounds += 1

    async def _run(self) -> None:
        has_failed = False
        while not self._stopped:
            try:
                if self._broker_name:
                    await refuse_mounted(self._objects, self._broker_name)
                await self.write()
            except Fenced as error:
                if not self._stopped:
                    self._owner.end_for(error)
                return
            except ObjectStoreError as error:
                has_failed = True
                if not self._stopped:
                    self._owner.troubled(error)
            else:
                if has_failed and not self._stopped:
                    self._owner.troubled(None)
                has_failed = False
            await self._loop.pause(self._owner.settings.state_interval_ms / 1000)
