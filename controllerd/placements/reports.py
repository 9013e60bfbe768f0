"""What brokers said of placements lately: which know of them, and which topics the masters have (pure)

Soft: whoever leads anew hears it within a second or two. Brokers of releases without placements say nothing, and their groups are
not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from controllerd.placements.compare import Told
from controllerd.replicas.state import Group

FRESH_MS: Final = 5000  # a master reports every second


@dataclass(frozen=True, slots=True)
class _Report:
    """A master's last; `table` is its number of these topics."""

    epoch: int
    table: int
    topics: Mapping[str, int]
    heard_ms: int


class Reports:
    """Times are milliseconds on one monotonic clock."""

    def __init__(self) -> None:
        self._knowing: set[tuple[str, int]] = set()  # brokers that know of placements
        self._masters: dict[str, _Report] = {}

    def heard(self, broker_name: str, broker_id: int) -> None:
        """A broker that knows of placements is there."""
        self._knowing.add((broker_name, broker_id))

    def told(self, broker_name: str, epoch: int, table: int, topics: Mapping[str, int] | None, now_ms: int) -> bool:
        """A master's report; without topics they are those of the same epoch and table. Whether they are known."""
        before = self._masters.get(broker_name)
        if before is not None and epoch < before.epoch:
            return True
        is_same = before is not None and (before.epoch, before.table) == (epoch, table)
        if topics is None:
            if before is None or not is_same:
                return False
            topics = before.topics
        self._masters[broker_name] = _Report(epoch, table, topics, now_ms)
        return True

    def summary(
        self, groups: Mapping[str, Group], fixed: Iterable[str], is_alive: Callable[[Group, int], bool], now_ms: int
    ) -> Told:
        """What may be compared now. `fixed` are the names of groups without controllers, which have no placements."""
        counted = {name: report.topics for name, group in groups.items() if (report := self._of(group, now_ms))}
        silent = [
            name
            for name, group in groups.items()
            if name not in counted and group.master_broker_id is not None and is_alive(group, group.master_broker_id)
        ]
        return Told(counted, groups.keys(), not silent and groups.keys() >= set(fixed))

    def _of(self, group: Group, now_ms: int) -> _Report | None:
        """Its master's report, if that is fresh and all who could take its place know of placements."""
        report = self._masters.get(group.broker_name)
        if report is None or report.epoch != group.master_epoch or now_ms - report.heard_ms > FRESH_MS:
            return None
        if any((group.broker_name, broker_id) not in self._knowing for broker_id in group.sync_state_set):
            return None
        return report
