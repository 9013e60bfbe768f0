"""Settings of the scrubber (`--set scrub.key=value`)."""

from __future__ import annotations

from dataclasses import dataclass

from brokerd.store.settings import HOUR_MS
from remoting.settings import check, setting


@dataclass(frozen=True, slots=True)
class ScrubSettings:
    """How fast the log and what is derived from it are read again, to find what the disk has changed since."""

    bytes_per_s: int = setting(
        1 << 20,
        "most log bytes that are looked at again in a second; 0: only what a reader finds damaged is repaired",
        minimum=0,
        maximum=1 << 32,
        live=True,
    )
    round_ms: int = setting(
        24 * HOUR_MS,
        "a round over the whole log begins so long after the last one began, or when that has ended",
        minimum=1000,
        maximum=8760 * HOUR_MS,
        live=True,
    )

    def __post_init__(self) -> None:
        check("scrub", self)
