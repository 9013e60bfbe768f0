"""Who consumes what, and how far everybody is: codes 208, 300, 303, 308, 317, 343, 345."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from brokerd.consuming.progress import ConsumerProgress
from brokerd.members.registry import ClientRegistry
from brokerd.metadata.service import MetadataService
from brokerd.processors import fields
from brokerd.processors.bodies import encode, encode_object_entry, message_queue
from brokerd.processors.clients.connections import subscription_json
from brokerd.processors.sliced import in_portions
from brokerd.statistics.figures import Statistics
from brokerd.store.store_reads import StoreReads
from remoting import codes
from remoting.errors import InvalidParameter, RequestError
from remoting.frame import Command
from remoting.names import RETRY_PREFIX
from remoting.transport.connection import RemotingConnection

_NO_CORRECTION: Final = (1 << 63) - 1
_MAX_ENTRIES: Final = 100_000  # queues of one answer, which is one frame
_NAMES_IN_A_LOOK: Final = 16  # that are compared in the time of one look at a queue


class QueueState(NamedTuple):
    """One queue as a group sees it; `last_ms` is when the last consumed message was stored, 0 = none."""

    topic: str
    queue_id: int
    end: int
    consumed: int
    taken: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class Consumption:
    """Who consumes what on a broker, and how far everybody is."""

    metadata: MetadataService
    clients: ClientRegistry
    progress: ConsumerProgress
    ranges: StoreReads
    broker_name: str


@dataclass(frozen=True, slots=True)
class ConsumptionProcessor:
    """The handlers. `address` is this broker's, as its clients dial it."""

    consumption: Consumption
    address: str
    now_ms: Callable[[], int]
    statistics: Statistics

    # ---- how far

    def group_progress(self, connection: RemotingConnection, request: Command) -> Iterator[int]:
        """Code 208: how far a group is in each queue of a topic, of several, or of all that it consumes."""
        group = fields.text(request.ext, "consumerGroup")
        listed = [name for name in (request.ext.get("topicList") or "").split(";") if name]
        asked = request.ext.get("topic")
        topics = listed or self._subscribed(group, [asked] if asked else self._topics_of(group))
        states = yield from self._queue_states(group, topics, written=False)
        connection.respond(request, body=(yield from self._stats(group, states)))

    def all_progress(self, connection: RemotingConnection, request: Command) -> Iterator[int]:
        """Code 317: the same of every group, topic by topic; with `isOrder` of ordered topics only."""
        ordered_only = fields.flag(request.ext, "isOrder")
        entries: list[bytes] = []
        behind = taken = count = 0
        consumed = self.consumption.progress.consumed()
        for group in list(self.consumption.metadata.groups()):
            yield 1
            stats = []
            topics = dict.fromkeys(topic for topic, _ in sorted(consumed.get(group, ())))
            for topic in self._subscribed(group, topics):
                config = self.consumption.metadata.topic(topic)
                if config is None or (ordered_only and not config.order):
                    continue
                states = yield from self._queue_states(group, [topic], written=True)
                count += len(states)
                if count > _MAX_ENTRIES:
                    raise RequestError(
                        codes.SYSTEM_ERROR,
                        "too many queues for one answer; ask for single groups with GET_CONSUME_STATS",
                    )
                behind += sum(each.end - each.consumed for each in states)
                taken += sum(each.taken - each.consumed for each in states)
                stats.append((yield from self._stats(group, states)))
            entries.append(b"{" + encode(group) + b":[" + b",".join(stats) + b"]}")
        body = b'{"brokerAddr":%b,"consumeStatsList":[%b],"totalDiff":%d,"totalInflightDiff":%d}'
        connection.respond(request, body=body % (encode(self.address), b",".join(entries), behind, taken))

    def time_span(self, connection: RemotingConnection, request: Command) -> Iterator[int]:
        """Code 303: of each queue the first and the last message's time, the last consumed one's, and how old the next one is."""
        topic = fields.text(request.ext, "topic")
        group = fields.text(request.ext, "group")
        config = self.consumption.metadata.topic(topic)
        if config is None:
            raise RequestError(codes.TOPIC_NOT_EXIST, f"topic {topic} does not exist")
        spans = yield from in_portions(partial(self._time_span, group, topic), range(config.write_queue_nums))
        connection.respond(request, body=b'{"consumeTimeSpanSet":[' + b",".join(spans) + b"]}")

    def correction(self, connection: RemotingConnection, request: Command) -> Iterator[int]:
        """Code 308: per queue the least offset of all groups but those left out; the largest number where it is not behind
        the group to compare with."""
        topic = fields.text(request.ext, "topic")
        compared = fields.text(request.ext, "compareGroup")
        left_out = {name.strip() for name in (request.ext.get("filterGroups") or "").split(",")}
        progress, ranges = self.consumption.progress, self.consumption.ranges
        least: dict[int, int] = {}
        for group, queues in progress.consumed().items():
            yield 1 + len(queues) // _NAMES_IN_A_LOOK
            if group in left_out:
                continue

            def note(queue_id: int, group: str = group) -> None:
                offset = progress.consumer_offset(group, topic, queue_id)
                if offset is not None and offset >= ranges.min_offset(topic, queue_id):
                    least[queue_id] = min(offset, least.get(queue_id, offset))

            yield from in_portions(note, [queue_id for name, queue_id in queues if name == topic])
        own = [queue_id for name, queue_id in progress.consumed_by(compared) if name == topic]
        offsets = yield from in_portions(partial(progress.consumer_offset, compared, topic), own)
        for queue_id, offset in zip(own, offsets, strict=True):
            if offset is not None and least.get(queue_id, _NO_CORRECTION) > offset:
                least[queue_id] = _NO_CORRECTION
        connection.respond(request, body=encode({"correctionOffsets": least}))

    # ---- who

    def groups_of_topic(self, connection: RemotingConnection, request: Command) -> Iterator[int]:
        """Code 300: who subscribes to a topic now, or has an offset in it."""
        topic = fields.text(request.ext, "topic")
        groups = {
            group
            for group in self.consumption.clients.groups()
            if (found := self.consumption.clients.consumer_group(group)) is not None and topic in found.subscriptions
        }
        for group, queues in self.consumption.progress.consumed().items():
            yield 1 + len(queues) // _NAMES_IN_A_LOOK
            if any(topic == name for name, _ in queues):
                groups.add(group)
        connection.respond(request, body=encode({"groupList": sorted(groups)}))

    def topics_of_group(self, connection: RemotingConnection, request: Command) -> None:
        """Code 343: the topics in which a group has an offset."""
        group = fields.text(request.ext, "group")
        connection.respond(request, body=encode({"brokerAddr": self.address, "topicList": self._topics_of(group)}))

    def subscription(self, connection: RemotingConnection, request: Command) -> None:
        """Code 345: what the members of a group want of a topic; without `subscriptionData` when they do not want it."""
        group = fields.text(request.ext, "group")
        topic = fields.text(request.ext, "topic")
        present = self.consumption.clients.consumer_group(group)
        found = present.subscriptions.get(topic) if present is not None else None
        body: dict[str, Any] = {"group": group, "topic": topic}
        if found is not None:
            body["subscriptionData"] = subscription_json(found)
        connection.respond(request, body=encode(body))

    # ---- inside

    def _topics_of(self, group: str) -> list[str]:
        return list(dict.fromkeys(topic for topic, _ in self.consumption.progress.consumed_by(group)))

    def _subscribed(self, group: str, topics: Iterable[str]) -> list[str]:
        """Of a group with members only what they subscribe to: the rest is history. Returned messages count as subscribed."""
        present = self.consumption.clients.consumer_group(group)
        if present is None or not present.subscriptions:
            return list(topics)
        return [topic for topic in topics if topic in present.subscriptions or topic.startswith(RETRY_PREFIX)]

    def _queue_states(
        self, group: str, topics: Iterable[str], *, written: bool
    ) -> Generator[int, None, list[QueueState]]:
        """The queues of topics that are there; `written` = those that are written to, else those that are read."""
        states: list[QueueState] = []
        for topic in sorted(set(topics)):
            config = self.consumption.metadata.topic(topic)
            if config is None:
                continue
            count = config.write_queue_nums if written else config.read_queue_nums
            if len(states) + count > _MAX_ENTRIES:
                raise InvalidParameter(f"the answer would list more than {_MAX_ENTRIES} queues; name fewer topics")
            known = self._known_queue_state if written else self._queue_state
            states += yield from in_portions(partial(known, group, topic), range(count))
        return states

    def _queue_state(self, group: str, topic: str, queue_id: int) -> QueueState:
        consumed = self.consumption.progress.consumer_offset(group, topic, queue_id) or 0
        last_ms = max(0, self.consumption.ranges.store_timestamp(topic, queue_id, consumed - 1)) if consumed else 0
        taken = max(consumed, self.consumption.progress.taken_offset(group, topic, queue_id))
        return QueueState(
            topic, queue_id, self.consumption.ranges.max_offset(topic, queue_id), consumed, taken, last_ms
        )

    def _known_queue_state(self, group: str, topic: str, queue_id: int) -> QueueState:
        """The same for who asks for everything and does not wait: a time that has to be fetched first is not known, 0."""
        try:
            return self._queue_state(group, topic, queue_id)
        except RequestError:
            consumed = self.consumption.progress.consumer_offset(group, topic, queue_id) or 0
            taken = max(consumed, self.consumption.progress.taken_offset(group, topic, queue_id))
            return QueueState(topic, queue_id, self.consumption.ranges.max_offset(topic, queue_id), consumed, taken, 0)

    def _stats(self, group: str, states: Sequence[QueueState]) -> Generator[int, None, bytes]:
        entries = yield from in_portions(lambda each: self._stats_entry(states[each]), range(len(states)))
        rate = sum(self.statistics.get_per_second(topic, group) for topic in {each.topic for each in states})
        return b'{"consumeTps":' + encode(float(rate)) + b',"offsetTable":{' + b",".join(entries) + b"}}"

    def _stats_entry(self, state: QueueState) -> bytes:
        found = {
            "brokerOffset": state.end,
            "consumerOffset": state.consumed,
            "lastTimestamp": state.last_ms,
            "pullOffset": state.taken,
        }
        return encode_object_entry(message_queue(state.topic, self.consumption.broker_name, state.queue_id), found)

    def _time_span(self, group: str, topic: str, queue_id: int) -> bytes:
        ranges = self.consumption.ranges
        low, high = ranges.min_offset(topic, queue_id), ranges.max_offset(topic, queue_id)
        first_ms = ranges.store_timestamp(topic, queue_id, low)
        offset = self.consumption.progress.consumer_offset(group, topic, queue_id) or 0
        span = {
            "consumeTimeStamp": ranges.store_timestamp(topic, queue_id, offset - 1) if offset else first_ms,
            "delayTime": 0,
            "maxTimeStamp": ranges.store_timestamp(topic, queue_id, high - 1),
            "messageQueue": message_queue(topic, self.consumption.broker_name, queue_id),
            "minTimeStamp": first_ms,
        }
        if offset < high:
            span["delayTime"] = self.now_ms() - ranges.store_timestamp(topic, queue_id, max(offset, low))
        return encode(span)
