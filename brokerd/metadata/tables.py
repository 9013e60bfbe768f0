"""Topics, consumer groups and consumer offsets as the log has them (pure).

`apply` of a record is the only change, and fails only for a record of an unknown kind; deciding whether a change is legal is
decide.py's. The master applies a record when it appended it, a replica when it is dispatched, so the tables are equal at equal
log positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from brokerd.metadata import records
from brokerd.metadata.configs import GroupConfig, TopicConfig
from brokerd.metadata.consumer_rules import ConsumerRules


@dataclass(frozen=True, slots=True)
class Change:
    """What a record changed, for those who derive something from the tables.

    `position` is the physical end of the record: messages of a deleted topic that lie below it are gone, later ones belong to a
    new topic of that name. `rebuilt` = everything was read afresh, and any of it may differ.
    """

    position: int = 0
    rebuilt: bool = False
    topics_put: Sequence[str] = ()
    topics_deleted: Sequence[str] = ()
    groups_put: Sequence[str] = ()
    groups_deleted: Sequence[str] = ()
    queues_emptied: Sequence[tuple[str, int]] = ()

    @property
    def touches_topics(self) -> bool:
        return bool(self.rebuilt or self.topics_put or self.topics_deleted)


_NOTHING = Change()
MAX_DELETED_TOPICS: Final = 50_000


class MetadataTables:
    """Owned by the metadata service. Readers get the mappings themselves and must not change them."""

    def __init__(self) -> None:
        self.rules = ConsumerRules()
        self.clear()

    def clear(self) -> None:
        self.topics: dict[str, TopicConfig] = {}
        self.groups: dict[str, GroupConfig] = {}
        self.offsets: dict[tuple[str, str], dict[int, int]] = {}  # by (group, topic)
        self.rules.clear()
        # The physical end of the record that deleted a topic of the name last: what lies below it belongs to no topic any more.
        self.topics_deleted_at: dict[str, int] = {}
        # Where queues go on whose messages are all gone from the log: no file says so any more.
        self.emptied_queues: dict[tuple[str, int], int] = {}
        self.taken_over = ""  # the digest of the files of RocketMQ that were taken over last
        self.topic_changes = self.group_changes = 0
        self.topics_changed_ms = self.groups_changed_ms = 0

    def consumer_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        queues = self.offsets.get((group, topic))
        return queues.get(queue_id) if queues is not None else None

    def offsets_of_group(self, group: str) -> Mapping[str, Mapping[int, int]]:
        """Topic -> queue -> offset."""
        return {topic: queues for (name, topic), queues in self.offsets.items() if name == group}

    def apply(self, kind: str, body: Any, end_offset: int) -> Change:
        if kind == records.OFFSETS:
            for group, topic, queue_id, offset in body["o"]:
                self.offsets.setdefault((group, topic), {})[queue_id] = offset
            return _NOTHING
        if kind == records.TOPIC_PUT:
            self.load_row(["t", body["topic"]])
            self._topics_changed(body["t"])
            return Change(end_offset, topics_put=(body["topic"]["name"],))
        if kind == records.TOPICS_DELETED:
            names = body["names"]
            for name in names:
                self.topics.pop(name, None)
                self._topic_deleted(name, end_offset)
            gone = set(names)
            self._forget_offsets([key for key in self.offsets if key[1] in gone])
            self.rules.forget(lambda key: key[1] in gone)
            for key in [key for key in self.emptied_queues if key[0] in gone]:
                del self.emptied_queues[key]
            self._topics_changed(body["t"])
            return Change(end_offset, topics_deleted=tuple(names))
        if kind == records.GROUP_PUT:
            self.load_row(["g", body["group"]])
            self._groups_changed(body["t"])
            return Change(end_offset, groups_put=(body["group"]["name"],))
        if kind == records.GROUP_DELETED:
            self.groups.pop(body["name"], None)
            self._groups_changed(body["t"])
            self.rules.forget(lambda key: key[0] == body["name"])
            if body["offsets"]:
                self._forget_offsets([key for key in self.offsets if key[0] == body["name"]])
            return Change(end_offset, groups_deleted=(body["name"],))
        if self.rules.apply(kind, body):
            if kind == records.OFFSETS_RESET:
                self.offsets.setdefault((body["group"], body["topic"]), {}).update(dict(body["o"]))
            return _NOTHING
        if kind == records.QUEUES_EMPTIED:
            queues = tuple((topic, queue_id) for topic, queue_id, _ in body["q"])
            self.emptied_queues.update(zip(queues, (end for _, _, end in body["q"]), strict=True))
            return Change(end_offset, queues_emptied=queues)
        if kind == records.TAKEN_OVER:
            return self._take_over(body, end_offset)
        raise records.unknown_kind("metadata", kind, end_offset)

    def _take_over(self, body: Any, end_offset: int) -> Change:
        for row in body["rows"]:
            self.load_row(row)
        self.taken_over = body["digest"] or self.taken_over
        topics = tuple(row[1]["name"] for row in body["rows"] if row[0] == "t")
        if topics:
            self._topics_changed(body["t"])
        groups = tuple(row[1]["name"] for row in body["rows"] if row[0] == "g")
        if groups:
            self._groups_changed(body["t"])
        return Change(end_offset, topics_put=topics, groups_put=groups)

    def snapshot_rows(self) -> Iterator[Any]:
        yield ["v", self.topic_changes, self.topics_changed_ms]
        yield ["w", self.group_changes, self.groups_changed_ms]
        for topic in self.topics.values():
            yield ["t", records.encode_topic(topic)]
        for group in self.groups.values():
            yield ["g", records.encode_group(group)]
        for name, position in self.topics_deleted_at.items():
            yield ["d", name, position]
        if self.taken_over:
            yield ["i", self.taken_over]
        for (topic_name, queue_id), end in self.emptied_queues.items():
            yield ["q", topic_name, queue_id, end]
        for (group_name, topic_name), queues in self.offsets.items():
            yield ["o", group_name, topic_name, list(queues.items())]
        yield from self.rules.snapshot_rows()

    def load_row(self, row: Any) -> None:
        tag = row[0]
        if tag == "v":
            self.topic_changes, self.topics_changed_ms = row[1:]
        elif tag == "w":
            self.group_changes, self.groups_changed_ms = row[1:]
        elif tag == "t":
            topic = records.decode_topic(row[1])
            self.topics[topic.name] = topic
        elif tag == "g":
            group = records.decode_group(row[1])
            self.groups[group.name] = group
        elif tag == "d":
            self.topics_deleted_at[row[1]] = row[2]
        elif tag in self.rules.TAGS:
            self.rules.load_row(row)
        elif tag == "i":
            self.taken_over = row[1]
        elif tag == "q":
            self.emptied_queues[row[1], row[2]] = row[3]
        else:
            self.offsets[row[1], row[2]] = dict(row[3])

    def _topic_deleted(self, name: str, position: int) -> None:
        """Remember it, the latest last; of the oldest ones the log holds no messages any more."""
        self.topics_deleted_at.pop(name, None)
        self.topics_deleted_at[name] = position
        if len(self.topics_deleted_at) > MAX_DELETED_TOPICS:
            del self.topics_deleted_at[next(iter(self.topics_deleted_at))]

    def _topics_changed(self, at_ms: int) -> None:
        self.topic_changes += 1
        self.topics_changed_ms = at_ms

    def _groups_changed(self, at_ms: int) -> None:
        self.group_changes += 1
        self.groups_changed_ms = at_ms

    def _forget_offsets(self, keys: Sequence[tuple[str, str]]) -> None:
        for key in keys:
            del self.offsets[key]
