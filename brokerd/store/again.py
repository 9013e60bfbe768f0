"""Stored records whose messages are stored once more, under another topic: from their bytes, with no message made of them.

A message that waits in a topic of the broker's has its own topic in its properties. `look` says of records which of them are
ordinary, and what their properties say; `lay_out` lays out copies of these (`Copies`): the same message with another topic, and
perhaps with a property that says where it was first. What is not ordinary is decoded by whoever asked, and stored as a draft.

Both run in C where the broker has its library (`native_again.py`). `PythonAgain` says what is right, and a copy is what
`draft.lay_out_draft` makes of the decoded message.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import repeat
from typing import Any, Final, NamedTuple, Protocol

from brokerd.store.draft import Draft, lay_out_draft
from brokerd.store.log.derive import NO_RULES
from brokerd.store.queues.queue_offsets import QueueKey
from brokerd.store.run import AppendResult, Run
from brokerd.store.unit import Unit
from remoting.errors import ProtocolError
from remoting.record import checksum
from remoting.record.codec import body_is_intact, decode_record
from remoting.record.layout import (
    MAGIC_V1,
    MAX_BODY_BYTES,
    MAX_PROPERTIES_BYTES,
    MAX_TOPIC_BYTES,
    RECORD_OVERHEAD_BYTES,
    SYS_TRANSACTION_PREPARED,
    SYS_V6_HOSTS,
    Field,
    heads,
    record_size,
)
from remoting.record.properties import tags_code


class Role(IntEnum):
    """What a property tells that is looked for. TOPIC and QUEUE are where the message belongs; a NUMBER that is looked for has to
    be there; KEY may be. A copy gets the PLACE, unless the message has it already, and then TIMES, too: it was copied before.
    Records with an UNUSUAL one are left."""

    TOPIC = 0
    QUEUE = 1
    NUMBER = 2
    KEY = 3
    PLACE = 4
    TIMES = 5
    TAGS = 6
    UNUSUAL = 7


Names = Mapping[str, Role]

TAGS: Final = "TAGS"
_TAIL_NAME: Final = checksum.NAME.encode()
_MAX_COMPARED: Final = 64  # names of one message, to find one that is there twice
_HEAD: Final = heads(Field.SIZE, Field.MAGIC, Field.PHYSICAL_OFFSET, Field.SYS_FLAG)[0]
_WHOLE: Final = re.compile(rb"(?:[^\x00-\x02]+\x01[^\x00-\x02]+\x02)*")
_PROPERTY: Final = re.compile(rb"([^\x00-\x02]+)\x01([^\x00-\x02]+)\x02")
_TOPIC: Final = re.compile(rb"[!-.0-~]{1,%d}" % MAX_TOPIC_BYTES)
_QUEUE: Final = re.compile(rb"[0-9]{1,9}")
_NUMBER: Final = re.compile(rb"[0-9]{1,16}")
_CANONICAL: Final = re.compile(rb"0|[1-9][0-9]{0,15}")


class Looked:
    """Records of one look, by their numbers. A column has a value for each, which counts where the record is `ordinary`."""

    __slots__ = (
        *("content", "count", "groups", "held", "names", "ordinary"),
        *("at", "code", "group", "is_added", "key_at", "key_length", "number", "place", "size"),
    )

    def __init__(self, content: bytes, count: int, names: Names) -> None:
        self.content = content
        self.count = count
        self.names = names
        self.ordinary = bytearray(count)
        self.groups: Sequence[QueueKey] = ()  # the queues that the messages were sent to, each once
        self.at = self.group = self.number = self.place = self.is_added = self.code = array("q")
        self.size = self.key_at = self.key_length = array("q")  # sizes of copies, without a checksum
        self.held: Any = None  # what C was given

    def key(self, number: int) -> str:
        """The KEY of a message, "" without."""
        at = self.key_at[number]
        return str(self.content[at : at + self.key_length[number]], "utf-8", "replace")


class Copies(NamedTuple):
    """Messages that are stored again: those of the ordinary records `[begin, end)` of a look, in the queues that `targets` has
    for each of its groups."""

    looked: Looked
    begin: int
    end: int
    targets: Sequence[QueueKey | None]

    @property
    def messages(self) -> int:
        return self.end - self.begin

    @property
    def size_bytes(self) -> int:
        """Without checksums over whole records."""
        return sum(self.looked.size[self.begin : self.end])

    def by_topic(self) -> Mapping[str, tuple[int, int]]:
        """How many messages are for each topic, and their bytes, without checksums."""
        topics = {target[0] for target in self.targets if target is not None}
        if len(topics) == 1:
            return {topics.pop(): (self.messages, self.size_bytes)}
        found: dict[str, tuple[int, int]] = {}
        columns = zip(self.looked.group[self.begin : self.end], self.looked.size[self.begin : self.end], strict=True)
        for group, size in columns:
            topic = self.target_of(group)[0]
            messages, size_bytes = found.get(topic, (0, 0))
            found[topic] = messages + 1, size_bytes + size
        return found

    def target_of(self, group: int) -> QueueKey:
        """Where the messages of a group go."""
        target = self.targets[group]
        assert target is not None, "a message without a target is not copied"
        return target

    def drafts(self) -> Iterator[Draft]:
        """The messages, decoded."""
        looked = self.looked
        place_name = next((name for name, role in looked.names.items() if role is Role.PLACE), "")
        for number in range(self.begin, self.end):
            topic, queue_id = self.target_of(looked.group[number])
            draft = Draft.again(decode_record(looked.content, looked.at[number]))
            properties = draft.properties
            if looked.is_added[number]:
                properties += b"%b\x01%d\x02" % (place_name.encode(), looked.place[number])
            yield draft._replace(topic=topic, queue_id=queue_id, properties=properties)


class Again(Protocol):
    """How records are stored again. `most_bytes` is the size of the largest record."""

    def look(self, content: bytes, units: Sequence[Unit], places: Sequence[int], names: Names) -> Looked:
        """Look at the records of the units, which lie one behind the other; `places` is where each of them is now. Any bytes will
        do: records that are not what was stored are not ordinary."""

    def lay_out(self, run: Run, copies: Copies) -> AppendResult | None:
        """Lay out copies, one behind the other: where the first one is, and the size of all; None, and nothing laid out, when the
        run has no room."""


class _Found(NamedTuple):
    """Of one record."""

    target: QueueKey
    number: int
    place: int
    is_added: bool
    code: int
    size: int
    key: bytes


class PythonAgain:
    """In Python."""

    def __init__(self, store_host: bytes, most_bytes: int) -> None:
        self._store_host = store_host
        self._most_bytes = most_bytes

    def look(self, content: bytes, units: Sequence[Unit], places: Sequence[int], names: Names) -> Looked:
        looked = Looked(content, len(units), names)
        columns: list[tuple[int, ...]] = []
        groups: dict[QueueKey, int] = {}
        at = 0
        for n, ((offset, size, _), place) in enumerate(zip(units, places, strict=True)):
            record = content[at : at + max(0, size)]
            found = _look_at(record, offset, size, place, names, self._most_bytes)
            if found is None:
                columns.append((at, *repeat(0, 8)))
            else:
                looked.ordinary[n] = 1
                group = groups.setdefault(found.target, len(groups))
                key_at = at + record.index(b"\x01" + found.key + b"\x02") + 1 if found.key else 0
                numbers = (found.number, found.place, found.is_added, found.code, found.size, key_at, len(found.key))
                columns.append((at, group, *numbers))
            at = len(content) if size < 0 or size > len(content) - at else at + len(record)
        if columns:
            looked.at, looked.group, looked.number, looked.place, looked.is_added, looked.code, *rest = (
                array("q", column) for column in zip(*columns, strict=True)
            )
            looked.size, looked.key_at, looked.key_length = rest
        looked.groups = list(groups)
        return looked

    def lay_out(self, run: Run, copies: Copies) -> AppendResult | None:
        size = copies.size_bytes + (copies.messages * checksum.TAIL_BYTES if run.seals else 0)
        if size > run.room:
            return None
        position = run.end_offset
        for draft in copies.drafts():
            lay_out_draft(run, draft, self._store_host, NO_RULES, self._most_bytes)
        return AppendResult(position, size, -1, run.end_offset)


def _look_at(record: bytes, offset: int, size: int, own_place: int, names: Names, most_bytes: int) -> _Found | None:
    """None of a record that is not ordinary."""
    if len(record) != size or size < RECORD_OVERHEAD_BYTES:
        return None
    said_size, magic, said_offset, sys_flag = _HEAD.unpack_from(record)
    if (said_size, magic, said_offset) != (size, MAGIC_V1, offset) or sys_flag & (
        SYS_V6_HOSTS | SYS_TRANSACTION_PREPARED
    ):
        return None
    if not checksum.is_intact(record):
        return None
    try:
        decoded = decode_record(record)
    except ProtocolError:
        return None
    if (
        len(decoded.body) > MAX_BODY_BYTES
        or not body_is_intact(decoded)
        or not _TOPIC.fullmatch(decoded.topic.encode())
    ):
        return None
    properties = checksum.without(decoded.properties)
    values = _values(properties, names)
    if values is None:
        return None
    topic, queue = values.get(Role.TOPIC, b""), values.get(Role.QUEUE, b"")
    tag, number = values.get(Role.TAGS, b""), values.get(Role.NUMBER, b"")
    placed = _place(properties, values, own_place, names)
    if not _TOPIC.fullmatch(topic) or not _QUEUE.fullmatch(queue) or not _is_utf8(tag) or placed is None:
        return None
    if Role.NUMBER in names.values() and not _NUMBER.fullmatch(number):
        return None
    place, added = placed
    length = len(properties) + len(added)
    copy_size = record_size(len(topic), len(decoded.body), length)
    if length + checksum.TAIL_BYTES > MAX_PROPERTIES_BYTES or copy_size + checksum.TAIL_BYTES > most_bytes:
        return None
    return _Found(
        (topic.decode(), int(queue)),
        int(number) if number else -1,
        place,
        bool(added),
        tags_code(properties),
        copy_size,
        values.get(Role.KEY, b""),
    )


def _values(properties: bytes, names: Names) -> dict[Role, bytes] | None:
    """What the properties say; None when one of them is not whole or unusual, or one that is looked for is there twice."""
    if not _WHOLE.fullmatch(properties):
        return None
    values: dict[Role, bytes] = {}
    for name, value in _PROPERTY.findall(properties):
        role = Role.TAGS if name == TAGS.encode() else names.get(str(name, "utf-8", "replace"))
        if role is Role.UNUSUAL or role in values:
            return None
        if role is not None:
            values[role] = value
    return values


def _place(properties: bytes, values: Mapping[Role, bytes], own_place: int, names: Names) -> tuple[int, bytes] | None:
    """The message's place, and what its properties get for it; None when that is not clear."""
    place_name = next((name for name, role in names.items() if role is Role.PLACE), "")
    if not place_name:
        return own_place, b""
    said = values.get(Role.PLACE, b"")
    if bool(said) != (Role.TIMES in values) or own_place < 0:
        return None
    if not said:
        return own_place, b"%b\x01%d\x02" % (place_name.encode(), own_place)
    written = [name for name, _ in _PROPERTY.findall(properties)]
    is_plain = len(set(written)) == len(written) <= _MAX_COMPARED and _is_utf8(properties)
    is_plain = is_plain and not any(name.startswith(_TAIL_NAME) for name in written)
    return (int(said), b"") if is_plain and _CANONICAL.fullmatch(said) else None


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
