"""The process of a mount around its broker: the lease before it and while it serves; and what a broker asks before it starts."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Final

from brokerd.composition.environment import wall_ms
from brokerd.composition.settings import BrokerSettings
from brokerd.processors.mounted import REFUSED, refuse, refuse_without_lease
from brokerd.replication.epochs.epoch_file import EpochFile
from brokerd.store.read_levels import ReadLevel
from brokerd.tiers.mounting.group import MountedGroup, NothingThere, read_group
from brokerd.tiers.mounting.keeping import MountedElsewhere, refuse_mounted
from brokerd.tiers.mounting.leases import RENEW_S, Clock, LeaseHeld, LeaseHolder, LeaseLost, latest_lease
from brokerd.tiers.objects.backend import open_backend
from brokerd.tiers.objects.interface import ObjectStore, ObjectStoreError
from remoting.disk import LocalDisk
from remoting.errors import LogboomError, SettingsError
from remoting.frame import Command
from remoting.tier.leases import LEASE_S, Lease, LeaseState
from remoting.tier.names import group_directory
from remoting.transport.connection import Handler, RemotingConnection

log = logging.getLogger(__name__)

MARK: Final = "mount"  # in a mount's data directory: the name of its lease's holder
_LOG: Final = "commitlog"
_BITS: Final = 128
_PAUSE_S: Final = 2.0
_LOOK_S: Final = 5.0
_CHECK_S: Final = 0.5
_STOP_S: Final = 1.0
_PATIENCE_S: Final = 2 * LEASE_S  # beside a mount that goes on


class Mount:
    """The lease of this process, and the group it is for."""

    def __init__(self, group: MountedGroup, holder: LeaseHolder) -> None:
        self.group = group
        self._holder = holder

    @property
    def is_held(self) -> bool:
        """Whether this process may serve."""
        return self._holder.is_held

    async def keep(self, lost: Callable[[str], None]) -> None:
        """Renew the lease for good; `lost` is told once when it is gone."""
        renewing = asyncio.ensure_future(self._renew())
        try:
            while self.is_held and not renewing.done():
                await asyncio.wait((renewing,), timeout=_CHECK_S)
            reason = str(renewing.result()) if renewing.done() else "the object store did not answer in time"
            lost(f"this mount serves no more, as its lease is gone: {reason}")
        finally:
            renewing.cancel()

    async def _renew(self) -> LeaseLost:
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                await self._holder.renew()
            except LeaseLost as error:
                return error
            try:
                await self._holder.remove_old()
            except ObjectStoreError as error:
                log.warning("old leases stay in the tier for now: %s", error)

    async def rest(self) -> None:
        """This process serves no more: another mount may have the lease at once. If that fails, it waits for the lease's end."""
        try:
            async with asyncio.timeout(_STOP_S):
                await self._holder.rest()
        except (ObjectStoreError, TimeoutError) as error:
            log.warning("the lease is not laid down, so the next mount waits for its end: %s", error)

    def protect(self, handlers: dict[int, Handler]) -> dict[int, Handler]:
        """The same for reading alone; they answer only while the lease is held."""
        return {code: refuse if code in REFUSED else self._while_held(handler) for code, handler in handlers.items()}

    def _while_held(self, handler: Handler) -> Handler:
        def held(connection: RemotingConnection, requests: Sequence[Command]) -> None:
            (handler if self.is_held else refuse_without_lease)(connection, requests)

        return held


async def take_mount(settings: BrokerSettings) -> Mount:
    """The group's contents, under a lease; waits for the end of one that is not renewed any more, and for an object store that
    does not answer.

    Raises SettingsError when nothing can be mounted as it is set up, and when another mount serves the group.
    """
    objects = _objects(settings)
    if settings.tiers.read_level == ReadLevel.DISABLE:
        raise SettingsError("a mount has nothing but its tier: tiers.read_level must not be DISABLE")
    holder = LeaseHolder(objects, _who(settings), _clock(), _holder_of(settings))
    while True:
        try:
            await read_group(objects, settings.name)  # before anybody is kept from leading
            before = await holder.take(_tell_wait(settings.name, holder.holder_id), _PATIENCE_S)
            group = await read_group(objects, settings.name)
        except LeaseHeld as error:
            raise SettingsError(
                f"broker group {settings.name} is mounted elsewhere: {error}. Stop it there first"
            ) from error
        except NothingThere as error:
            raise SettingsError(str(error)) from error
        except ObjectStoreError as error:
            log.error("broker group %s cannot be mounted yet: %s", settings.name, error)
            await asyncio.sleep(_PAUSE_S)
            continue
        try:
            _prepare(settings, group, holder.holder_id, before)
        except LogboomError:
            await holder.rest()
            raise
        messages = group.contents.holdings.messages
        log.info("broker group %s is mounted read-only: %d messages, lease %d", settings.name, messages, holder.token)
        return Mount(group, holder)


