"""Reading messages for people: what to read, as asked by page or REST, and how a stored record is shown."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from django.utils import timezone

from remoting.client.blocking import QueueOffsets
from remoting.names import MAX_TOPIC_LENGTH
from remoting.record.codec import Record, body_is_intact
from remoting.record.hosts import offset_message_id, unpack_host
from webapp import gateway
from webapp.errors import NotFound
from webapp.messages.bodies import SHOWN_BYTES, Body, open_body
from webapp.rules import MAX_INT64, Rules

DEFAULT_COUNT = 20
MAX_KEY = 1000
NO_QUEUE = "queue-not-found"


@dataclass(frozen=True, slots=True)
class Message:
    """A stored message, ready to be shown."""

    record: Record
    group: str
    body: Body
    properties: dict[str, str]
    is_hidden: bool = False  # what it says is not here

    def hidden(self, shown: Collection[str]) -> Message:
        """The same without what it says; of its properties those that are named."""
        body = Body(
            b"", self.body.stored_bytes, self.body.compression, False, "hidden: you may not read messages of this topic"
        )
        properties = {name: value for name, value in self.properties.items() if name in shown}
        return replace(self, body=body, properties=properties, is_hidden=True)

    @property
    def offset(self) -> int:
        return self.record.queue_offset

    @property
    def message_id(self) -> str:
        """The id that the producer gave it, else the server's."""
        return self.properties.get("UNIQ_KEY") or self.offset_message_id

    @property
    def offset_message_id(self) -> str:
        return offset_message_id(self.record.store_host, self.record.physical_offset)

    @property
    def keys(self) -> str:
        return self.properties.get("KEYS", "")

    @property
    def tag(self) -> str:
        return self.properties.get("TAGS", "")

    @property
    def born_at(self) -> datetime:
        return _instant(self.record.born_timestamp_ms)

    @property
    def stored_at(self) -> datetime:
        return _instant(self.record.store_timestamp_ms)

    @property
    def born_host(self) -> str:
        return _host(self.record.born_host)

    @property
    def store_host(self) -> str:
        return _host(self.record.store_host)

    @property
    def intact(self) -> bool:
        return body_is_intact(self.record)


@dataclass(frozen=True, slots=True)
class Question:
    """Which messages to show."""

    topic: str
    group: str
    queue_id: int
    offset: int
    count: int
    at: datetime | None = None


def read_question(topic: str, given: Mapping[str, Any], default_offset: int = 0) -> Question:
    """The question in a query string: group, queue_id, and offset or time; raises InvalidInput."""
    rules = Rules(given)
    group = rules.text("group", least=1, most=MAX_TOPIC_LENGTH)
    queue_id = rules.integer("queue_id", least=0, most=2**31 - 1, default=0)
    count = rules.integer("count", least=1, most=gateway.MAX_BROWSE, default=DEFAULT_COUNT)
    at = rules.moment("time", timezone.get_current_timezone())
    if at is not None and given.get("offset") not in (None, ""):
        rules.refuse("offset", "give either an offset or a time, not both")
    offset = rules.integer("offset", least=0, most=MAX_INT64, default=default_offset)
    rules.finish()
    return Question(topic, group, queue_id, offset, count, at)


def chosen_address(given: Mapping[str, str]) -> str:
    """The query string of the page, made of what its form sends: there group and number of the queue are one choice."""
    group, _, queue_id = given.get("queue", "").rpartition("/")
    filled = {name: value for name, value in given.items() if name != "queue" and value}
    return urlencode({**filled, **({"group": group, "queue_id": queue_id} if group else {})})


def choose(topic: str, ranges: Sequence[QueueOffsets], given: Mapping[str, str]) -> QueueOffsets | None:
    """The queue that a query string asks for; where it leaves a choice, the first that has messages.

    None when the topic has no queues; raises InvalidInput, and NotFound when the topic has none like that.
    """
    rules = Rules(given)
    group = rules.text("group", most=MAX_TOPIC_LENGTH)
    queue_id = rules.integer("queue_id", least=0, most=2**31 - 1) if given.get("queue_id") else None
    rules.finish()
    of_group = [each for each in ranges if group in ("", each.group)]
    if group and not of_group:
        others = ", ".join(dict.fromkeys(each.group for each in ranges)) or "none"
        raise NotFound(f"{topic} has no queues in {group}; the broker groups that have some: {others}.", code=NO_QUEUE)
    fitting = [each for each in of_group if queue_id in (None, each.queue_id)]
    if queue_id is not None and not fitting:
        last = max((each.queue_id for each in of_group), default=None)
        rest = "it has none at all" if last is None else f"the last one is queue {last}"
        raise NotFound(f"{topic} has no queue {queue_id}{f' in {group}' if group else ''}; {rest}.", code=NO_QUEUE)
    return next((each for each in fitting if each.max_offset > each.min_offset), fitting[0] if fitting else None)


def ask(question: Question) -> tuple[gateway.Browsed, list[Message]]:
    """The messages in question, from the cluster."""
    offset = question.offset
    if question.at is not None:
        at_ms = int(question.at.timestamp() * 1000)
        with gateway.cluster() as client:
            offset = client.search_offset(question.topic, question.group, question.queue_id, at_ms)
    browsed = gateway.browse(question.topic, question.group, question.queue_id, offset, question.count)
    return browsed, [show(record, question.group, limit=2048) for record in browsed.records]


def by_key(topic: str, given: Mapping[str, Any]) -> list[Message]:
    """The newest messages with the key (or unique id) of a query string, newest first; raises InvalidInput."""
    rules = Rules(given)
    key = rules.text("key", least=1, most=MAX_KEY)
    count = rules.integer("count", least=1, most=gateway.MAX_BROWSE, default=DEFAULT_COUNT)
    rules.finish()
    return [show(found.record, found.group, limit=2048) for found in reversed(gateway.find(topic, key, count))]


def one(name: str, group: str, queue_id: int, offset: int) -> Message:
    """One message of the topic of that name, with as much of its body as a page shows."""
    return show(gateway.message(name, group, queue_id, offset), group)


def show(record: Record, group: str, limit: int = SHOWN_BYTES) -> Message:
    """A record ready to be shown."""
    return Message(record, group, open_body(record.body, record.sys_flag, limit), record.property_map())


def _instant(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def _host(packed: bytes) -> str:
    host, port = unpack_host(packed)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
