"""Topics, groups and consumer offsets of a mounted broker group, as the first records of the mount's own log (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from brokerd.metadata import records
from brokerd.metadata.configs import PERM_WRITE, TopicConfig
from brokerd.metadata.names import SystemNames
from brokerd.metadata.tables import MetadataTables
from brokerd.tiers.mounting.group import MountedGroup
from remoting.names import is_brokers_topic
from remoting.tier.contents import TierContents

TAKEN_OVER: Final = "mount"  # in the place of a digest of files
_ROWS_PER_RECORD: Final = 2000
_READABLE: Final = 4


def state_rows(
    tables: MetadataTables, offsets: Mapping[tuple[str, str], Mapping[int, int]], names: SystemNames
) -> list[list[Any]]:
    """What a mount needs of a broker's tables. `offsets` are those of pulling and popping consumers."""
    rows: list[list[Any]] = [["t", records.encode_topic(tables.topics[name])] for name in sorted(tables.topics)]
    rows += [["g", records.encode_group(tables.groups[name])] for name in sorted(tables.groups)]
    rows += [["f", *key] for key in sorted(tables.rules.forbidden)]
    rows += [
        ["o", group, topic, [[queue_id, queues[queue_id]] for queue_id in sorted(queues)]]
        for (group, topic), queues in sorted(offsets.items())
        if queues and not names.is_system_group(group) and not is_brokers_topic(topic)
    ]
    return rows


def mount_records(group: MountedGroup, names: SystemNames, now_ms: int) -> Sequence[records.Record]:
    """What makes empty tables those of the mounted group, every topic without the right to write: queues that begin where the
    tier ends, then all else."""
    ends = {(queue.topic, queue.queue_id): segments.end for queue, segments in group.contents.queues.items()}
    rows = [*_topics(group, names), *_others(group, names, ends)]
    parts = [rows[first : first + _ROWS_PER_RECORD] for first in range(0, len(rows), _ROWS_PER_RECORD)] or [[]]
    queues = sorted(ends.items())
    emptied = [queues[first : first + _ROWS_PER_RECORD] for first in range(0, len(queues), _ROWS_PER_RECORD)]
    last = len(parts) - 1
    return [
        *(records.queues_emptied(dict(part), now_ms) for part in emptied),
        *(
            records.record(records.TAKEN_OVER, now_ms, rows=part, digest=TAKEN_OVER if number == last else "")
            for number, part in enumerate(parts)
        ),
    ]


def _topics(group: MountedGroup, names: SystemNames) -> Iterator[list[Any]]:
    """As they were; one whose messages are there, and of which nobody says more, is readable."""
    counts = _queue_counts(group.contents)
    for row in group.rows:
        if row[0] == "t":
            config = records.decode_topic(row[1])
            if config.name in names.topics or is_brokers_topic(config.name):
                continue
            count = max(config.read_queue_nums, counts.pop(config.name, 0))
            yield ["t", {**row[1], "perm": config.perm & ~PERM_WRITE, "r": count}]
    for topic, count in sorted(counts.items()):
        if topic not in names.topics and not is_brokers_topic(topic):
            yield ["t", records.encode_topic(TopicConfig(topic, count, count, _READABLE))]


def _others(group: MountedGroup, names: SystemNames, ends: Mapping[tuple[str, int], int]) -> Iterator[list[Any]]:
    for row in group.rows:
        match row:
            case ["g", {"name": str(name)}] if not names.is_system_group(name):
                yield row
            case ["f", str(), str()]:
                yield row
            case ["o", str(name), str(topic), list(queues)]:
                yield ["o", name, topic, list(_within(queues, topic, ends))]


def _within(
    queues: Iterable[Sequence[int]], topic: str, ends: Mapping[tuple[str, int], int]
) -> Iterator[tuple[int, int]]:
    """No further than what is there: what was consumed behind it was never uploaded."""
    for queue_id, offset in queues:
        yield queue_id, min(offset, ends.get((topic, queue_id), 0))


def _queue_counts(contents: TierContents) -> dict[str, int]:
    counts: dict[str, int] = {}
    for queue in contents.queues:
        counts[queue.topic] = max(counts.get(queue.topic, 0), queue.queue_id + 1)
    return counts
