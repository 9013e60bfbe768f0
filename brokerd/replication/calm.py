"""How often a broker looks at its clock: seldom while nothing is under way and nobody can be missed till then (pure)

An idle broker costs little more than its wake-ups. Each part says of itself whether it is calm: whether, for so many
milliseconds, no limit of its own can be reached. What happens in between ends the calm at once.
"""

from __future__ import annotations

from typing import Final

from brokerd.replication.settings import ReplicationSettings
from remoting.transport.beats import CALM_MS

TICK_MS: Final = 50

EARLY_MS: Final = TICK_MS // 2
"""What is said regularly is said when it is due in so long: the next look may be a whole interval away."""


def calm_tick_ms(settings: ReplicationSettings) -> int:
    """How far apart looks may be: heartbeats still go out in time."""
    longest_ms = min(CALM_MS, settings.heartbeat_ms, settings.controller_heartbeat_ms)
    return max(TICK_MS, longest_ms - longest_ms % TICK_MS)
