"""What may be asked about placements (pure)"""

from __future__ import annotations

from dataclasses import dataclass

from remoting.facts.placements import ShareFact


@dataclass(frozen=True, slots=True)
class Propose:
    """Another placement than that of version `basis` (0: there is none). `voters` have to prepare for it."""

    topic: str
    basis: int
    shares: tuple[ShareFact, ...]
    voters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Prepare:
    """The master of a broker group has prepared for a proposal, and whoever leads that group later knows it."""

    topic: str
    version: int
    broker_name: str


@dataclass(frozen=True, slots=True)
class Abort:
    """Not all have prepared in time."""

    topic: str
    version: int


@dataclass(frozen=True, slots=True)
class Drop:
    """No broker group has the topic any more."""

    topic: str


Request = Propose | Prepare | Abort | Drop
