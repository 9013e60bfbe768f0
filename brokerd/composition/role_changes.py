"""What a change of this broker's role means for what lives on its log: one table, from each role to each (pure).

Only a master appends, so only two changes mean something: to begin to lead, and to end it. A promoting broker settles its log,
and is no master yet; a master that is told that it is one again leads another epoch, which ends the one before.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from brokerd.replication.roles.effects import Role


class Step(Enum):
    """What is done with the store, or with all residents of the log (`journal.resident`)."""

    CATCH_UP = "the residents apply all that the log holds"
    TAKE_APPENDS = "the store takes messages"
    LEAD = "the residents lead"
    REFUSE_APPENDS = "the store takes no messages any more"
    STEP_DOWN = "the residents step down"
    REBUILD = "the residents are read from the log again: what this broker appended may be cut"


_BEGIN: Final = (Step.CATCH_UP, Step.TAKE_APPENDS, Step.LEAD)
_END: Final = (Step.REFUSE_APPENDS, Step.STEP_DOWN, Step.REBUILD)

ROLE_CHANGES: Final[Mapping[tuple[Role, Role], tuple[Step, ...]]] = {
    (Role.FENCED, Role.FENCED): (),
    (Role.FENCED, Role.PROMOTING): (),
    (Role.FENCED, Role.REPLICA): (),
    (Role.FENCED, Role.MASTER): _BEGIN,
    (Role.PROMOTING, Role.FENCED): (),
    (Role.PROMOTING, Role.PROMOTING): (),
    (Role.PROMOTING, Role.REPLICA): (),
    (Role.PROMOTING, Role.MASTER): _BEGIN,
    (Role.REPLICA, Role.FENCED): (),
    (Role.REPLICA, Role.PROMOTING): (),
    (Role.REPLICA, Role.REPLICA): (),
    (Role.REPLICA, Role.MASTER): _BEGIN,
    (Role.MASTER, Role.FENCED): _END,
    (Role.MASTER, Role.PROMOTING): _END,
    (Role.MASTER, Role.REPLICA): _END,
    (Role.MASTER, Role.MASTER): _END + _BEGIN,
}
