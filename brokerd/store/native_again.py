"""`again.Again` over `brokerd/native/again.c`, which knows records with IPv4 hosts and leaves others."""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain, starmap
from typing import Final

from brokerd.native.library import Library
from brokerd.store.again import TAGS, Again, Copies, Looked, Names, PythonAgain, Role
from brokerd.store.log.derive import Entry
from brokerd.store.log.native_derive import Gatherer
from brokerd.store.queues.queue_offsets import QueueKey, TakenOffsets
from brokerd.store.run import AppendResult, Run
from brokerd.store.unit import UNIT, Unit
from remoting.record import checksum
from remoting.record.codec import encode_record
from remoting.record.hosts import pack_host
from remoting.record.layout import HOST_BYTES

_MAX_NAME_BYTES: Final = 31
# The structs of again.c
_NAME: Final = struct.Struct(f"={_MAX_NAME_BYTES}sBi")
_GROUP_NUMBERS: Final = 3
_SLOT_NUMBERS: Final = 2
_COLUMNS: Final = ("at", "group", "number", "place", "is_added", "code", "size", "key_at", "key_length")


class _Look(ctypes.Structure):
    _fields_ = (
        ("content", ctypes.c_char_p),
        ("length", ctypes.c_int64),
        ("units", ctypes.c_char_p),
        ("own_places", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("names", ctypes.c_char_p),
        ("names_count", ctypes.c_int64),
        ("most_bytes", ctypes.c_int64),
        ("ordinary", ctypes.c_void_p),
        *((column, ctypes.c_void_p) for column in _COLUMNS),
        ("groups", ctypes.c_void_p),
        ("buckets", ctypes.c_void_p),
        ("buckets_count", ctypes.c_int64),
        ("groups_count", ctypes.c_int64),
    )


class _Copying(ctypes.Structure):
    _fields_ = (
        ("look", ctypes.POINTER(_Look)),
        ("begin", ctypes.c_int64),
        ("end", ctypes.c_int64),
        ("slot_of", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("slots_count", ctypes.c_int64),
        ("out", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("room", "position", "timestamp_ms", "seals")),
        ("queue_offsets", ctypes.c_void_p),
        ("store_host", ctypes.c_uint8 * HOST_BYTES),
    )


class NativeAgain:
    """By the library, for IPv4 hosts."""

    def __init__(self, library: Library, store_host: bytes, most_bytes: int) -> None:
        self._look = library.function("native_again_look", None, ctypes.c_void_p)
        self._write = library.function("native_again_write", ctypes.c_int64, ctypes.c_void_p)
        self._columns = Gatherer(library)
        self._store_host = (ctypes.c_uint8 * HOST_BYTES)(*store_host)
        self._most_bytes = most_bytes

    def look(self, content: bytes, units: Sequence[Unit], places: Sequence[int], names: Names) -> Looked:
        looked, count = Looked(content, len(units), names), len(units)
        if not count:
            return looked
        encoded_names = b"".join([*(_name(*each) for each in names.items()), _name(TAGS, Role.TAGS)])
        groups, buckets, own = (
            _zeros(_GROUP_NUMBERS * count),
            array("i", bytes(4 << count.bit_length())),
            array("q", places),
        )
        look = _Look(
            content=content,
            length=len(content),
            units=b"".join(starmap(UNIT.pack, units)),
            own_places=_address(own),
            count=count,
            names=encoded_names,
            names_count=len(encoded_names) // _NAME.size,
            most_bytes=self._most_bytes,
            ordinary=ctypes.addressof(ctypes.c_char.from_buffer(looked.ordinary)),
            groups=_address(groups),
            buckets=_address(buckets),
            buckets_count=len(buckets),
        )
        for name in _COLUMNS:
            column = _zeros(count)
            setattr(looked, name, column)
            setattr(look, name, _address(column))
        self._look(ctypes.addressof(look))
        numbers = groups[: _GROUP_NUMBERS * look.groups_count]
        looked.groups = [
            (str(content[at : at + length], "ascii"), queue_id)
            for at, length, queue_id in zip(numbers[0::3], numbers[1::3], numbers[2::3], strict=True)
        ]
        looked.held = (look, own, groups, buckets)
        return looked

    def lay_out(self, run: Run, copies: Copies) -> AppendResult | None:
        looked, begin, end, targets = copies
        sizes = looked.size[begin:end]
        if run.seals:
            sizes = array("q", [size + checksum.TAIL_BYTES for size in sizes])
        size, position = sum(sizes), run.end_offset
        if size > run.room:
            return None
        keys: dict[QueueKey, int] = {}
        slot_of = array("q", [-1 if each is None else keys.setdefault(each, len(keys)) for each in targets])
        slots = array("q", [number for key in keys for number in (key[1], run.next_offsets[key])])
        out, offsets = bytearray(size), _zeros(len(sizes))
        copying = _Copying(
            look=ctypes.pointer(looked.held[0]),
            begin=begin,
            end=end,
            slot_of=_address(slot_of),
            slots=_address(slots),
            slots_count=len(keys),
            out=ctypes.addressof(ctypes.c_char.from_buffer(out)),
            room=size,
            position=position,
            timestamp_ms=run.timestamp_ms,
            seals=run.seals,
            queue_offsets=_address(offsets),
            store_host=self._store_host,
        )
        written = self._write(ctypes.addressof(copying))
        assert written == size, f"copies of {size} bytes are {written}"
        counts: list[int] = []
        for key, next_offset in zip(keys, slots[1::_SLOT_NUMBERS], strict=True):
            counts.append(next_offset - run.next_offsets[key])
            if counts[-1]:
                run.next_offsets[key] = next_offset
        columns = {
            "place": array("q", accumulate(sizes[:-1], initial=position)),
            "group": looked.group[begin:end],
            "queue_offset": offsets,
            "size": sizes,
            "code": looked.code[begin:end],
            "timestamp_ms": array("q", (run.timestamp_ms,)) * len(sizes),
        }
        entries: Sequence[Entry]
        if len(keys) == len(targets) and all(counts):
            lasts = [run.next_offsets[key] - 1 for key in keys]
            entries = self._columns(list(keys), counts, columns, lasts)
        else:
            entries = _one_by_one(copies, columns)
        run.add_together(out, entries, size)
        return AppendResult(position, size, -1, run.end_offset)


def _one_by_one(copies: Copies, columns: Mapping[str, array[int]]) -> list[Entry]:
    """Entries of copies, of which some go to one queue from several, or which are not for all queues that were looked at."""
    queues = [copies.targets[group] or ("", -1) for group in columns["group"]]
    numbers = (columns[name] for name in ("queue_offset", "place", "size", "code", "timestamp_ms"))
    return [(*queue, *each, 1) for queue, *each in zip(queues, *numbers, strict=True)]


def _name(name: str, role: Role) -> bytes:
    encoded = name.encode()
    assert len(encoded) <= _MAX_NAME_BYTES
    return _NAME.pack(encoded, len(encoded), role)


def _zeros(count: int) -> array[int]:
    return array("q", bytes(8 * count))


def _address(area: array[int]) -> int:
    return area.buffer_info()[0]


def again_for(library: Library | None, store_host: bytes, most_bytes: int) -> Again:
    """In C where there is a library and the broker has the kind of address that it knows."""
    if library is None or len(store_host) != HOST_BYTES:
        return PythonAgain(store_host, most_bytes)
    return NativeAgain(library, store_host, most_bytes)


def again_agrees(library: Library) -> bool:
    """Whether the library copies records as Python does: with and without a place, in several queues, one that it leaves."""
    host, names = pack_host("192.0.2.1", 10911), {"T": Role.TOPIC, "Q": Role.QUEUE, "P": Role.PLACE, "N": Role.TIMES}
    records: list[bytes] = []
    for properties in (
        b"T\x01Own\x02Q\x013\x02",
        b"TAGS\x01\xc3\xa9\x02T\x01Own\x02Q\x013\x02",
        b"T\x01Own\x02",
        b"Q\x014\x02T\x01o\x02",
    ):
        for added in (b"", b"P\x0177\x02N\x011\x02"):
            record = encode_record(
                topic=b"Wait",
                queue_id=0,
                queue_offset=len(records),
                physical_offset=sum(map(len, records)),
                body=bytes(range(40)),
                properties=checksum.reserve(properties + added),
                born_timestamp_ms=3,
                born_host=host,
                store_timestamp_ms=4,
                store_host=host,
            )
            records.append(checksum.seal(record))
    units = [(sum(map(len, records[:n])), len(record), 0) for n, record in enumerate(records)]
    outcomes = []
    for again in (PythonAgain(host, 4096), NativeAgain(library, host, 4096)):
        looked = again.look(b"".join(records), units, range(5, 5 + len(units)), names)
        run = Run(1 << 33, 1 << 34, 1 << 30, 1_700_000_000_000, TakenOffsets({("Own", 3): 9}), True)
        for begin, end in ((0, 4), (6, 8)):
            if all(looked.ordinary[begin:end]):
                again.lay_out(run, Copies(looked, begin, end, looked.groups))
        entries = list(chain.from_iterable(part for _, part, _ in run.offers()))
        outcomes.append((bytes(looked.ordinary), b"".join(run.records), entries, sorted(run.next_offsets.items())))
    return outcomes[0] == outcomes[1] and outcomes[0][0] == b"\1\1\1\1\0\0\1\1"
