"""The session of a group whose roles are fixed by settings: broker 0 is the master, the others copy it, nobody is elected (pure).

It stands where `controller_session` stands in a group with controllers, and keeps the same promises with less:

- every start of the master is a new master epoch, one above the highest it has persisted: replicas can tell its lives apart;
- a log has a lineage, drawn at random when its master first starts. Replicas keep it, and it is part of what both ends of a
  replication connection prove: a master that lost its data directory has another one, and cannot have its replicas cut;
- the master owns the sync-state set: what it proposes is the set. Members that do not keep up leave, and nothing waits for them;
- two processes with one identity are told apart by the name servers: whoever is registered and alive stays, the other one is
  refused there and ends (`name_server_link`); replicas follow one start of the master in an epoch, and the master one process
  with each id;
- a replica asks its master, at the remoting address it was given, for its epoch, its set and where it replicates (request 906);
- with `acting_master`, a replica asks the name servers who of the group is there (request 901, at once when told by 905), and
  stands in for reads while the master is not and its own id is the smallest.

The shell is the same `ControllerLink`; the name servers are among its addresses, and so is the master.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import orjson

from brokerd.replication.controllers.session import BrokerNames, Session
from brokerd.replication.epochs.log_lineage import LogLineage
from brokerd.replication.required_set.sync_state import Proposal
from brokerd.replication.roles.driver import ReplicationDriver
from brokerd.replication.roles.effects import Ask, RoleView
from brokerd.replication.settings import ReplicationSettings
from remoting import codes
from remoting.disk import Bytes
from remoting.errors import ProtocolError, SettingsError

log = logging.getLogger(__name__)

MASTER_ID = 0
_SYNC_RETRY_MS = 50
_GROUP_POLL_MS = 1000
_MAX_MEMBERS = 1000


class FixedSession(Session):
    """One broker's session with its fixed group."""

    def __init__(
        self,
        settings: ReplicationSettings,
        names: BrokerNames,
        name_servers: Sequence[str],
        driver: ReplicationDriver,
        lineage: LogLineage,
        highest_epoch: int,
    ) -> None:
        """`highest_epoch` is the highest master epoch that this broker has persisted. Raises SettingsError or CorruptedFile."""
        _check(settings)
        super().__init__(settings, names, driver)
        self.is_master = settings.broker_id == MASTER_ID
        self._name_servers = tuple(name_servers)
        self._lineage_file = lineage
        self.lineage = lineage.load(draw=self.is_master)  # "" = a replica that has not heard of it yet
        assert self.lineage or not self.is_master
        master = () if self.is_master or settings.fixed_master in self._name_servers else (settings.fixed_master,)
        self.addresses = (*self._name_servers, *master)
        self._epoch = highest_epoch + 1 if self.is_master else highest_epoch
        self._members = frozenset({MASTER_ID}) if self.is_master else frozenset()
        self._set_epoch = 1
        self._proposals: list[Proposal] = []
        self._pending: int | None = None  # the token of the question to the master
        self._group_asked: dict[int, str] = {}  # token -> name server
        self._groups: dict[str, frozenset[int]] = {}  # name server -> who it says is there
        self._is_told = False
        if self.is_master:
            self._asked.add(Ask.MEMBERS)
        self._poll_at_ms = self._sync_at_ms = self._group_at_ms = 0
        driver.identified(settings.broker_id)
        if self.lineage:
            driver.lineage_known(self.lineage)

    @property
    def name_servers(self) -> tuple[str, ...]:
        """A replica dials its master, too, which is none."""
        return self._name_servers

    def ask(self, what: Ask) -> None:
        if what is not Ask.ELECTION:
            super().ask(what)
        elif self.is_master:
            self.last_error = (
                "this broker cannot go on in its epoch, and nobody elects in a group with fixed roles: start it again"
            )
        else:
            self.last_error = "the master is not known yet"

    def propose(self, proposal: Proposal, master_epoch: int) -> None:
        if master_epoch == self._epoch:
            self._proposals.append(proposal)

    # Events

    def tick(self, now_ms: int, wall_ms: int) -> None:
        if not self._is_told:
            self._is_told = True
            if self.is_master or self._epoch > 0:
                self._driver.observed(self._own_view(), now_ms)
        if Ask.MEMBERS in self._asked:
            self._asked.remove(Ask.MEMBERS)
            self._driver.members_known(frozenset(range(self._settings.total_replicas)), frozenset(), now_ms)
        if self.is_master:
            self._settle_proposals(now_ms)
            if Ask.SYNC in self._asked:
                self._asked.remove(Ask.SYNC)
                self._driver.observed(self._own_view(), now_ms)
            return
        if self._pending is None and (
            now_ms >= self._poll_at_ms or (Ask.SYNC in self._asked and now_ms >= self._sync_at_ms)
        ):
            self._asked.discard(Ask.SYNC)
            self._poll_at_ms = now_ms + self._settings.controller_poll_ms
            self._sync_at_ms = now_ms + _SYNC_RETRY_MS
            self._pending = self._request(self._settings.fixed_master, codes.EXCHANGE_BROKER_HA_INFO, {}).token
        if self._settings.acting_master and now_ms >= self._group_at_ms:
            self._ask_for_the_group(now_ms)

    def connected(self, address: str, now_ms: int) -> None:
        if address == self._settings.fixed_master:
            self._asked.add(Ask.SYNC)
        self._group_at_ms = now_ms

    def disconnected(self, address: str, now_ms: int) -> None:
        self._group_at_ms = now_ms
        if self._groups.pop(address, None) is not None:
            self._decide_acting()

    def notified(self, now_ms: int) -> None:
        self._asked.add(Ask.SYNC)
        self._sync_at_ms = now_ms

    def min_id_changed(self, now_ms: int) -> None:
        self._group_at_ms = now_ms
        self.notified(now_ms)

    def answered(self, token: int, code: int, ext: Mapping[str, str], body: Bytes, now_ms: int) -> None:
        try:
            if token in self._group_asked:
                address = self._group_asked.pop(token)
                if code == codes.SUCCESS:
                    self._groups[address] = _ids_of(body)
                    self._decide_acting()
            elif token == self._pending:
                self._pending = None
                self._master_answered(code, ext, now_ms)
        except (ProtocolError, ValueError, KeyError, TypeError, AttributeError) as error:
            self.last_error = f"an answer that cannot be understood: {error}"
            log.warning("%s", self.last_error)

    def failed(self, token: int, reason: str, now_ms: int) -> None:
        self._group_asked.pop(token, None)
        if token == self._pending:
            self._pending = None
            self.last_error = reason

    def exchange_fields(self) -> Mapping[str, str]:
        """Ours alone."""
        return {
            "masterEpoch": str(self._epoch),
            "masterGrpcAddress": self._names.grpc_address,
            "syncStateSet": ",".join(map(str, sorted(self._members))),
            "syncStateSetEpoch": str(self._set_epoch),
            "lineage": self.lineage,
            "masterIncarnation": str(self._names.incarnation),
        }

    # Inside

    def _own_view(self) -> RoleView:
        names = self._names
        if not self.is_master:  # what it knew in its last life: enough to be a replica and to serve what it has
            return RoleView(MASTER_ID, self._epoch, master_address=self._settings.fixed_master)
        return RoleView(
            MASTER_ID, self._epoch, self._members, self._set_epoch, names.address, names.ha_address, names.grpc_address
        )

    def _settle_proposals(self, now_ms: int) -> None:
        proposals, self._proposals = self._proposals, []
        for proposal in proposals:
            self._members = proposal.members
            self._set_epoch = max(self._set_epoch, proposal.base_epoch) + 1
            self._driver.proposal_accepted(proposal.token, self._members, self._set_epoch, now_ms)

    def _master_answered(self, code: int, ext: Mapping[str, str], now_ms: int) -> None:
        master = self._settings.fixed_master
        if code != codes.SUCCESS or "masterHaAddress" not in ext:
            self.last_error = f"the broker at {master} is not the master of this group (code {code})"
            return
        lineage = ext.get("lineage", "")
        if "masterEpoch" not in ext or not lineage:
            self.last_error = (
                f"the broker at {master} tells no master epoch: it is not one of ours; "
                "copy it with replication.classic_master instead"
            )
            return
        if self.lineage and lineage != self.lineage:
            self.last_error = (
                "the master's log is not the one that this replica copied: its data directory was replaced. "
                "Put the old one back, or remove this replica's, to copy the new one"
            )
            log.error("%s", self.last_error)
            return
        epoch = int(ext["masterEpoch"])
        view = RoleView(
            MASTER_ID,
            epoch,
            frozenset(int(each) for each in ext.get("syncStateSet", "").split(",")[:_MAX_MEMBERS] if each),
            int(ext.get("syncStateSetEpoch", "0")),
            ext.get("masterAddress", master),
            ext["masterHaAddress"],
            ext.get("masterGrpcAddress", ""),
            int(ext.get("masterIncarnation", "0")),
        )
        if not self.lineage:
            self._lineage_file.keep(lineage)
            self.lineage = lineage
            self._driver.lineage_known(lineage)
        if epoch < self._epoch:
            self.last_error = (
                f"the master is in epoch {epoch}, but this replica has seen {self._epoch}: the master has an older copy of its "
                "data directory; put the newer one back, or remove this replica's to copy the older one"
            )
        else:
            self._epoch, self.last_error = epoch, ""
        self._driver.observed(view, now_ms)

    def _ask_for_the_group(self, now_ms: int) -> None:
        self._group_at_ms = now_ms + _GROUP_POLL_MS
        fields = {"clusterName": self._names.cluster, "brokerName": self._names.broker_name}
        for address in self._name_servers:
            if address not in self._group_asked.values():
                request = self._request(address, codes.GET_BROKER_MEMBER_GROUP, fields)
                self._group_asked[request.token] = address

    def _decide_acting(self) -> None:
        """It stands in only while every name server that answers misses the master; without one, clients find nobody anyway."""
        present = frozenset().union(*self._groups.values())
        acts = bool(present) and MASTER_ID not in present and min(present) == self._settings.broker_id
        if acts != self.acts_as_master:
            self.acts_as_master = acts
            log.warning("this replica %s for its master", "stands in" if acts else "no longer stands in")


def _ids_of(body: Bytes) -> frozenset[int]:
    """The broker ids of a member group."""
    group = orjson.loads(body).get("brokerMemberGroup") or {}
    return frozenset(int(each) for each in group.get("brokerAddrs") or ())


def _check(settings: ReplicationSettings) -> None:
    if settings.broker_id >= settings.total_replicas:
        raise SettingsError(
            f"replication.broker_id={settings.broker_id} with replication.total_replicas={settings.total_replicas}: "
            "ids are 0 to the number of replicas less one; set total_replicas to the size of the group on all its brokers"
        )
    if settings.broker_id != MASTER_ID and not settings.fixed_master:
        raise SettingsError(
            "a replica with fixed roles has to know its master: set replication.fixed_master to the master's --listen address"
        )
    if settings.learner and settings.broker_id == MASTER_ID:
        raise SettingsError("broker 0 is the master of a group with fixed roles; it cannot be a learner")
