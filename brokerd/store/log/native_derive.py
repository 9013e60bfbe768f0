"""`derive.derive` over `brokerd/native/walk.c`. What C leaves is the codes of some entries, which are made here: by rules that it
has not, and of tags that are not UTF-8."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, overload

from brokerd.native.library import Library
from brokerd.store.log.derive import NO_RULES, CodeRules, Derived, RecordShape, TwinRule, derive
from brokerd.store.log.entry_columns import COLUMNS, GROUP_NUMBERS, EntryColumns
from brokerd.store.log.laid_out import QueueKey
from remoting.disk import Bytes
from remoting.record import checksum
from remoting.record.codec import encode_filler, encode_record
from remoting.record.hosts import pack_host
from remoting.record.layout import SYS_TRANSACTION_COMMIT, SYS_TRANSACTION_PREPARED, SYS_TRANSACTION_ROLLBACK
from remoting.record.properties import tags_code
from remoting.record.walk import Stop

_KEY_NUMBERS: Final = 3  # of a group: topic, its length, queue id
_GROUP_COUNT: Final = 3  # which number of a group that is
_GROUP_LAST: Final = 4
_STOPS: Final = (Stop.END, Stop.PARTIAL, Stop.DAMAGED)  # as walk.c numbers them


class _Rule(ctypes.Structure):
    _fields_ = (("topic", ctypes.c_char_p), ("topic_length", ctypes.c_int64), ("code_of", ctypes.c_void_p))


class _Walk(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_char_p),
        *((name, ctypes.c_int64) for name in ("length", "offset", "file_size", "most_bytes", "checks_content")),
        ("rules", ctypes.c_void_p),
        ("rules_count", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in (*COLUMNS, "is_left", "groups", "buckets")),
        *((name, ctypes.c_int64) for name in ("buckets_count", "room", "count", "groups_count", "left_count")),
        *((name, ctypes.c_int64) for name in ("end", "stop", "needs", "last_timestamp_ms")),
    )


class Gatherer:
    """Makes `EntryColumns` of columns that others filled, each queue's entries of which C puts together."""

    def __init__(self, library: Library) -> None:
        self._gather = library.function("native_walk_gather", None, *[ctypes.c_void_p] * 4)

    def __call__(
        self, keys: Sequence[QueueKey], counts: Sequence[int], columns: Mapping[str, array[int]], lasts: Sequence[int]
    ) -> EntryColumns:
        """`counts` are the entries of each queue, at least one, and `lasts` the queue offset of the last of them; the column
        `group` has numbers of queues."""
        count, groups = sum(counts), array("q", bytes(8 * GROUP_NUMBERS * len(keys)))
        groups[_GROUP_COUNT::GROUP_NUMBERS] = array("q", counts)
        groups[_GROUP_LAST::GROUP_NUMBERS] = array("q", lasts)
        walk = _Walk(count=count, groups=groups.buffer_info()[0], groups_count=len(keys))
        for name, column in columns.items():
            assert len(column) >= count, "a column has a number for each entry"
            setattr(walk, name, column.buffer_info()[0])
        return EntryColumns(keys, count, columns, groups, partial(self._gather, ctypes.byref(walk)))


