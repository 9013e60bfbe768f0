"""What a broker group has in its tier, as a fold of changes: the same in the replicated log and in the manifest (pure).

Changes, each a JSON array; a segment is as `segments.encode_segment` has it:

    ["begun", log id]                          the tier of this log begins, or goes on; the id was drawn when it began
    ["committed", topic, queue id, segment]    behind what the queue has
    ["grown", topic, queue id, segment]        what the queue's last segment became: its objects are the same, and longer
    ["merged", topic, queue id, segment]       in the place of those that it was made of
    ["expired", topic, queue id, offset]       segments that end there or before are not kept any more
    ["cut", topic, queue id, offset]           from there on the log had other messages after all
    ["dropped", topic]                         the topic was deleted
    ["indexed", entry]                         an object of the index of keys, as `index.encode_entry` has it
    ["unindexed", [[epoch, number], ...]]      objects of the index that nobody needs any more

What leaves the contents is garbage from then on: its objects are removed once nobody can be told of them any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from remoting.names import MAX_RETRY_TOPIC_LENGTH
from remoting.tier.index import IndexObject, decode_entry, encode_entry
from remoting.tier.segments import MOST_OFFSET, Form, QueueSegments, Segment, decode_segment, encode_segment

BEGUN: Final = "begun"
COMMITTED: Final = "committed"
GROWN: Final = "grown"
MERGED: Final = "merged"
EXPIRED: Final = "expired"
CUT: Final = "cut"
DROPPED: Final = "dropped"
INDEXED: Final = "indexed"
UNINDEXED: Final = "unindexed"

Change = list[Any]

_MOST_QUEUE_ID: Final = (1 << 31) - 1


class Queue(NamedTuple):
    """A queue of the broker group."""

    topic: str
    queue_id: int


class Holdings(NamedTuple):
    """How much that is: `bytes` of all objects of segments, and `missing` messages between segments, that never came there."""

    segments: int = 0
    messages: int = 0
    bytes: int = 0
    missing: int = 0


class TierContents:
    """The segments of each queue, what all of it comes to, and the objects of the index by epoch and number.

    A queue's segments are replaced as a whole when they change, so copies share them, and a copy costs little.
    """

    def __init__(self) -> None:
        self.log_id = ""  # of the log that they are made of; "" before the first
        self.queues: dict[Queue, QueueSegments] = {}
        self.holdings = Holdings()
        self.index: dict[tuple[int, int], IndexObject] = {}

    def apply(self, change: Any) -> list[tuple[Queue, Segment]]:
        """Carry it out; what it took out, which does not include what grew: its objects stay.

        Raises ValueError for what is no change, or does not fit; then nothing changed.
        """
        before = [(queue, self.queues.get(queue)) for queue in self._touched_by(change)]
        gone = self._carry_out(change)
        count, messages, size, missing = self.holdings
        for queue, old in before:
            for segments, sign in ((old, -1), (self.queues.get(queue), 1)):
                if segments is not None:
                    count += sign * len(segments)
                    messages += sign * segments.messages
                    size += sign * segments.object_bytes
                    missing += sign * segments.missing
        self.holdings = Holdings(count, messages, size, missing)
        return gone

    def _touched_by(self, change: Any) -> list[Queue]:
        match change:
            case [_, str(topic), int(queue_id), _]:
                return [Queue(topic, queue_id)]
            case [_, str(topic)]:
                return [queue for queue in self.queues if queue.topic == topic]
        return []

    def _carry_out(self, change: Any) -> list[tuple[Queue, Segment]]:
        match change:
            case [str(kind), str(topic), int(queue_id), list(values)] if kind == COMMITTED:
                self._commit(_queue(topic, queue_id), decode_segment(values))
                return []
            case [str(kind), str(topic), int(queue_id), list(values)] if kind == GROWN:
                self._grow(_queue(topic, queue_id), decode_segment(values))
                return []
            case [str(kind), str(topic), int(queue_id), list(values)] if kind == MERGED:
                return self._merge(_queue(topic, queue_id), decode_segment(values))
            case [str(kind), str(topic), int(queue_id), int(offset)] if kind in (EXPIRED, CUT):
                queue = _queue(topic, queue_id)
                if type(offset) is bool or not 0 <= offset <= MOST_OFFSET:
                    raise ValueError(f"no queue has that offset: {offset}")
                segments = self._changed(queue)
                gone = segments.drop_before(offset) if kind == EXPIRED else segments.drop_from(offset)
                if not segments.end:
                    del self.queues[queue]
                return [(queue, segment) for segment in gone]
            case [str(kind), str(topic)] if kind == DROPPED:
                going = [queue for queue in self.queues if queue.topic == topic]
                return [(queue, segment) for queue in going for segment in self.queues.pop(queue)]
            case [str(kind), str(log_id)] if kind == BEGUN:
                self.log_id = log_id
                return []
            case [str(kind), list(values)] if kind == INDEXED:
                entry = decode_entry(values)
                self.index[entry.key] = entry
                return []
            case [str(kind), list(keys)] if kind == UNINDEXED:
                for key in _keys(keys):
                    self.index.pop(key, None)
                return []
        raise ValueError(f"{str(change)[:100]} is no change of a tier that this version knows")

    def rows(self) -> Iterator[Change]:
        """Changes that make the same contents out of empty ones."""
        if self.log_id:
            yield [BEGUN, self.log_id]
        for entry in self.index.values():
            yield indexed(entry)
        for queue, segments in self.queues.items():
            if segments.passed:
                yield expired(queue, segments.passed)
            for segment in segments:
                yield committed(queue, segment)

    def copy(self) -> TierContents:
        twin = TierContents()
        twin.log_id = self.log_id
        twin.holdings = self.holdings
        twin.index = dict(self.index)
        twin.queues = dict(self.queues)
        return twin

    def taken_out_by(self, change: Change) -> list[tuple[Queue, Segment]]:
        """What would leave the contents with it. Raises ValueError."""
        twin = TierContents()
        twin.queues = {queue: self.queues[queue] for queue in self._touched_by(change) if queue in self.queues}
        return twin.apply(change)

    def _commit(self, queue: Queue, segment: Segment) -> None:
        segments = self.queues.get(queue)
        if segments is not None and (segment.first < segments.end or segment.base < segments.message_end):
            raise ValueError(f"a segment from {segment.first} on does not follow what {queue} has in the tier")
        self._changed(queue).add(segment)

    def _grow(self, queue: Queue, segment: Segment) -> None:
        segments = self.queues.get(queue)
        if segments is None or not len(segments) or not _may_become(segments.last, segment):
            raise ValueError(f"the last segment of {queue} did not grow to what ends at {segment.end}")
        self._changed(queue).grow(segment)

    def _merge(self, queue: Queue, segment: Segment) -> list[tuple[Queue, Segment]]:
        segments = self.queues.get(queue)
        if segments is None or not segments.holds_whole(segment.first, segment.end):
            raise ValueError(f"{queue} has no segments that {segment.first} to {segment.end} are made of")
        return [(queue, old) for old in self._changed(queue).replace(segment)]

    def _changed(self, queue: Queue) -> QueueSegments:
        """The queue's segments, to be changed: who has a copy of the contents keeps what they were."""
        segments = self.queues.get(queue)
        self.queues[queue] = changed = QueueSegments() if segments is None else segments.copy()
        return changed


