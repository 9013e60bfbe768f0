"""How long topics want their messages in the broker's files, as their attributes say.

`local.reserve.time` is hours, -1 for the broker's own `retention.reserved_time_ms`, which a lower value does not shorten: a file
of the log has messages of other topics, too. It needs no tier. Topics of the system do not count: the broker keeps what it needs
of them itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from brokerd.metadata.tables import Change, MetadataTables
from brokerd.metadata.tier_policy import hours_of, problem_of_hours
from brokerd.store.settings import HOUR_MS
from brokerd.store.wanted_files import Wish, Wishes
from remoting.names import is_system_topic

RESERVE_TIME: Final = "local.reserve.time"


def reserved_hours(attributes: Mapping[str, str]) -> int:
    """For how many hours at least; -1 = as the broker says."""
    return hours_of(attributes, RESERVE_TIME)


def problem_of(key: str, value: str) -> str | None:
    """What the attribute's value must be, when it is not that; None when it is right, or the key is another one."""
    return problem_of_hours(value) if key == RESERVE_TIME else None


class TopicWishes:
    """What the topics of a broker's tables want, for its store."""

    def __init__(self, tables: MetadataTables) -> None:
        self._tables = tables
        self._known: Wishes | None = None

    def metadata_changed(self, change: Change) -> None:
        """The metadata read or made a record."""
        if change.touches_topics:
            self._known = None

    def now(self) -> Wishes:
        """Of the topics that have the attribute."""
        if self._known is None:
            deleted_at = self._tables.topics_deleted_at
            self._known = {
                name: Wish(hours * HOUR_MS, deleted_at.get(name, 0))
                for name, topic in self._tables.topics.items()
                if RESERVE_TIME in topic.attributes
                and (hours := reserved_hours(topic.attributes)) > 0
                and not is_system_topic(name)
            }
        return self._known
