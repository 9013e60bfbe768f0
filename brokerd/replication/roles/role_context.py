"""What the role machine lends to the object of its present role, a mastership or a followership (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from brokerd.replication.epochs.epoch_list import EpochList
from brokerd.replication.log import LogPosition
from brokerd.replication.roles.effects import Effect
from brokerd.replication.settings import ReplicationSettings


@dataclass(frozen=True, slots=True)
class RoleContext:
    """`epochs`, `log` and `outbox` are the machine's own: a role changes them, and appends its effects."""

    settings: ReplicationSettings
    self_id: int  # -1: without an id, which only a copy of a classic master is
    epochs: EpochList
    log: LogPosition
    outbox: list[Effect]
    epoch_is_new: bool = False  # no life of this broker knew the epoch of the role before
