"""Topics: codes 17, 18, 21, 202, 215, 305, 351."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from brokerd.metadata.configs import TopicConfig
from brokerd.metadata.decide import UNCHANGEABLE_ATTRIBUTES
from brokerd.metadata.service import DataVersion, MetadataService, topic_json
from brokerd.processors import bodies, fields
from brokerd.processors.administration.pages import page
from brokerd.processors.answers import Done, when_done
from brokerd.processors.bodies import encode, encode_object_entry, message_queue
from brokerd.processors.sliced import in_portions
from brokerd.statistics.figures import Statistics
from brokerd.store.store_reads import StoreReads
from remoting import codes
from remoting.errors import InvalidParameter, RequestError
from remoting.frame import Command
from remoting.transport.connection import RemotingConnection

MAX_LIST: Final = 2_000  # topics or groups of one request, which the loop records in one go
_FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")
_DEFAULT_TYPE: Final = ("message.type", "NORMAL")


@dataclass(frozen=True, slots=True)
class TopicProcessor:
    """The handlers. `when_known` calls back when the name servers know the topics as they are."""

    metadata: MetadataService
    broker_name: str
    data_version: Callable[[], DataVersion]
    ranges: StoreReads
    figures: Statistics
    when_known: Callable[[Callable[[], None]], None] = lambda done: done()

    def put(self, connection: RemotingConnection, request: Command) -> None:
        """Code 17: create or change. An equal configuration is answered with the remark `unchanged`."""
        ext = request.ext
        name = fields.text(ext, "topic")
        current = self.metadata.topic(name)
        config = TopicConfig(
            name,
            fields.integer(ext, "readQueueNums", high=fields.MAX_INT),
            fields.integer(ext, "writeQueueNums", high=fields.MAX_INT),
            fields.integer(ext, "perm", high=fields.MAX_INT),
            fields.integer(ext, "topicSysFlag", 0, high=fields.MAX_INT),
            fields.flag(ext, "order"),
            change_attributes(current, _split(ext.get("attributes", ""))),
            ext.get("topicFilterType", "").upper() == _FILTER_TYPES[1],
        )
        self.metadata.put_topic(config, self._when_routed(when_done(connection, request, unchanged=config == current)))

    def put_list(self, connection: RemotingConnection, request: Command) -> None:
        """Code 18: create or change several, all or none."""
        document = bodies.decode_object(request.body, "a list of topics")
        configs = [self._decode(each) for each in bodies.objects(document, "topicConfigList", MAX_LIST)]
        check_different(config.name for config in configs)
        unchanged = all(self.metadata.topic(config.name) == config for config in configs)
        self.metadata.put_topics(configs, self._when_routed(when_done(connection, request, unchanged=unchanged)))

    def _when_routed(self, done: Done) -> Done:
        """The same answer, a topic that was made being in the routes by then."""

        def then(error: RequestError | None) -> None:
            if error is None:
                self.when_known(lambda: done(None))
            else:
                done(error)

        return then

    def _decode(self, document: dict[str, Any]) -> TopicConfig:
        name = bodies.text(document, "topicName")
        current = self.metadata.topic(name)
        return TopicConfig(
            name,
            bodies.integer(document, "readQueueNums", 16),
            bodies.integer(document, "writeQueueNums", 16),
            bodies.integer(document, "perm", 6),
            bodies.integer(document, "topicSysFlag", 0),
            bodies.boolean(document, "order", False),
            change_attributes(current, _listed(document, current)),
            bodies.enumeration(document, "topicFilterType", _FILTER_TYPES, _FILTER_TYPES[0]) == _FILTER_TYPES[1],
        )

    def delete(self, connection: RemotingConnection, request: Command) -> None:
        """Code 215. An unknown topic is deleted already."""
        name = fields.text(request.ext, "topic")
        unchanged = self.metadata.topic(name) is None
        self.metadata.delete_topic(name, when_done(connection, request, unchanged=unchanged))

    def all(self, connection: RemotingConnection, request: Command) -> None:
        """Code 21: everything, or a page of it."""
        version, topics = self.data_version(), self.metadata.topics()
        chosen, is_part = page(topics, version, request.ext, "topicSeq", "maxTopicNum")
        body = {
            "dataVersion": version.as_json(),
            "topicConfigTable": {name: _listing(config) for name, config in chosen.items()},
        }
        connection.respond(request, ext={"totalTopicNum": str(len(topics))} if is_part else {}, body=encode(body))

    def one(self, connection: RemotingConnection, request: Command) -> None:
        """Code 351: a topic's configuration."""
        connection.respond(request, body=encode(topic_json(self._topic(fields.text(request.ext, "topic")))))

    def system(self, connection: RemotingConnection, request: Command) -> None:
        """Code 305: the topics that nobody can create or delete."""
        connection.respond(request, body=encode({"topicList": sorted(self.metadata.names.system_topics())}))

    def statistics(self, connection: RemotingConnection, request: Command) -> Iterator[int]:
        """Code 202: the range of each queue, and when it got its last message."""
        name = fields.text(request.ext, "topic")
        config = self._topic(name)
        count = max(config.read_queue_nums, config.write_queue_nums)
        entries = yield from in_portions(lambda each: self._queue_statistics(name, each), range(count))
        rate = encode(self.figures.put_per_second(name))
        connection.respond(request, body=b'{"offsetTable":{' + b",".join(entries) + b'},"topicPutTps":' + rate + b"}")

    def _queue_statistics(self, name: str, queue_id: int) -> bytes:
        high = self.ranges.max_offset(name, queue_id)
        found = {
            "lastUpdateTimestamp": max(0, self.ranges.store_timestamp(name, queue_id, high - 1)) if high else 0,
            "maxOffset": high,
            "minOffset": self.ranges.min_offset(name, queue_id),
        }
        return encode_object_entry(message_queue(name, self.broker_name, queue_id), found)

    def _topic(self, name: str) -> TopicConfig:
        config = self.metadata.topic(name)
        if config is None:
            raise RequestError(codes.TOPIC_NOT_EXIST, f"topic {name} does not exist; create it")
        return config