class NativeDeriver:
    """Does what `derive` does."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._count = library.function("native_walk_count", ctypes.c_int64, ctypes.c_void_p)
        self._walk = library.function("native_walk", None, ctypes.c_void_p)
        self._gather = library.function("native_walk_gather", None, *[ctypes.c_void_p] * 4)
        self._told: tuple[CodeRules, Any] = (NO_RULES, (_Rule * 0)())  # the rules of the last call, and as C knows them

    def __call__(self, data: Bytes, physical_offset: int, shape: RecordShape, rules: CodeRules) -> Derived:
        content = data if isinstance(data, bytes) else bytes(data)
        told = self._rules_in_c(rules)
        walk = _Walk(
            data=content,
            length=len(content),
            offset=physical_offset,
            file_size=shape.file_size,
            most_bytes=shape.max_record_bytes,
            checks_content=shape.check_content,
            rules=ctypes.addressof(told),
            rules_count=len(told),
        )
        walk.room = count = self._count(ctypes.addressof(walk))
        columns = {name: array("q", bytes(8 * count)) for name in COLUMNS}
        is_left, groups = array("b", bytes(count)), array("q", bytes(8 * GROUP_NUMBERS * count))
        buckets = array("i", bytes(4 << count.bit_length()))
        for name, area in (*columns.items(), ("is_left", is_left), ("groups", groups), ("buckets", buckets)):
            setattr(walk, name, area.buffer_info()[0])
        walk.buckets_count = len(buckets)
        self._walk(ctypes.addressof(walk))
        del groups[GROUP_NUMBERS * walk.groups_count :]
        keys = LogKeys(content, groups)
        if walk.left_count:
            _make_left(content, walk, keys, columns, is_left.tobytes(), rules)
        walk.buckets, walk.groups = None, groups.buffer_info()[0]
        gather = partial(self._gather, ctypes.byref(walk))
        entries = EntryColumns(keys, walk.count, columns, groups, gather, ctypes.addressof(walk))
        end = physical_offset + walk.end
        return Derived(entries, end, _STOPS[walk.stop], walk.needs, walk.last_timestamp_ms)

    def _rules_in_c(self, rules: CodeRules) -> Any:
        """A rule without a function in C is there without one."""
        known, told = self._told  # at once: a helper thread may be here, too
        if rules is not known:
            told = (_Rule * len(rules))()
            for each, (topic, rule) in zip(told, rules.items(), strict=True):
                each.topic = encoded = topic.encode("utf-8", "surrogateescape")
                each.topic_length = len(encoded)
                if isinstance(rule, TwinRule):
                    each.code_of = _address_of(self._library, rule)
            self._told = rules, told
        return told


def _address_of(library: Library, rule: TwinRule) -> int | None:
    arguments = ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64
    function: Any = library.function(rule.native_name, ctypes.c_int64, *arguments)
    return ctypes.cast(function, ctypes.c_void_p).value


class LogKeys(Sequence[QueueKey]):
    """The queues that C found among bytes of the log, made when somebody asks: of ten thousand hardly anybody does."""

    __slots__ = ("_content", "_groups", "_made")

    def __init__(self, content: bytes, groups: array[int]) -> None:
        self._content = content
        self._groups = groups
        self._made: list[QueueKey] | None = None

    def __len__(self) -> int:
        return len(self._groups) // GROUP_NUMBERS

    def __iter__(self) -> Iterator[QueueKey]:
        if self._made is None:
            numbers = (self._groups[each::GROUP_NUMBERS] for each in range(_KEY_NUMBERS))
            self._made = [self._key(*each) for each in zip(*numbers, strict=True)]
        return iter(self._made)

    @overload
    def __getitem__(self, index: int) -> QueueKey: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[QueueKey]: ...
    def __getitem__(self, index: int | slice) -> QueueKey | Sequence[QueueKey]:
        if isinstance(index, slice) or self._made is not None:
            return list(self)[index]
        at = range(len(self))[index] * GROUP_NUMBERS
        return self._key(*self._groups[at : at + _KEY_NUMBERS])

    def _key(self, at: int, length: int, queue_id: int) -> QueueKey:
        return str(self._content[at : at + length], "utf-8", "surrogateescape"), queue_id


def _make_left(
    content: bytes, walk: _Walk, keys: Sequence[QueueKey], columns: dict[str, array[int]], left: bytes, rules: CodeRules
) -> None:
    """Make the codes that C has left."""
    row = left.find(1)
    while row >= 0:
        topic, _ = keys[columns["group"][row]]
        end = columns["place"][row] - walk.offset + columns["size"][row]
        properties = content[columns["properties_at"][row] : end]
        rule = rules.get(topic)
        columns["code"][row] = tags_code(properties) if rule is None else rule(properties, columns["timestamp_ms"][row])
        row = left.find(1, row + 1)


def derive_agrees(library: Library) -> bool:
    """Whether the library derives what Python does: from whole logs, from any cut of one, and where a byte has changed."""
    native, log = NativeDeriver(library), _example()
    shape = RecordShape(len(log), 1000)
    cases = [(log, shape), (log, shape.checked()), (log, RecordShape(len(log) + 8, 100, True))]
    for at in range(0, len(log), 5):
        changed = log[:at] + bytes((log[at] ^ 1 << at % 8,)) + log[at + 1 :]
        cases += (changed, shape), (changed, shape.checked()), (log[:at], shape)
    rules = {"T" * 128: lambda properties, timestamp_ms: len(properties) + timestamp_ms}
    return all(is_same(native(data, 0, at, rules), derive(data, 0, at, rules)) for data, at in cases)


def is_same(one: Derived, other: Derived) -> bool:
    """Whether both have the same entries, and the same of all else."""
    return list(one.entries) == list(other.entries) and one[1:] == other[1:]


def _example() -> bytes:
    """A whole file of a log: each kind of hosts, topics, checksums and transactions, and tags."""
    v4, v6 = pack_host("192.0.2.1", 10911), pack_host("2001:db8::1", 10911)
    log = b""
    for number, (topic, born_host, store_host, properties, sys_flag) in enumerate(
        (
            (b"Topic", v4, v4, b"a\x01b\x02", 0),
            (b"Topic", v4, v6, b"TAGS\x01x\x02TAGS\x01\xc3\xa9", SYS_TRANSACTION_COMMIT),
            (b"Other", v4, v4, b"", SYS_TRANSACTION_PREPARED),
            (b"Topic", v6, v4, b"a\x01b\x02TAGS\x01\xff\x02", 0),
            (b"T" * 128, v6, v6, b"a", 0),
            (b"Topic", v4, v4, b"", SYS_TRANSACTION_ROLLBACK),
        )
    ):
        record = encode_record(
            topic=topic,
            queue_id=number % 2,
            queue_offset=number,
            physical_offset=len(log),
            body=bytes(range(9)),
            properties=checksum.reserve(properties) if properties else properties,
            born_timestamp_ms=3,
            born_host=born_host,
            store_timestamp_ms=40 + number,
            store_host=store_host,
            sys_flag=sys_flag,
        )
        log += checksum.seal(record) if properties else record
    return log + encode_filler(24)
