"""Anchors as controllers and the console tell each other of them (pure)

An anchor says how far a chain of records that is kept elsewhere had come, and what it ended with. Whoever changes or cuts that
chain later cannot change its anchor, which the controllers agreed on.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Anchor:
    """Of one chain: its last record's number and digest then, and when that was (ms since 1970).

    `begun_anew` counts how often somebody put an anchor in the place of one that did not fit; `before_that` says what the last
    one of these was.
    """

    sequence: int
    digest: str
    at_ms: int
    begun_anew: int = 0
    before_that: str = ""
