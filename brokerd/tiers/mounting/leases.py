"""The lease on a broker group's tier: taken, renewed, laid down and given back (shell over an object store).

A row of objects, each created once; the highest token is the lease. So nobody compares clocks: whoever wants a lease that is
held watches it for as long as it lasts by his own clock, and its holder, who counts from before his request, has stopped by then.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from brokerd.tiers.objects.interface import AlreadyThere, NotThere, ObjectStore, ObjectStoreError
from remoting.errors import LogboomError
from remoting.tier.leases import LEASE_S, MAX_BYTES, Lease, LeaseState, decode_lease, encode_lease
from remoting.tier.names import LEASES, lease_name, lease_token

log = logging.getLogger(__name__)

HOLDER_S: Final = 0.8 * LEASE_S  # a holder stops so long after it began to ask for its last token
RENEW_S: Final = LEASE_S / 3
_PAUSE_S: Final = 1.0
_KEPT: Final = 16  # tokens that are not removed; who looks at a listing of a moment ago still finds the end of the row
_MANY: Final = 1000
_BITS: Final = 128


class LeaseLost(ObjectStoreError):
    """Somebody else has it, or may have it."""


class LeaseHeld(LogboomError):
    """Somebody else has it, and renews it; `lease` is his last one."""

    def __init__(self, lease: Lease) -> None:
        super().__init__(f"{lease.who} has the lease, and renews it (now lease {lease.token})")
        self.lease = lease


class Clock(NamedTuple):
    """`steady_s` never goes back; `wall_ms` is for people."""

    steady_s: Callable[[], float]
    pause: Callable[[float], Awaitable[None]]
    wall_ms: Callable[[], int]
    random_bits: Callable[[int], int]


async def latest_lease(objects: ObjectStore) -> Lease | None:
    """The one that counts now; None when there never was one. Raises ObjectStoreError."""
    token, after = 0, ""
    while True:
        listed = await objects.list(LEASES, after, _MANY)
        token = max([token, *(found for each in listed if (found := lease_token(each.name)) is not None)])
        if len(listed) < _MANY:
            break
        after = listed[-1].name
    lease: Lease | None = None
    while True:  # a listing may miss the last ones
        try:
            lease = await _read(objects, token) if token else None
        except NotThere:
            if lease is None:
                raise  # of a listing so old that its last one was removed: ask again
            return lease
        if lease is None and not token:
            try:
                lease = await _read(objects, 1)
            except NotThere:
                return None
            token = 1
        token += 1


async def _read(objects: ObjectStore, token: int) -> Lease:
    name = lease_name(token)
    try:
        return decode_lease(await objects.get_all(name, MAX_BYTES), token, name)
    except ValueError as error:
        raise ObjectStoreError(str(error)) from error


class LeaseHolder:
    """One process that wants the lease, and has it or not. `who` is its address, for people; `holder_id` it keeps."""

    def __init__(self, objects: ObjectStore, who: str, clock: Clock, holder_id: str) -> None:
        self.holder_id = holder_id
        self._objects = objects
        self._who = who
        self._clock = clock
        self._token = 0
        self._until_s = float("-inf")

    @property
    def token(self) -> int:
        """The last one that it created; 0 before the first."""
        return self._token

    @property
    def is_held(self) -> bool:
        """Whether nobody else can have it now."""
        return self._clock.steady_s() < self._until_s

    async def take(self, waiting: Callable[[Lease], None], patience_s: float) -> Lease | None:
        """Have it; waits until it is not renewed for as long as it lasts, and tells whose it is, once for each holder. The one
        before; None for the first. Raises LeaseHeld when it is still renewed after `patience_s`, and ObjectStoreError."""
        told, began_s = "", self._clock.steady_s()
        lease = await latest_lease(self._objects)
        while True:
            if lease is not None and lease.state is LeaseState.HELD:
                if lease.holder != told:
                    told = lease.holder
                    waiting(lease)
                seen = await self._watch(lease)
                if seen.token != lease.token:
                    lease = seen
                    if lease.state is LeaseState.HELD and self._clock.steady_s() - began_s >= patience_s:
                        raise LeaseHeld(lease)
                    continue
            try:
                await self._create((lease.token if lease is not None else 0) + 1, LeaseState.HELD)
            except LeaseLost:
                lease = await latest_lease(self._objects)
            else:
                return lease

    async def renew(self) -> None:
        """Have it longer. Raises LeaseLost for good, and other ObjectStoreErrors when it may be tried again."""
        await self._create(self._token + 1, LeaseState.HELD)

    async def rest(self) -> None:
        """Let another mount have it at once; it serves no more. Raises ObjectStoreError."""
        await self._lay_down(LeaseState.RESTING)

    async def release(self) -> None:
        """Let the group's own brokers lead again. Raises ObjectStoreError."""
        await self._lay_down(LeaseState.RELEASED)

    async def _lay_down(self, state: LeaseState) -> None:
        self._until_s = float("-inf")
        await self._create(self._token + 1, state)

    async def remove_old(self) -> None:
        """Those that nobody looks at any more. Raises ObjectStoreError."""
        listed = await self._objects.list(LEASES, "", _MANY)
        tokens = [(lease_token(each.name), each.name) for each in listed]
        old = [name for token, name in tokens if token is not None and token <= self._token - _KEPT]
        if old:
            await self._objects.remove(old)

    async def _watch(self, lease: Lease) -> Lease:
        """What the lease is when it was watched long enough, or another one meanwhile."""
        until_s = self._clock.steady_s() + LEASE_S
        while True:
            await self._clock.pause(_PAUSE_S)
            is_over = self._clock.steady_s() >= until_s
            seen = await latest_lease(self._objects)
            if seen is not None and (is_over or seen.token != lease.token):
                return seen

    async def _create(self, token: int, state: LeaseState) -> None:
        """Raises LeaseLost when somebody else did, or went on behind it; other ObjectStoreErrors leave it unknown."""
        began_s = self._clock.steady_s()
        lease = Lease(
            token, self.holder_id, f"{self._clock.random_bits(_BITS):032x}", self._who, self._clock.wall_ms(), state
        )
        name, content = lease_name(token), encode_lease(lease)
        while True:
            try:
                await self._put(name, content)
                newest = await latest_lease(self._objects)
            except LeaseLost:
                self._until_s = float("-inf")
                raise
            except ObjectStoreError as error:
                # Until it is known whether it is there nothing else is created: it would be a second lease.
                if self._clock.steady_s() - began_s > HOLDER_S:
                    self._until_s = float("-inf")
                    raise LeaseLost(f"the lease could not be had in time: {error}") from error
                log.warning("the lease on the tier is not there yet: %s", error)
                await self._clock.pause(_PAUSE_S)
            else:
                break
        # Who slept between his look and his put may have created a token that was removed long ago.
        if newest is None or newest.nonce != lease.nonce:
            self._until_s = float("-inf")
            raise LeaseLost(f"{name} was created too late: somebody else went on behind it")
        self._token = token
        if state is LeaseState.HELD:
            self._until_s = began_s + HOLDER_S

    async def _put(self, name: str, content: bytes) -> None:
        """Raises LeaseLost when somebody else's is there."""
        try:
            await self._objects.put(name, content)
        except AlreadyThere:
            if await self._found(name) != content:
                raise LeaseLost(f"somebody else created {name}: another broker mounted this group") from None

    async def _found(self, name: str) -> bytes:
        try:
            return await self._objects.get_all(name, MAX_BYTES)
        except NotThere as error:
            raise LeaseLost(f"{name} was there, and was removed: somebody else went on behind it") from error
