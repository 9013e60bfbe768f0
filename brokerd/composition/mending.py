"""Before a start on a damaged log: asks the group's other brokers for what is damaged, so that a rotten record ends nobody.

A start that meets a place at which the log is whole was led there by a consume queue's unit that rotted; it is tried again with
queues that are derived anew.

A start that refuses its log, suspects it, or meets a damaged record of a system topic is tried again when the log was mended.
Nobody is waited for: who does not live, as the controllers say, or does not have the range intact, is passed over. What cannot be
mended is the start's own matter, which then refuses the log, or tells that it is suspect.

The bytes come as a running broker gets them (`repair/fetch`): of a log that has the range from the same master epoch, with every
record checked on both sides. So what is written is what was here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from secrets import token_bytes
from typing import Final, TypeVar

from brokerd.composition.settings import BrokerSettings
from brokerd.repair.fetch import Asking, fetch_pieces
from brokerd.repair.log_range import NONCE_BYTES
from brokerd.replication.epochs.epoch_file import EpochFile
from brokerd.replication.epochs.epoch_list import EpochEntry
from brokerd.store.log.derive import RecordShape
from brokerd.store.settings import StoreSettings
from brokerd.store.start.log_recovery import Damage, SuspectLog
from brokerd.store.start.mending import DamagedLog
from remoting import codes
from remoting.access.secret_file import load_secrets
from remoting.disk import Disk, LocalDisk
from remoting.errors import ConnectionLost, CorruptedFile, DamagedRange, LogboomError, RequestTimeout, StorageError
from remoting.facts.cluster_view import ClusterView
from remoting.facts.codec import decode
from remoting.transport.client import RemotingClient
from remoting.transport.identity import component_identity
from remoting.transport.tls import dialling_context

log = logging.getLogger(__name__)

T = TypeVar("T")

_MOST_RANGES: Final = 100
_MOST_STARTS: Final = 100  # a start meets the damaged records of system topics one after the other
_TIMEOUT_MS: Final = 1000


async def start_mended(start: Callable[[bool], T], mend: Callable[[DamagedRange | None], Awaitable[bool]]) -> T:
    """What `start(ask_first)` gives, perhaps after the log was mended; with `ask_first` a log that is newly suspect is refused,
    and nothing changed. `mend` has what the start met put right, or whatever it finds, and says whether it wrote anything.
    Raises what the start does when nobody can mend the log."""
    ask_first = True
    met: set[DamagedRange] = set()
    for _ in range(_MOST_STARTS):
        try:
            return start(ask_first)
        except CorruptedFile as error:
            if error.damage in met:
                raise  # it is there again after it was mended
            if error.damage is not None:
                met.add(error.damage)
            log.error("before the log is given up, other brokers of the group are asked for what is damaged: %s", error)
            if await mend(error.damage):
                continue
            if not isinstance(error, SuspectLog):
                raise
            ask_first = False
    return start(False)


async def mend_directory(settings: BrokerSettings, met: DamagedRange | None) -> bool:
    """The `mend` of a broker with these settings, which does not run and has its directory given free."""
    secrets = load_secrets(settings.cluster_secret) if settings.cluster_secret is not None else ()
    if not secrets:
        with closing(LocalDisk(settings.data)) as disk:
            return await blame_queue(disk, settings.store, met)
    with _client(settings, secrets[0]) as client, closing(LocalDisk(settings.data)) as disk:
        group = f"{settings.cluster}#{settings.name}".encode()
        asking = Asking(client, group, secrets[0], lambda: token_bytes(NONCE_BYTES))
        place = Place(settings.controllers, settings.name, settings.listen)
        return await mend_disk(disk, settings.store, place, asking, met)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a broker belongs: addresses of controllers, the name of its group, its own remoting address."""

    controllers: Sequence[str]
    broker_name: str
    address: str


