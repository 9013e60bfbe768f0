"""The placements of all topics, as the controllers agreed on them (pure)"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from remoting.facts.placements import TopicPlacement


@dataclass(frozen=True, slots=True)
class PlacementsState:
    """By topic; one without a placement in force and without a proposal is not there.

    `revision` grows with every record, `last_version` with every proposal; a topic was last forgotten at revision `forgotten`.
    """

    topics: Mapping[str, TopicPlacement] = field(default_factory=dict)
    revision: int = 0
    last_version: int = 0
    forgotten: int = 0
