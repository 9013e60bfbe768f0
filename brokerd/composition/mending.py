"""Before a start on a damaged log: asks the group's other brokers for what is damaged, so that a rotten record ends nobody.

A start that refuses its log, or suspects it, is tried again when the log was mended. Nobody is waited for: who does not live, as
the controllers say, or does not have the range intact, is passed over. What cannot be mended is the start's own matter.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import orjson

from brokerd.replication.controllers.session import BrokerNames
from brokerd.replication.epochs.epoch_file import EpochFile
from brokerd.replication.epochs.epoch_list import EpochEntry
from brokerd.store.log.derive import RecordShape
from brokerd.store.settings import StoreSettings
from brokerd.store.start.mending import DamagedLog
from remoting import codes
from remoting.bare_json import loads_bare
from remoting.disk import Disk
from remoting.errors import LogboomError
from remoting.transport.client import RemotingClient

log = logging.getLogger(__name__)

_MOST_RANGES = 1000
_TIMEOUT_MS = 2000


@dataclass(frozen=True, slots=True)
class Wanted:
    """A range of the log, `[start, end)`, of a log whose records have this shape and that these epochs wrote."""

    start: int
    end: int
    shape: RecordShape
    epochs: Sequence[EpochEntry]


# (a broker's remoting address, the range) -> pieces of it: (offset, whole records to be written there). Raises LogboomError.
Fetch = Callable[[str, Wanted], AsyncIterator[tuple[int, bytes]]]


async def living_peers(client: RemotingClient, controllers: Sequence[str], names: BrokerNames) -> list[str]:
    """The remoting addresses of the group's other brokers that live, as the leading controller says; none if nobody tells."""
    for controller in controllers:
        try:
            answer = await client.call(
                controller,
                codes.CONTROLLER_GET_SYNC_STATE_DATA,
                body=orjson.dumps([names.broker_name]),
                timeout_ms=_TIMEOUT_MS,
            )
            table = loads_bare(answer.body)["replicasInfoTable"].get(names.broker_name) or {}
            replicas = [*(table.get("inSyncReplicas") or []), *(table.get("notInSyncReplicas") or [])]
            addresses = [str(each["brokerAddress"]) for each in replicas if each.get("alive") is True]
        except (LogboomError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.info("controller %s does not tell who lives: %s", controller, error)
            continue
        return [each for each in addresses if each and each != names.address]
    return []


async def mend(disk: Disk, settings: StoreSettings, peers: Sequence[str], fetch: Fetch) -> bool:
    """Put what peers have intact in the place of what is damaged; whether a start finds nothing damaged now."""
    damaged = DamagedLog(disk, settings)
    if not damaged.may_be_mended or not peers:
        return False
    epochs = EpochFile(disk).load()[0].entries
    try:
        for _ in range(_MOST_RANGES):
            shape, damage = damaged.look()
            if damage is None:
                return True
            wanted = [Wanted(damage.start, end, shape, epochs) for end in damage.ends]
            if not await _mend_range(damaged, wanted, peers, fetch):
                return False
    except LogboomError as error:
        log.warning("the log cannot be mended: %s", error)
    return False


async def _mend_range(damaged: DamagedLog, guesses: Sequence[Wanted], peers: Sequence[str], fetch: Fetch) -> bool:
    """Where the range ends is a guess: only records that end there, too, are given."""
    for wanted in guesses:
        for peer in peers:
            try:
                pieces = [piece async for piece in fetch(peer, wanted)]
            except LogboomError as error:
                log.info("%s does not give %d to %d of the log: %s", peer, wanted.start, wanted.end, error)
                continue
            for offset, content in pieces:
                damaged.write(offset, content)
            log.warning("the log was mended from %d to %d with the bytes of %s", wanted.start, wanted.end, peer)
            return True
    return False
