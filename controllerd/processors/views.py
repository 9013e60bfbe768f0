"""Questions that any controller answers from what it knows itself: who leads, the settings, and the view for the console.

The leader's view is the authoritative one: it has decided last and its heartbeat table is the one that is acted upon. Others say
of themselves what they are, and of the rest only what they know.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from secrets import token_hex

from controllerd.live_settings import LiveSettings
from controllerd.metrics import Counters
from controllerd.nameserver.records import MASTER_ID, Registration
from controllerd.nameserver.routes import RouteTable
from controllerd.processors import fields
from controllerd.processors.controllers_view import ControllersView
from controllerd.processors.serving import Handles
from controllerd.replicas.broker_groups import BrokerGroups
from controllerd.replicas.elect import Eligibility, explain_eligibility
from controllerd.replicas.state import Group, UncleanElection
from controllerd.replicas.triggers import observe_for_request
from controllerd.state.machine import ControllerMachine
from remoting import codes
from remoting.facts.cluster_view import (
    KNOWN_VIEW,
    SAME_VIEW,
    TOLD_VIEW,
    ClusterView,
    GroupView,
    ReplicaView,
    UncleanElectionView,
)
from remoting.facts.codec import encode
from remoting.facts.words import BrokerRole, GroupKind
from remoting.frame import Command
from remoting.transport.connection import RemotingConnection


class ViewsProcessor:
    """Handlers that read, and those of the settings."""

    def __init__(
        self,
        settings: LiveSettings,
        controllers: ControllersView,
        groups: BrokerGroups,
        routes: RouteTable,
        counters: Counters,
        machine: ControllerMachine,
    ) -> None:
        self._settings = settings
        self._controllers = controllers
        self._routes = routes
        self._life = token_hex(8)
        self._groups = groups
        self._counters = counters
        self._machine = machine

    def handles(self) -> Handles:
        return {
            codes.CONTROLLER_GET_METADATA_INFO: self._metadata_info,
            codes.GET_CONTROLLER_CONFIG: self._config,
            codes.UPDATE_CONTROLLER_CONFIG: partial(self._update_config, "election"),
            codes.GET_NAMESRV_CONFIG: self._config,
            codes.UPDATE_NAMESRV_CONFIG: partial(self._update_config, "nameserver"),
            codes.CLUSTER_VIEW: self._cluster_view,
        }

    def _metadata_info(self, connection: RemotingConnection, request: Command) -> None:
        leader, members = self._controllers.known_leader(), self._controllers.members
        peers = ";".join(f"{name}:{address}" for name, address in members.named().items())
        ext = fields.optional(
            {
                "group": self._settings.start.raft.group,
                "controllerLeaderId": leader,
                "controllerLeaderAddress": members.address(members.present(leader)) if leader else None,
                "isLeader": str(leader == self._settings.start.node_id).lower(),
                "peers": peers,
                "currentTimeMillis": str(self._groups.wall_ms()),
            }
        )
        connection.respond(request, ext=ext)

    def _config(self, connection: RemotingConnection, request: Command) -> None:
        connection.respond(request, body=self._settings.as_properties().encode())

    def _update_config(self, part: str, connection: RemotingConnection, request: Command) -> None:
        self._settings.update(part, request.body, connection.peer)
        connection.respond(request)

    def _cluster_view(self, connection: RemotingConnection, request: Command) -> None:
        name = self._what_is_told(request)
        if request.ext.get(KNOWN_VIEW) == name:
            connection.respond(request, ext={TOLD_VIEW: name, SAME_VIEW: "true"})
        else:
            connection.respond(request, ext={TOLD_VIEW: name}, body=encode(self._view(request)))

    def _what_is_told(self, request: Command) -> str:
        """A name for what of the view nobody shall learn late, the same for as long as that is the same. It is of this process
        alone: no other one gives the same names."""
        told = (
            self._life,
            fields.flag(request, "placements"),
            self._controllers.essence(),
            self._settings.election.value.unclean,
            *(self._essence(group) for group in self._groups.decided().groups.values()),
            *((name, *self._routes.members(name)) for name in self._routes.groups()),
        )
        return f"{hash(told):x}"

    def _essence(self, group: Group) -> object:
        now_ms, table = self._groups.now_ms(), self._groups.table
        beats = [(broker_id, table.get(group, broker_id)) for broker_id in group.replicas]
        return (
            self._groups.recent.of(group.broker_name)[-1:],
            *(
                (
                    table.is_alive(group, broker_id, now_ms),
                    table.claimed_by(group, broker_id, now_ms),
                    (beat.epoch, beat.max_offset, beat.confirm_offset, beat.incarnation) if beat is not None else None,
                )
                for broker_id, beat in beats
            ),
        )

    def _view(self, request: Command) -> ClusterView:
        groups = self._groups.decided().groups
        return ClusterView(
            as_of_ms=self._groups.wall_ms(),
            leader_id=self._controllers.known_leader(),
            cluster=self._controllers.members.configuration.cluster,
            access_version=self._machine.access.version,
            controllers=self._controllers.listed(),
            groups=(*(self._group(groups[name]) for name in sorted(groups)), *self._fixed_groups()),
            unclean_election=self._settings.election.value.unclean,
            metrics=self._counters.as_json(),
            loop=self._groups.table.awake.state(),
            placements=tuple(self._machine.placements.topics.values()) if fields.flag(request, "placements") else (),
        )

    def _group(self, group: Group) -> GroupView:
        now_ms = self._groups.now_ms()
        reasons = explain_eligibility(
            group, observe_for_request(group, self._groups.table, now_ms), self._settings.election.value.unclean
        )
        return GroupView(
            cluster_name=group.cluster_name,
            broker_name=group.broker_name,
            master_broker_id=group.master_broker_id,
            master_epoch=group.master_epoch,
            sync_state_set=tuple(group.sync_state_set),
            sync_state_set_epoch=group.sync_state_set_epoch,
            unclean_elections=tuple(_unclean(each) for each in group.unclean_elections),
            elections=self._groups.recent.of(group.broker_name),
            replicas=tuple(self._replica(group, each, now_ms) for each in reasons),
        )

    def _fixed_groups(self) -> list[GroupView]:
        """Groups that only the name server knows: nobody elects there, and who is not registered is not seen."""
        names = [name for name in self._routes.groups() if name not in self._groups.decided().groups]
        return [_fixed_group(name, members) for name in names if (members := self._routes.members(name))]

    def _replica(self, group: Group, eligibility: Eligibility, now_ms: int) -> ReplicaView:
        broker_id = eligibility.broker_id
        replica = group.replicas[broker_id]
        beat = self._groups.table.get(group, broker_id)
        silence = self._groups.table.silence(group, broker_id)
        return ReplicaView(
            broker_id=broker_id,
            address=replica.address,
            ha_address=replica.ha_address or None,
            grpc_address=replica.grpc_address or None,
            alive=self._groups.table.is_alive(group, broker_id, now_ms),
            absence=self._groups.table.absence(group, broker_id, now_ms),
            in_sync=broker_id in group.sync_state_set,
            role=_role(broker_id == group.master_broker_id),
            epoch=beat.epoch if beat else None,
            max_offset=beat.max_offset if beat else None,
            confirm_offset=beat.confirm_offset if beat else None,
            last_heartbeat_ms=now_ms - beat.received_ms if beat else None,
            silence_limit_ms=silence.limit_ms if silence else None,
            longest_silence_ms=silence.worst_ms if silence else None,
            suspicion=round(silence.suspicion(now_ms), 1) if silence else None,
            eligible=eligibility.eligible,
            eligibility_reason=eligibility.reason,
            claimed_by=self._groups.table.claimed_by(group, broker_id, now_ms),
        )


def _role(is_master: bool) -> BrokerRole:
    return BrokerRole.MASTER if is_master else BrokerRole.REPLICA


def _fixed_group(name: str, members: Mapping[int, Registration]) -> GroupView:
    master = members.get(MASTER_ID)
    return GroupView(
        cluster_name=next(iter(members.values())).cluster,
        broker_name=name,
        kind=GroupKind.FIXED,
        master_broker_id=MASTER_ID if master is not None else None,
        master_epoch=master.data_version.state_version if master is not None else None,
        replicas=tuple(
            ReplicaView(
                broker_id=broker_id,
                address=each.address,
                ha_address=each.ha_address or None,
                grpc_address=each.grpc_address or None,
                alive=True,
                role=_role(broker_id == MASTER_ID),
                eligibility_reason="the roles of this group are fixed by its settings",
            )
            for broker_id, each in members.items()
        ),
    )


def _unclean(election: UncleanElection) -> UncleanElectionView:
    return UncleanElectionView(
        master_epoch=election.master_epoch,
        broker_id=election.broker_id,
        sync_state_set=tuple(election.sync_state_set),
        lost_bytes=election.lost_bytes,
        sentence=election.sentence,
        at_ms=election.at_ms,
    )
