"""How far a table reflects the topic that it is kept in.

It stands apart from the journal, which needs the log: so that whoever the log itself is opened with can look at the table.
"""

from __future__ import annotations

from brokerd.journal.replay import Position, Table
from brokerd.journal.reread import Reread


class Reading:
    """A table, its topic, and what the journal has read of it; make it first, and hand it to the journal."""

    def __init__(self, topic: str, table: Table) -> None:
        self.topic = topic
        self.table = table
        self.position = Position(0, 0)
        self.reread: Reread | None = None  # under way; the table is what it was before

    @property
    def applied_offset(self) -> int:
        """The table reflects every record that ends at or below this physical offset."""
        return self.position.applied_offset

    @property
    def is_under_way(self) -> bool:
        """Whether the table is what it was before the log was read again, which is not done yet."""
        return self.reread is not None
