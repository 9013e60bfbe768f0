"""What exported files are called, and which offsets they have between them (pure).

    export/<topic>/date=YYYY-MM-DD/<queue id>-<first>-<end>.parquet

below the broker group's directory. A file has the messages `[first, end)` of the queue, all stored on that day (UTC). What was
exported is known by listing; nothing else says it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from remoting.tier import names
from remoting.tier.contents import Queue

DIRECTORY: Final = names.EXPORTS
DAY_MS: Final = 86_400_000
_NAME: Final = re.compile(r"export/([^/]+)/date=(\d{4}-\d\d-\d\d)/(\d{1,10})-(\d{1,19})-(\d{1,19})\.parquet")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class ExportFile(NamedTuple):
    """One of them."""

    queue: Queue
    first: int
    end: int
    date: str

    @property
    def name(self) -> str:
        """Below the group's directory."""
        return (
            f"{directory_of(self.queue.topic)}/date={self.date}/{self.queue.queue_id}-{self.first}-{self.end}.parquet"
        )


def directory_of(topic: str) -> str:
    """Where a topic's files are."""
    return f"{DIRECTORY}/{topic}"


def parse(name: str) -> ExportFile | None:
    """None for what is no exported file, such as one of a store that is still being written."""
    found = _NAME.fullmatch(name)
    if found is None or int(found[4]) >= int(found[5]):
        return None
    return ExportFile(Queue(found[1], int(found[3])), int(found[4]), int(found[5]), found[2])


def date_of(store_ms: int) -> str:
    """The day, as it is in names."""
    return (_EPOCH + timedelta(milliseconds=store_ms)).strftime("%Y-%m-%d")


def by_queue(names: Iterable[str]) -> dict[Queue, list[ExportFile]]:
    """The files of each queue, by their offsets; of two that begin alike the longer one first."""
    found: dict[Queue, list[ExportFile]] = {}
    for each in map(parse, names):
        if each is not None:
            found.setdefault(each.queue, []).append(each)
    for files in found.values():
        files.sort(key=lambda each: (each.first, -each.end))
    return found


def disjoint(files: Iterable[ExportFile]) -> Iterator[ExportFile]:
    """Those of a queue that have no message of one before."""
    end = 0
    for each in files:
        if each.first >= end:
            yield each
            end = each.end
