"""The seeds of stories that once broke a promise, from `regressions.txt`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

# Moods that stand for a kind of story
LIGHT: Final = "light"
TIMERS: Final = "timers"  # light ones of timers
DRAWN: Final = "drawn"  # whole clusters, with the mood and the ingredients that the seed draws
EAGER: Final = "eager"  # the same, with a heartbeat of the controllers' leader in each tick of Raft
RESTING: Final = "resting"  # the same as drawn, of brokers that look at their clocks seldom while nothing is under way
_FILE: Final = Path(__file__).with_name("regressions.txt")


def regressions() -> list[tuple[int, str]]:
    """Seeds with their moods: `seed mood why`, one a line."""
    found = []
    for line in _FILE.read_text().splitlines():
        if line and not line.startswith("#"):
            seed, mood, _ = line.split(maxsplit=2)
            found.append((int(seed), mood))
    return found
