"""The header fields of what a broker says to its controllers (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from brokerd.replication.controllers.identity import Registration
from brokerd.replication.controllers.session import BrokerNames
from brokerd.replication.roles.role_machine import RoleMachine
from brokerd.replication.settings import ReplicationSettings


@dataclass(slots=True)
class Speaker:
    """The broker that speaks. `incarnation` differs from start to start; `tail_kept` is false when recovery may have left less
    than was acknowledged."""

    names: BrokerNames
    registration: Registration
    incarnation: int
    machine: RoleMachine
    tail_kept: bool = True


class RequestFields:
    """Fields by the kind of request; wall time is only told, and decides nothing."""

    def __init__(self, settings: ReplicationSettings, speaker: Speaker) -> None:
        self._settings = settings
        self._speaker = speaker

    def group(self) -> dict[str, str]:
        names = self._speaker.names
        return {"clusterName": names.cluster, "brokerName": names.broker_name}

    def application(self) -> dict[str, str]:
        """For the broker id that was chosen."""
        choice = self._speaker.registration.choice
        assert choice is not None
        return self.group() | {"appliedBrokerId": str(choice.broker_id), "registerCheckCode": choice.check_code}

    def registration(self, wall_ms: int) -> dict[str, str]:
        return self._group_and_id() | {
            "brokerAddress": self._speaker.names.address,
            "invokeTime": str(wall_ms),
            "maxOffset": str(self._speaker.machine.log.end_offset),
            **self._own(),
        }

    def alteration(self, master_epoch: int, wall_ms: int) -> dict[str, str]:
        """Of the sync-state set, by the master of this epoch."""
        return {
            "brokerName": self._speaker.names.broker_name,
            "masterBrokerId": str(self._speaker.registration.broker_id),
            "masterEpoch": str(master_epoch),
            "invokeTime": str(wall_ms),
        }

    def election(self, wall_ms: int) -> dict[str, str]:
        return self._group_and_id() | {"designateElect": "false", "invokeTime": str(wall_ms), **self._own()}

    def heartbeat(self) -> dict[str, str]:
        settings, machine = self._settings, self._speaker.machine
        return self._group_and_id() | {
            "brokerAddr": self._speaker.names.address,
            "epoch": str(machine.epochs.last_epoch),
            "maxOffset": str(machine.log.end_offset),
            "confirmOffset": str(max(machine.confirm_offset, 0)),
            "heartbeatIntervalMills": str(settings.controller_heartbeat_ms),
            "heartbeatTimeoutMills": str(settings.controller_heartbeat_timeout_ms),
            "electionPriority": str(settings.election_priority),
            **self._own(),
        }

    def _group_and_id(self) -> dict[str, str]:
        return self.group() | {"brokerId": str(self._speaker.registration.broker_id)}

    def _own(self) -> dict[str, str]:
        """What the original's requests do not carry: where this broker is reached, which life of it speaks, and the highest
        master epoch that it has persisted (a controller that lost its data must go on above it)."""
        speaker = self._speaker
        fields = {
            "haAddress": speaker.names.ha_address,
            "grpcAddress": speaker.names.grpc_address,
            "incarnation": str(speaker.incarnation),
            "highestMasterEpoch": str(speaker.machine.highest_epoch),
        }
        if self._settings.learner:
            fields["learner"] = "true"
        if not speaker.tail_kept:
            fields["tailKept"] = "false"
        return fields
