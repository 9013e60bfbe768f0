"""What the master of a group with a tier does now and then for whoever mounts it, and against serving beside a mount (shell)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from brokerd.tiers.manifests import Fenced
from brokerd.tiers.mounting.leases import latest_lease
from brokerd.tiers.mounting.states import StateWriter
from brokerd.tiers.objects.interface import ObjectStore, ObjectStoreError
from brokerd.tiers.settings import TierSettings
from brokerd.tiers.upload.uploader import Loop
from remoting.settings import Live
from remoting.tier.leases import sentence_of
from remoting.tier.states import Row


class MountedElsewhere(Fenced):
    """Another broker serves this group from its tier, or did, and nobody gave it back."""


async def refuse_mounted(objects: ObjectStore, broker_name: str) -> None:
    """Raises MountedElsewhere, and other ObjectStoreErrors when that cannot be told now."""
    lease = await latest_lease(objects)
    if lease is not None and lease.keeps_group_from_leading:
        raise MountedElsewhere(sentence_of(lease, broker_name))


class StateKeeper:
    """One life: from when the tier is open until this broker is not the master any more. A mount has a lease of its own to look
    at (`looks_for_mounts` false)."""

    def __init__(
        self,
        objects: ObjectStore,
        names: tuple[str, int],
        rows: Callable[[], Sequence[Row]],
        loop: Loop,
        settings: Live[TierSettings],
        troubled: Callable[[ObjectStoreError | None], None],
        fenced: Callable[[Fenced], None],
        *,
        looks_for_mounts: bool,
    ) -> None:
        """`names` are the broker's and the epoch's."""
        self._objects = objects
        self._broker_name, epoch = names
        self._rows = rows
        self._loop = loop
        self._settings = settings
        self._troubled = troubled
        self._fenced = fenced
        self._looks_for_mounts = looks_for_mounts
        self._writer = StateWriter(objects, epoch)
        self._stopped = False

    def begin(self) -> None:
        self._loop.spawn(self._run(), "keep topics, groups and consumer offsets in the tier")

    def stop(self) -> None:
        """Begin nothing more."""
        self._stopped = True

    async def write(self) -> None:
        """What is so now. Raises ObjectStoreError."""
        await self._writer.write(self._rows())

    async def _run(self) -> None:
        has_failed = False
        while not self._stopped:
            try:
                if self._looks_for_mounts:
                    await refuse_mounted(self._objects, self._broker_name)
                await self.write()
            except Fenced as error:
                if not self._stopped:
                    self._fenced(error)
                return
            except ObjectStoreError as error:
                has_failed = True
                if not self._stopped:
                    self._troubled(error)
            else:
                if has_failed and not self._stopped:
                    self._troubled(None)
                has_failed = False
            await self._loop.pause(self._settings.value.state_interval_ms / 1000)
