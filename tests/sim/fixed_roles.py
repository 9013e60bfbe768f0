"""A group beside the first one whose roles are fixed by settings: broker 0 is its master, nobody is elected.

Faults hit its brokers as they hit all others; there is no name server, and no directory of it is copied. Verdict: what its master
acknowledged is on the disk of every member of the set that it keeps, and in the end on all of them; every start of the master is
an epoch of its own, by which logs that differ are cut where they differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from brokerd.composition.log_access import StoreReplicatedLog
from brokerd.replication.controllers.fixed_session import MASTER_ID, FixedSession
from brokerd.replication.controllers.session import BrokerNames, Session, SessionRequest
from brokerd.replication.epochs.log_lineage import LINEAGE_FILE, LogLineage
from brokerd.replication.requests import ReplicationRequests
from brokerd.store.store import MessageStore
from remoting.frame import Command
from tests.sim.broker import CLUSTER, SimBroker
from tests.sim.controller import Answer, Connection
from tests.sim.side_group import SideGroup
from tests.sim.world import Node

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster

NAME: Final = "broker-f"
_FIRST_INDEX: Final = 30
_SIZE: Final = 2


class FixedBroker(SimBroker):
    """One broker of such a group. It asks its master, not controllers, and as master it is asked."""

    def _make_session(self, store: MessageStore, replicated: StoreReplicatedLog, incarnation: int) -> Session:
        store.judged()
        lineage = LogLineage(self.disk)
        if self.settings.broker_id == MASTER_ID and not self.disk.exists(LINEAGE_FILE):
            lineage.keep(f"{self.rng.getrandbits(128):032x}")
        names = BrokerNames(CLUSTER, self.group, self.address, self.ha_address, "", incarnation)
        session = FixedSession(self.settings, names, (), self.driver, lineage, self.driver.machine.highest_epoch)
        hub: Any = self  # which has the driver, too
        nobody: Any = None  # pushes what controllers say
        self._requests = ReplicationRequests(hub, session, nobody, names, self.wall_ms)
        return session

    def _whom(self, address: str) -> SimBroker:
        return next(each for each in self._peers.values() if each.address == address)

    def handle(self, client: Node, life: int, request: SessionRequest, answer: Answer) -> None:
        """Another broker asks who its master is."""
        connection: Any = Connection(client)
        command = Command(request.code, request.token, dict(request.ext), request.body)
        connection.expect(command, answer)
        self.guarded(lambda: self._requests.handlers()[request.code](connection, [command]))()


class FixedGroup(SideGroup):
    """The group of one story."""

    def __init__(self, cluster: SimCluster) -> None:
        super().__init__(cluster, NAME, "f")
        first = cluster.brokers[0]
        peers: dict[str, SimBroker] = {}
        settings = replace(first.first_settings, roles="fixed", total_replicas=_SIZE, learner=False)
        brokers: list[SimBroker] = []
        for broker_id in range(_SIZE):
            own = replace(settings, broker_id=broker_id, fixed_master=brokers[0].address if brokers else "")
            brokers.append(first.of_group(NAME, _FIRST_INDEX + broker_id, peers, FixedBroker, own))
        self.populate(brokers)

    @property
    def members(self) -> Sequence[int]:
        """As the master says."""
        master = self.master()
        mastership = None if master is None else master.driver.machine.mastership
        return () if mastership is None else sorted(mastership.sync.local)
