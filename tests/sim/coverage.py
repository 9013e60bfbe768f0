"""What stories reached: which faults came close to which change of role, and in which states of the group they came (pure).

A story that survives proves little when nothing happened at the moments that matter. So everything that changes who leads, who
must have a message, or what a disk holds is noted with its time, and so is every fault; a pair is a fault and a change that were
less than `NEAR_MS` apart. `table` prints what many stories did, and `missing` says which pairs were hardly seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

NEAR_MS: Final = 400.0

Pair = tuple[str, str]  # (change, fault)


class Moment(NamedTuple):
    at_ms: float
    kind: str


class Coverage:
    """The moments of one story."""

    def __init__(self, near_ms: float = NEAR_MS) -> None:
        self._near_ms = near_ms
        self._changes: list[Moment] = []
        self._faults: list[Moment] = []
        self.beside: Counter[str] = Counter()  # what was done while the end of a log was lent (`lent_groups`)

    def changed(self, kind: str, now_ms: float) -> None:
        """A role, a set or a file changed; times never go back."""
        self._changes.append(Moment(now_ms, kind))

    def fault(self, kind: str, now_ms: float) -> None:
        self._faults.append(Moment(now_ms, kind))

    @property
    def changes(self) -> Counter[str]:
        return Counter(each.kind for each in self._changes)

    @property
    def pairs(self) -> Counter[Pair]:
        """How many faults of each kind had a change of each kind near them."""
        near: Counter[Pair] = Counter()
        for fault in self._faults:
            kinds = {each.kind for each in self._changes if abs(each.at_ms - fault.at_ms) <= self._near_ms}
            near.update((kind, fault.kind) for kind in kinds)
        return near


def missing(pairs: Counter[Pair], changes: Iterable[str], faults: Iterable[str], least: int) -> list[Pair]:
    """The pairs that were seen less often than that."""
    known = sorted(faults)
    return [(change, fault) for change in sorted(changes) for fault in known if pairs[change, fault] < least]


def table(pairs: Counter[Pair], changes: Sequence[str], faults: Sequence[str]) -> str:
    """A line for each fault, a column for each change of role."""
    first = max(map(len, faults), default=0)
    lines = [" " * first + "".join(f"  {change:>{_width(change)}}" for change in changes)]
    for fault in faults:
        cells = (f"  {pairs[change, fault]:>{_width(change)}}" for change in changes)
        lines.append(f"{fault:{first}}" + "".join(cells))
    return "\n".join(lines)


def _width(title: str) -> int:
    return max(6, len(title))
