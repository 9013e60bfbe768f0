"""What only some stories have, drawn from the seed: each would make every story longer, and is as good beside few others.

An ingredient is a class of a module of its own, made with the cluster. It begins when the faults do and ends before they are
healed; the cluster settles when it has, and its own verdict comes with the checks at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Final, Protocol

from tests.sim.fixed_roles import FixedGroup
from tests.sim.lent_groups import BESIDE, LentGroup
from tests.sim.mortals import Mortals
from tests.sim.older_directories import NAME as OLDER_DIRECTORIES
from tests.sim.older_directories import OlderDirectories
from tests.sim.ordered_groups import OrderedGroups
from tests.sim.originals import Originals
from tests.sim.resets import Resets
from tests.sim.side_group import SecondGroup
from tests.sim.stowed_timers import STOWED_TIMERS, StowedTimers
from tests.sim.through_replicas import ThroughReplicas
from tests.sim.tiered import TIERED, Tiered
from tests.sim.timer_checks import Timed
from tests.sim.twins import Twins

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster


class Addition(Protocol):
    """One ingredient in one story."""

    def begin(self) -> None:
        """The cluster has a master, and its clients work."""

    def end(self) -> None:
        """Begin nothing any more: everything is about to be healed."""

    def is_settled(self) -> bool:
        """Whether it has come to rest after that."""

    def check(self) -> None:
        """Raise Violation unless what it promises was kept."""


INGREDIENTS: Final[dict[str, Callable[[SimCluster], Addition]]] = {
    "copied directories": Twins,
    "lease holders that die": Mortals,
    "fixed roles": FixedGroup,
    "gRPC through replicas": ThroughReplicas,
    "message groups": OrderedGroups,
    "offset resets": Resets,
    "replica of the original": Originals,
    "second group": SecondGroup,
    TIERED: Tiered,
    "timers": Timed,
    STOWED_TIMERS: StowedTimers,
    OLDER_DIRECTORIES: OlderDirectories,
    BESIDE: LentGroup,
}
_SHARES: Final = {
    "copied directories": 0.12,
    "second group": 0.12,
    "lease holders that die": 0.15,
    "fixed roles": 0.12,
    "gRPC through replicas": 0.15,
    "offset resets": 0.15,
    "replica of the original": 0.1,
    "message groups": 0.12,
    "timers": 0.15,
    TIERED: 0.12,
    STOWED_TIMERS: 0.08,
    OLDER_DIRECTORIES: 0.15,
    BESIDE: 0.12,
}
# These read what only the log has: they would have to be told of the tier.
_READ_THE_LOG: Final = frozenset({"offset resets", "replica of the original", "timers"})
# The one has copies that only what controllers heard could tell, in the others brokers share what a directory only refers to.
_NOT_BESIDE_OLDER_DIRECTORIES: Final = frozenset({"copied directories", TIERED, STOWED_TIMERS})
# Where one disk is damaged the others must be there, and nothing else may go wrong with them.
_NOT_IN: Final = frozenset({"rot", "decay", "memory"})


def draw_ingredients(rng: Random, mood: str) -> frozenset[str]:
    """Those of a story."""
    drawn = frozenset(name for name, share in _SHARES.items() if rng.random() < share)
    if STOWED_TIMERS in drawn:
        drawn -= {TIERED}  # it is one
    if not drawn.isdisjoint({TIERED, STOWED_TIMERS}):
        drawn -= _READ_THE_LOG
    if not drawn.isdisjoint(_NOT_BESIDE_OLDER_DIRECTORIES):
        drawn -= {OLDER_DIRECTORIES}
    return frozenset() if mood in _NOT_IN else drawn