async def look_for_mount(settings: BrokerSettings) -> None:
    """Raises MountedElsewhere when this broker's group is mounted. A tier that does not answer keeps nobody from starting."""
    try:
        objects = _objects(settings)
        async with asyncio.timeout(_LOOK_S):
            await refuse_mounted(objects, settings.name)
    except MountedElsewhere:
        raise
    except (ObjectStoreError, SettingsError, TimeoutError) as error:
        reason = str(error) or "the object store did not answer in time"
        log.warning("whether this broker group is mounted elsewhere cannot be told, and it starts: %s", reason)


async def release_mount(settings: BrokerSettings) -> str:
    """Let the group's own brokers lead again. A sentence for a person. Raises LogboomError, also while a mount serves."""
    objects = _objects(settings)
    lease = await latest_lease(objects)
    if lease is None or lease.state is LeaseState.RELEASED:
        return f"broker group {settings.name} is not mounted"
    if lease.state is LeaseState.HELD:
        log.info("%s has, or had, the lease: it takes half a minute to see whether it is still there", lease.who)
    holder = LeaseHolder(objects, _who(settings), _clock(), f"{secrets.randbits(_BITS):032x}")
    try:
        await holder.take(lambda _: None, 0)
    except LeaseHeld as error:
        raise SettingsError(
            f"broker group {settings.name} is being served by the mount at {error.lease.who}: stop that process first"
        ) from error
    await holder.release()
    return f"broker group {settings.name} is given back: its own brokers may lead again"


def _objects(settings: BrokerSettings) -> ObjectStore:
    """Raises SettingsError."""
    if not settings.tiers.url:
        raise SettingsError("--mount and --release-mount need the tier that the group's brokers had: set tiers.url")
    return open_backend(settings.tiers, group_directory("", settings.cluster, settings.name))


def _clock() -> Clock:
    return Clock(time.monotonic, asyncio.sleep, wall_ms, secrets.randbits)


def _who(settings: BrokerSettings) -> str:
    """What people find this process by."""
    return f"{socket.gethostname()} ({settings.listen})"


def _tell_wait(name: str, holder_id: str) -> Callable[[Lease], None]:
    def waiting(lease: Lease) -> None:
        if lease.holder == holder_id:
            log.warning(
                "this mount of broker group %s did not lay down its lease %d, as after a kill: it serves in %d s, when that ends",
                *(name, lease.token, LEASE_S),
            )
        else:
            log.warning(
                "broker group %s is, or was, mounted by %s, lease %d: watching for %d s whether that is renewed",
                *(name, lease.who, lease.token, LEASE_S),
            )

    return waiting


def _holder_of(settings: BrokerSettings) -> str:
    """The name that this directory's mount has; another one when it is new. Raises SettingsError."""
    with closing(LocalDisk(settings.data)) as disk:
        mark = disk.read_bytes(MARK)
        if mark is not None:
            return mark.decode("ascii", "replace").strip()
        if disk.names(_LOG):
            raise SettingsError(
                f"{settings.data} has the log of a broker: a mount needs a directory of its own, empty at first"
            )
        return f"{secrets.randbits(_BITS):032x}"


def _prepare(settings: BrokerSettings, group: MountedGroup, holder_id: str, before: Lease | None) -> None:
    """Have the directory say whose it is, and know the epoch that the controllers have to go above. Raises SettingsError."""
    with closing(LocalDisk(settings.data)) as disk:
        is_new = disk.read_bytes(MARK) is None
        if not is_new and (before is None or before.holder != holder_id):
            raise SettingsError(
                f"{settings.data} has an older mount of broker group {settings.name}, and somebody else served it since: give "
                "--data an empty directory"
            )
        epochs = EpochFile(disk)
        _, seen = epochs.load()
        if seen < group.highest_epoch:
            epochs.save_master_epoch(group.highest_epoch)
        if is_new:
            disk.replace_bytes(MARK, f"{holder_id}\n".encode())