def begun(log_id: str) -> Change:
    return [BEGUN, log_id]


def committed(queue: Queue, segment: Segment) -> Change:
    return [COMMITTED, *queue, encode_segment(segment)]


def grown(queue: Queue, segment: Segment) -> Change:
    return [GROWN, *queue, encode_segment(segment)]


def merged(queue: Queue, segment: Segment) -> Change:
    return [MERGED, *queue, encode_segment(segment)]


def expired(queue: Queue, offset: int) -> Change:
    return [EXPIRED, *queue, offset]


def cut(queue: Queue, offset: int) -> Change:
    return [CUT, *queue, offset]


def dropped(topic: str) -> Change:
    return [DROPPED, topic]


def indexed(entry: IndexObject) -> Change:
    return [INDEXED, encode_entry(entry)]


def unindexed(entries: Iterable[IndexObject]) -> Change:
    return [UNINDEXED, [list(entry.key) for entry in entries]]


def _may_become(old: Segment, new: Segment) -> bool:
    """Whether it is the same one with messages behind those that it had."""
    is_longer = old.is_part_of(new) and old.end < new.end and old.message_bytes < new.message_bytes
    is_later = old.first_ms == new.first_ms and old.last_ms <= new.last_ms and old.log_end < new.log_end
    return is_longer and is_later and new.form is Form.RAW and new.stored_bytes == new.message_bytes


def _queue(topic: str, queue_id: int) -> Queue:
    """Raises ValueError for what no queue is called: it becomes a part of the names of objects, which may be files."""
    if topic in ("", ".", "..") or len(topic) > MAX_RETRY_TOPIC_LENGTH or "/" in topic or "\0" in topic:
        raise ValueError(f"{topic[:100]!r} is no topic")
    if type(queue_id) is bool or not 0 <= queue_id <= _MOST_QUEUE_ID:
        raise ValueError(f"{queue_id} is no queue")
    return Queue(topic, queue_id)


def _keys(keys: list[Any]) -> list[tuple[int, int]]:
    found = []
    for key in keys:
        match key:
            case [int(epoch), int(number)]:
                found.append((epoch, number))
            case _:
                raise ValueError("an object of the index is named by its epoch and its number")
    return found
