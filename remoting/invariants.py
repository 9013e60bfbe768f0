"""What must hold whatever peers and disks say: asserted where it is stated, so that a mistake of ours ends the process (pure)."""

from __future__ import annotations


def monotonic(old: int, new: int, what: str) -> int:
    """`new`, which is never below `old`: a position or an epoch that only grows. Never for what a peer or a disk said."""
    assert new >= old, f"{what} fell from {old} to {new}"
    return new


def what_broke(error: BaseException) -> str:
    """An unexpected error in a line, for who finds the process ended. An assertion without words is told by its place."""
    place = error.__traceback__
    if str(error) or place is None:
        return str(error) or type(error).__name__
    while place.tb_next is not None:
        place = place.tb_next
    code = place.tb_frame.f_code
    return (
        f"{type(error).__name__} in {code.co_qualname}, line {place.tb_lineno} of {code.co_filename.rpartition('/')[2]}"
    )