async def mend_disk(
    disk: Disk, settings: StoreSettings, place: Place, asking: Asking, met: DamagedRange | None
) -> bool:
    """Mend the log on a disk with what others of the group that live have intact; whether anything was written."""
    if await blame_queue(disk, settings, met):
        return True
    peers = await living_peers(asking.client, place.controllers, place.broker_name, place.address)
    if not peers:
        log.warning("the log is not mended: no other broker of the group is known to live")
        return False
    try:
        epochs = EpochFile(disk).load()[0].entries
        return await Mender(DamagedLog(disk, settings), epochs, asking, peers).mend(met) > 0
    except StorageError as error:
        log.warning("the log cannot be mended: %s", error)
        return False


async def blame_queue(disk: Disk, settings: StoreSettings, met: DamagedRange | None) -> bool:
    """Whether what a start met is a unit's fault and not the log's; the next start derives all queues again then."""
    if met is None:
        return False
    try:
        is_rotten = await asyncio.to_thread(DamagedLog(disk, settings).blame_queue, met)
    except StorageError as error:
        log.warning("it cannot be told whether a consume queue or the log is damaged: %s", error)
        return False
    if is_rotten:
        log.warning(
            "the log is whole where a consume queue names %d bytes at %d: queues are made again", met.size, met.offset
        )
    return is_rotten


@contextmanager
def _client(settings: BrokerSettings, secret: bytes) -> Iterator[RemotingClient]:
    identity = component_identity((secret,), dialling_context(settings.tls))
    client = RemotingClient(unreachable_ms=settings.replication.silence_limit_ms, identity=identity)
    try:
        yield client
    finally:
        client.close()


async def living_peers(
    client: RemotingClient, controllers: Sequence[str], broker_name: str, own_address: str
) -> list[str]:
    """The remoting addresses of the group's other brokers that live, as the first controller says that knows of any."""
    for controller in controllers:
        try:
            answer = await client.call(controller, codes.CLUSTER_VIEW, timeout_ms=_TIMEOUT_MS)
            view = decode(ClusterView, answer.body)
        except LogboomError as error:
            log.info("controller %s does not tell who lives: %s", controller, error)
            continue
        replicas = [each for group in view.groups if group.broker_name == broker_name for each in group.replicas]
        living = [each.address for each in replicas if each.alive and each.address and each.address != own_address]
        if living:
            return living
    return []


class Mender:
    """One log, and those who may have it intact: the remoting addresses of `peers`. `epochs` are the log's own, oldest first."""

    def __init__(self, damaged: DamagedLog, epochs: Sequence[EpochEntry], asking: Asking, peers: Sequence[str]) -> None:
        self._log = damaged
        self._epochs = epochs
        self._asking = asking
        self._peers = list(peers)  # without those who did not answer

    async def mend(self, met: DamagedRange | None) -> int:
        """Put what peers have intact in the place of what is damaged: of the record that a start has met, or of all that keeps
        the log from its end. Returns how many bytes were written. Raises StorageError."""
        written = 0
        for _ in range(_MOST_RANGES):
            shape, damage = await asyncio.to_thread(self._log.look, met)
            if damage is None or not (more := await self._mend_range(shape, damage)):
                break
            written += more
        return written

    async def _mend_range(self, shape: RecordShape, damage: Damage) -> int:
        """Where the range ends is a guess: only records that end there, too, are given. What came of them is right anyway."""
        for end in damage.ends:
            for peer in list(self._peers):
                written = 0
                try:
                    async for offset, content in fetch_pieces(
                        self._asking, peer, damage.start, end, shape=shape, epochs=self._epochs
                    ):
                        await asyncio.to_thread(self._log.write, offset, content)
                        written += len(content)
                except StorageError:
                    raise
                except LogboomError as error:
                    log.info("%s does not give %d to %d of the log: %s", peer, damage.start, end, error)
                    if isinstance(error, (ConnectionLost, RequestTimeout)):
                        self._peers.remove(peer)
                if written:
                    log.warning("the log was mended from %d on with %d bytes of %s", damage.start, written, peer)
                    return written
        return 0