def _listing(config: TopicConfig) -> dict[str, Any]:
    """The topic's configuration for those who ask for all: NORMAL, which a topic is that says nothing, is not said.

    Slaves of Apache RocketMQ 5.3.2 and 5.3.3 follow this table, and drop their topics at the first that has an attribute.
    """
    document = topic_json(config)
    document["attributes"] = {
        name: value for name, value in config.attributes.items() if (name, value) != _DEFAULT_TYPE
    }
    return document


Attributes = Iterable[tuple[str, str | None]]  # +key with a value, or -key without one


def _split(changes: str) -> Attributes:
    """Changes written as `+key=value,-key`."""
    for change in filter(None, map(str.strip, changes.split(","))):
        key, equals, value = change.partition("=")
        yield key, value if equals else None


def _listed(document: dict[str, Any], topic: TopicConfig | None) -> Attributes:
    """Changes as an object. What was exported has names without a sign; present values stay."""
    listed = document.get("attributes") or {}
    if not isinstance(listed, dict):
        raise InvalidParameter("attributes must be an object")
    for key in listed:
        value = bodies.text(listed, key)
        if key[:1] in ("+", "-"):
            yield key, value or None
        elif topic is None or topic.attributes.get(key) != value:
            yield f"+{key}", value or None


def change_attributes(topic: TopicConfig | None, changes: Attributes) -> dict[str, str]:
    """A topic's attributes after changes; what they may be is checked when the topic is.

    Raises InvalidParameter with the form, RequestError SYSTEM_ERROR for a change that the protocol refuses.
    """
    attributes = dict(topic.attributes) if topic is not None else {}
    seen: set[str] = set()
    for change, value in changes:
        sign, key = change[:1], change[1:]
        if (sign, bool(value)) not in (("+", True), ("-", False)) or not key:
            raise InvalidParameter(f"write attributes as +key=value or -key, separated by commas, not {change[:64]!r}")
        if key in seen:
            raise RequestError(codes.SYSTEM_ERROR, f"the attribute {key} is named twice")
        seen.add(key)
        if topic is not None and key in UNCHANGEABLE_ATTRIBUTES:
            raise RequestError(codes.SYSTEM_ERROR, f"the attribute {key} is given when a topic is created, and stays")
        if sign == "+":
            attributes[key] = value or ""
        elif key in attributes:
            del attributes[key]
        else:
            raise RequestError(codes.SYSTEM_ERROR, f"there is no attribute {key} to remove")
    return attributes


def check_different(names: Iterable[str]) -> None:
    """Raises InvalidParameter when a name is there twice, or none at all."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidParameter(f"{name} is in the list twice")
        seen.add(name)
    if not seen:
        raise InvalidParameter("the list is empty")
