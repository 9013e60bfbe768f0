"""The header fields of what a broker says to its controllers (pure)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from brokerd.replication.controllers.identity import Lives, Registration
from brokerd.replication.controllers.session import BrokerNames
from brokerd.replication.roles.role_machine import RoleMachine
from remoting.facts.words import DiskPace


@dataclass(slots=True)
class Speaker:
    """The broker that speaks, and the fields that it says by the kind of request. Wall time is only told, and decides nothing.

    `incarnation` differs from start to start; `tail_kept` is false when recovery may have left less than was acknowledged, and
    `lost_confirmed` is then how far the log was known to be confirmed (-1: nothing says so). `judged_listeners` hear when the
    controllers have decided without that log. `has_room` tells whether the disk takes messages (None: nobody asks it).
    `lives` of the directory tell a process on a copy of it from the next life.
    """

    names: BrokerNames
    registration: Registration
    incarnation: int
    machine: RoleMachine
    tail_kept: bool = True
    lost_confirmed: int = -1
    judged_listeners: list[Callable[[], None]] = field(default_factory=list)
    has_room: Callable[[], bool] | None = None
    lives: Lives | None = None

    @property
    def lacks_confirmed(self) -> bool:
        """Whether the log certainly lacks what was acknowledged."""
        return not self.tail_kept and self.lost_confirmed > self.machine.log.end_offset

    @property
    def disk_pace(self) -> DiskPace:
        """How the log becomes durable. Of a master whose disk stands, that it is slow, while a member of the set lacks what was
        acknowledged, which may be with `all_ack_in_sync_state_set=false`: should that one be elected, it would be cut."""
        pace, mastership = self.machine.disk.pace, self.machine.mastership
        lacks_some = mastership is not None and mastership.acknowledged_offset > mastership.confirm_offset
        return DiskPace.SLOW if lacks_some and pace is DiskPace.STANDS else pace

    def tail_judged(self) -> None:
        """The sync-state set is without this broker, and others have everything that was acknowledged."""
        self.tail_kept = True
        for listener in self.judged_listeners:
            listener()

    def runs_elsewhere(self) -> None:
        """The directory has never seen the life which is counted as the member that this broker is: what that one acknowledged
        may be missing here, whatever the log itself tells."""
        self.tail_kept = False

    def group_fields(self) -> dict[str, str]:
        return {"clusterName": self.names.cluster, "brokerName": self.names.broker_name}

    def application_fields(self) -> dict[str, str]:
        """For the broker id that was chosen."""
        choice = self.registration.choice
        assert choice is not None
        return self.group_fields() | {"appliedBrokerId": str(choice.broker_id), "registerCheckCode": choice.check_code}

    def registration_fields(self, wall_ms: int) -> dict[str, str]:
        return self._group_and_id() | {
            "brokerAddress": self.names.address,
            "invokeTime": str(wall_ms),
            "maxOffset": str(self.machine.log.end_offset),
            **self._own(),
        }

    def alteration_fields(self, master_epoch: int, wall_ms: int) -> dict[str, str]:
        """Of the sync-state set, by the master of this epoch."""
        return {
            "brokerName": self.names.broker_name,
            "masterBrokerId": str(self.registration.broker_id),
            "masterEpoch": str(master_epoch),
            "invokeTime": str(wall_ms),
        }

    def election_fields(self, wall_ms: int) -> dict[str, str]:
        return self._group_and_id() | {"designateElect": "false", "invokeTime": str(wall_ms), **self._own()}

    def heartbeat_fields(self) -> dict[str, str]:
        machine, settings = self.machine, self.machine.settings
        room = {} if self.has_room is None else {"hasRoom": "true" if self.has_room() else "false"}
        return self._group_and_id() | {
            "brokerAddr": self.names.address,
            "epoch": str(machine.epochs.last_epoch),
            "maxOffset": str(machine.log.end_offset),
            "confirmOffset": str(max(machine.confirm_offset, 0)),
            "heartbeatIntervalMills": str(settings.controller_heartbeat_ms),
            "heartbeatTimeoutMills": str(settings.controller_heartbeat_timeout_ms),
            "electionPriority": str(settings.election_priority),
            **room,
            **self._disk(),
            **self._own(),
        }

    def _group_and_id(self) -> dict[str, str]:
        return self.group_fields() | {"brokerId": str(self.registration.broker_id)}

    def _disk(self) -> dict[str, str]:
        """How the log becomes durable, where somebody waits for that."""
        settings = self.machine.settings
        says = settings.ack_after_flush and settings.disk_stands_ms
        return {"disk": self.disk_pace.value} if says else {}

    def _own(self) -> dict[str, str]:
        """What the original's requests do not carry: where this broker is reached, which life of it speaks, and the highest
        master epoch that it has persisted (a controller that lost its data must go on above it)."""
        fields = {
            "haAddress": self.names.ha_address,
            "grpcAddress": self.names.grpc_address,
            "incarnation": str(self.incarnation),
            "highestMasterEpoch": str(self.machine.highest_epoch),
        }
        if self.lives is not None:
            fields["lives"] = " ".join(map(str, self.lives.all))
        if self.machine.settings.learner:
            fields["learner"] = "true"
        if not self.tail_kept:
            fields["tailKept"] = "false"
            if self.lost_confirmed >= 0:
                fields["lostConfirmedOffset"] = str(self.lost_confirmed)
        return fields
