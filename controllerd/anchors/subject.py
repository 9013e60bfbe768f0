"""Anchors in the controllers' log (pure)

What holds: a chain's anchor only goes forward. One that is not behind the present one, and not the same, is refused, unless it
is to begin anew, which stays visible.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from controllerd.records.decision import Decision, answered, refused
from controllerd.records.subject import Format
from remoting import codes
from remoting.facts.anchors import Anchor
from remoting.facts.codec import read

LEVEL: Final = 3  # controllers of a lower feature level know nothing of anchors
MAX_CHAINS: Final = 64

_CHAIN: Final = re.compile(r"[a-z0-9-]{1,40}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_MAX_NUMBER: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class AnchorsState:
    """By chain."""

    anchors: Mapping[str, Anchor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KeepAnchor:
    """A request: a chain has come so far; `anew` puts it in the place of an anchor that it does not continue."""

    chain: str
    sequence: int
    digest: str
    at_ms: int
    anew: bool = False


@dataclass(frozen=True, slots=True)
class AnchorKept:
    """A record."""

    chain: str
    anchor: Anchor


FORMATS: Final[tuple[Format[Any], ...]] = (
    Format("anchor_kept", AnchorKept, lambda record: record, partial(read, AnchorKept, exactly=True), level=LEVEL),
)


def decide(state: AnchorsState, request: KeepAnchor) -> Decision[AnchorKept]:
    if fault := _fault(state, request):
        return refused(codes.CONTROLLER_INVALID_REQUEST, fault)
    present = state.anchors.get(request.chain)
    if present is None:
        return _kept(request, 0, "")
    if (present.sequence, present.digest) == (request.sequence, request.digest):
        return answered("it is there already")
    if request.sequence > present.sequence and not request.anew:
        return _kept(request, present.begun_anew, present.before_that)
    if request.anew:
        return _kept(request, present.begun_anew + 1, f"{present.sequence} {present.digest} {present.at_ms}")
    return refused(
        codes.CONTROLLER_INVALID_REQUEST,
        f"the chain {request.chain} had come to {present.sequence} before, and {request.sequence} is not behind that",
    )


def apply(state: AnchorsState, record: AnchorKept) -> AnchorsState:
    return AnchorsState({**state.anchors, record.chain: record.anchor})


def _kept(request: KeepAnchor, begun_anew: int, before_that: str) -> Decision[AnchorKept]:
    anchor = Anchor(request.sequence, request.digest, request.at_ms, begun_anew, before_that)
    return Decision((AnchorKept(request.chain, anchor),))


def _fault(state: AnchorsState, request: KeepAnchor) -> str:
    if not _CHAIN.fullmatch(request.chain):
        return "a chain's name has 1 to 40 characters of a-z, 0-9 and -"
    if not _DIGEST.fullmatch(request.digest):
        return "a digest is 64 hexadecimal digits"
    if not (0 < request.sequence < _MAX_NUMBER and 0 <= request.at_ms < _MAX_NUMBER):
        return "an anchor's number and time are positive"
    if request.chain not in state.anchors and len(state.anchors) >= MAX_CHAINS:
        return f"there are {MAX_CHAINS} chains already, and no room for another one"
    return ""
