"""Which formats of records the controllers may write: the feature level that they agreed on (pure)

Records of a level are written only when every member is known to read them, so none is committed that a member has to stop at.
The level is itself a record: what is behind it in the log was written at it, what is before was not. It never goes back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from controllerd.records.decision import Decision, answered
from controllerd.records.subject import FIRST_LEVEL, Format, plain


@dataclass(frozen=True, slots=True)
class Features:
    level: int = FIRST_LEVEL


@dataclass(frozen=True, slots=True)
class RaiseLevel:
    """`supported`: the highest level that each member says it reads."""

    supported: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LevelRaised:
    """From the next entry on, records may be of this level."""

    level: int


FORMATS: Final[tuple[Format[Any], ...]] = (plain("level_raised", LevelRaised),)


def decide(state: Features, request: RaiseLevel) -> Decision[LevelRaised]:
    """The highest level that all of them read."""
    level = min(request.supported, default=0)
    return Decision((LevelRaised(level),)) if level > state.level else answered(f"the level is {state.level} already")


def apply(_state: Features, record: LevelRaised) -> Features:
    return Features(record.level)
