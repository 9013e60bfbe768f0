"""What must hold whatever peers and disks say: asserted where it is stated, so that a mistake of ours ends the process (pure)."""

from __future__ import annotations


def monotonic(old: int, new: int, what: str) -> int:
    """`new`, which is never below `old`: a position or an epoch that only grows. Never for what a peer or a disk said."""
    assert new >= old, f"{what} fell from {old} to {new}"
    return new
