"""The JSON tables that RocketMQ keeps beside its log, `config/*.json`: read what it wrote, write what it reads (pure).

RocketMQ's writer leaves numbers that are names unquoted (`{0:12}`), which no JSON reader takes; its reader takes both. It passes
over members that it does not know, so each of our files says in its first one that it is derived.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import orjson

from brokerd.delay.levels import MAX_LEVELS
from brokerd.metadata.configs import GroupConfig, TopicConfig
from brokerd.metadata.service import topic_json
from brokerd.processors import bodies
from brokerd.processors.administration.group_bodies import decode_group, group_json
from remoting.errors import CorruptedFile, LogboomError

TOPICS: Final = "config/topics.json"
GROUPS: Final = "config/subscriptionGroup.json"
OFFSETS: Final = "config/consumerOffset.json"
DELAYS: Final = "config/delayOffset.json"
PATHS: Final = (TOPICS, GROUPS, OFFSETS, DELAYS)

MARK: Final = "logboom"
NOTE: Final = "derived from the commitlog and written again after each change: changes made here are not read"

_BARE_NAME: Final = re.compile(rb'("(?:[^"\\]|\\.)*")|([{,]\s*)(-?\d+)(\s*:)')
_MAX_ENTRIES: Final = 1_000_000
_FORBIDDEN_TO_READ: Final = 4

Offsets = Mapping[tuple[str, str], Mapping[int, int]]  # by (group, topic): queue -> offset


@dataclass(frozen=True, slots=True)
class Documents:
    """What the files say together."""

    topics: Mapping[str, TopicConfig]
    groups: Mapping[str, GroupConfig]
    offsets: Offsets
    forbidden: frozenset[tuple[str, str]] = frozenset()  # (group, topic) that the group may not read


def parse(content: bytes, path: str) -> dict[str, Any]:
    """The JSON object in a file; names without quotes are understood. Raises CorruptedFile."""
    try:
        document = orjson.loads(_BARE_NAME.sub(_quoted, content))
    except ValueError as error:
        raise CorruptedFile(f"{path} is not JSON: {error}; repair it, or remove it to go on without it") from error
    if not isinstance(document, dict):
        raise CorruptedFile(f"{path} holds no JSON object; repair it, or remove it to go on without it")
    return document


def is_ours(document: Mapping[str, Any]) -> bool:
    """Whether the document was written here."""
    return MARK in document


def decode_topics(document: Mapping[str, Any]) -> dict[str, TopicConfig]:
    """Raises CorruptedFile for a document of another shape."""
    found = {}
    for name, fields in _table(document, "topicConfigTable", TOPICS).items():
        with _explained(TOPICS, name):
            attributes = fields.get("attributes") or {}
            found[name] = TopicConfig(
                name,
                bodies.integer(fields, "readQueueNums", 8),
                bodies.integer(fields, "writeQueueNums", 8),
                bodies.integer(fields, "perm", 6),
                bodies.integer(fields, "topicSysFlag"),
                bodies.boolean(fields, "order", False),
                {str(key): str(value) for key, value in attributes.items()},
                bodies.text(fields, "topicFilterType") == "MULTI_TAG",
            )
    return found


def decode_groups(document: Mapping[str, Any]) -> dict[str, GroupConfig]:
    """Raises CorruptedFile for a document of another shape."""
    found = {}
    for name, fields in _table(document, "subscriptionGroupTable", GROUPS).items():
        with _explained(GROUPS, name):
            found[name] = decode_group({**fields, "groupName": name}, {})
    return found


def decode_forbidden(document: Mapping[str, Any]) -> frozenset[tuple[str, str]]:
    """From the groups' document. Raises CorruptedFile for one of another shape."""
    found = set()
    for group, fields in _table(document, "forbiddenTable", GROUPS).items():
        with _explained(GROUPS, group):
            found |= {(group, topic) for topic in fields if bodies.integer(fields, topic) & _FORBIDDEN_TO_READ}
    return frozenset(found)


def decode_offsets(document: Mapping[str, Any]) -> dict[tuple[str, str], dict[int, int]]:
    """Raises CorruptedFile for a document of another shape. Negative offsets mean none."""
    found: dict[tuple[str, str], dict[int, int]] = {}
    for name, fields in _table(document, "offsetTable", OFFSETS).items():
        with _explained(OFFSETS, name):
            topic, _, group = name.partition("@")
            queues = {int(queue_id): bodies.integer(fields, queue_id, -1) for queue_id in fields}
            found[group, topic] = {queue_id: offset for queue_id, offset in queues.items() if offset >= 0}
    return found


def decode_delays(document: Mapping[str, Any]) -> dict[int, int]:
    """Queue of the schedule topic -> up to where it is delivered. Raises CorruptedFile for a document of another shape."""
    table = document.get("offsetTable") or {}
    if not isinstance(table, dict) or len(table) > MAX_LEVELS:
        raise CorruptedFile(f"offsetTable of {DELAYS} is no object of at most {MAX_LEVELS} members; repair the file")
    found = {}
    for level in table:
        with _explained(DELAYS, level):
            found[int(level) - 1] = bodies.integer(table, level)
    return {queue_id: offset for queue_id, offset in found.items() if queue_id >= 0 and offset >= 0}


def encode_topics(topics: Iterable[TopicConfig], version: Mapping[str, int]) -> bytes:
    return _encode(version, topicConfigTable={topic.name: topic_json(topic) for topic in topics})


def encode_groups(
    groups: Iterable[GroupConfig], version: Mapping[str, int], forbidden: Iterable[tuple[str, str]] = ()
) -> bytes:
    table: dict[str, dict[str, int]] = {}
    for group, topic in sorted(forbidden):
        table.setdefault(group, {})[topic] = _FORBIDDEN_TO_READ
    return _encode(
        version, forbiddenTable=table, subscriptionGroupTable={group.name: group_json(group) for group in groups}
    )


def encode_offsets(offsets: Offsets, version: Mapping[str, int]) -> bytes:
    return _encode(version, offsetTable={f"{topic}@{group}": queues for (group, topic), queues in offsets.items()})


def encode_delays(offsets: Mapping[int, int], version: Mapping[str, int]) -> bytes:
    return _encode(version, offsetTable={str(queue_id + 1): offset for queue_id, offset in sorted(offsets.items())})


def _encode(version: Mapping[str, int], **tables: Mapping[str, Any]) -> bytes:
    document = {MARK: NOTE, "dataVersion": version, **tables}
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS)


def _quoted(match: re.Match[bytes]) -> bytes:
    return match[1] or b'%b"%b"%b' % (match[2], match[3], match[4])


def _table(document: Mapping[str, Any], name: str, path: str) -> dict[str, dict[str, Any]]:
    table = document.get(name) or {}
    if not isinstance(table, dict) or len(table) > _MAX_ENTRIES:
        raise CorruptedFile(f"{name} of {path} is no object of at most {_MAX_ENTRIES} members; repair the file")
    for key, fields in table.items():
        if not isinstance(fields, dict):
            raise CorruptedFile(f"{key!r} in {path} is no object; repair the file")
    return table


@contextmanager
def _explained(path: str, name: str) -> Iterator[None]:
    """Says which entry of which file is wrong."""
    try:
        yield
    except (LogboomError, ValueError, TypeError, AttributeError) as error:
        raise CorruptedFile(f"{name!r} in {path} is not understood: {error}; repair the file") from error
