"""The rules of Raft, one broken at a time, each with the shortest story that finds it.

They are in `tests/unit/controllerd/raft/broken_rules.py`, and looked for there, too.
"""

from __future__ import annotations

from typing import Final

from tests.sim.mutants import Mutant, scenario
from tests.unit.controllerd.raft.broken_rules import BROKEN_RULES

MUTANTS: Final = tuple(
    Mutant(each.name, each.window, each.what, each.patches, scenario(each.story), within=1) for each in BROKEN_RULES
)
