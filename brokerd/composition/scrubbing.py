"""The scrubber of a broker, built from its core: what it reads, whom it asks for what is damaged, and what it tells of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from secrets import token_bytes

from brokerd.composition.core import BrokerCore
from brokerd.repair.fetch import Asking, fetch_pieces
from brokerd.repair.log_range import NONCE_BYTES
from brokerd.repair.repairer import Repairer, Sources
from brokerd.repair.scrubber import Machine, Scrubber
from brokerd.repair.settings import ScrubSettings
from brokerd.replication.epochs.epoch_list import EpochEntry
from brokerd.store.scrub.inspection import Inspector
from brokerd.store.scrub.log_files import LogFiles
from remoting.errors import ProtocolError
from remoting.facts.broker_state import DamageState, ScrubState
from remoting.settings import Live
from remoting.transport.client import RemotingClient


class RangeFetcher:
    """Asks brokers of the group for ranges of the log, with this cluster's secret; without one nobody can be asked."""

    def __init__(
        self, client: RemotingClient, group: bytes, secrets: Sequence[bytes], epochs: Callable[[], Sequence[EpochEntry]]
    ) -> None:
        self._asking = Asking(client, group, secrets[0], lambda: token_bytes(NONCE_BYTES)) if secrets else None
        self._epochs = epochs

    async def fetch(self, core: BrokerCore, peer: str, start: int, end: int) -> AsyncIterator[tuple[int, bytes]]:
        """See `fetch_pieces`."""
        if self._asking is None:
            raise ProtocolError("this broker has no --cluster-secret, so no other one gives it a part of the log")
        shape = core.store.commitlog.shape
        async for piece in fetch_pieces(self._asking, peer, start, end, shape=shape, epochs=self._epochs()):
            yield piece


def build_scrubber(
    core: BrokerCore,
    machine: Machine,
    settings: Live[ScrubSettings],
    fetcher: RangeFetcher,
    peers: Callable[[], Sequence[str]],
) -> Scrubber:
    """`peers` are the remoting addresses of the group's other brokers, its master's first."""
    store = core.store

    def fetch(peer: str, start: int, end: int) -> AsyncIterator[tuple[int, bytes]]:
        return fetcher.fetch(core, peer, start, end)

    inspector = Inspector(store.commitlog, store.queues, store.index, core.code_rules, core.metadata.deleted_at)
    files = LogFiles(machine.disk, store.commitlog.segment_size_bytes)
    repairer = Repairer(store.commitlog, files, Sources(fetch, peers, machine.wall_ms))
    return Scrubber(store, inspector, repairer, settings, machine)


def scrub_state(scrubber: Scrubber) -> ScrubState:
    """What is told of it."""
    progress, ledger = scrubber.progress, scrubber.repairer.ledger
    return ScrubState(
        checked_offset=progress.offset,
        limit_offset=scrubber.limit,
        round_began_ms=progress.began_ms,
        round_ended_ms=progress.ended_ms,
        rounds=scrubber.rounds,
        read_bytes=scrubber.read_bytes,
        found=ledger.ranges_found,
        repaired=ledger.ranges_repaired,
        units_repaired=ledger.units_repaired,
        index_repaired=ledger.index_repaired,
        last_damage=ledger.last or None,
        last_damage_ms=ledger.last_ms,
        unrepaired=tuple(
            DamageState(
                start_offset=each.range.start, end_offset=each.range.end, since_ms=each.since_ms, reason=each.reason
            )
            for each in ledger.unrepaired.values()
        ),
    )
