"""What the library in C is asked before it lays out sends: the same as its twin lays out, for one send of each kind."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import partial
from typing import Final

from brokerd.metadata.configs import PERM_READ, PERM_WRITE, TopicConfig
from brokerd.native.library import Library
from brokerd.sending.boundary import Source, Taken
from brokerd.sending.halves import LaidOutHalves
from brokerd.sending.kernel import Kernel
from brokerd.sending.native_kernel import NativeKernel
from brokerd.sending.progress import Progress
from brokerd.sending.stored_form import AskTerms, KernelRules
from brokerd.sending.unique_ids import UniqueIds
from brokerd.store.queues.queue_offsets import TakenOffsets
from brokerd.store.run import Run
from brokerd.timers.codes import SLOT_MS
from brokerd.timers.done import Done
from brokerd.timers.handles import KEY_BYTES
from brokerd.timers.rules import Clock
from brokerd.timers.slots import SlotLimit
from brokerd.timers.terms import Terms
from brokerd.transactions.decide import HalfRoom
from brokerd.transactions.records import Half
from remoting import codes, frame
from remoting.record.layout import HOST_BYTES, LENGTH

_ITEM: Final = struct.Struct(">iIIii")
_TOPIC: Final = "Orders"
_STORE_HOST: Final = bytes(range(10, 10 + HOST_BYTES))
_NOW_MS: Final = 1_700_000_000_000
_TERMS: Final = Terms(Clock(_NOW_MS, _NOW_MS + 50, 100_000), 1 << 40, bytes(range(KEY_BYTES)), "broker-größe")
_SECONDS: Final = range(_NOW_MS, _NOW_MS + 600_000, SLOT_MS)  # in which messages of these are due
_ASKS: Final = (
    "TIMER_DELAY_SEC\x015\x02",
    "TIMER_DELAY_MS\x0120\x02",
    f"mine\x01x\x02TIMER_DELIVER_MS\x01{_NOW_MS + 120_000}\x02",
    "TIMER_DELAY_SEC\x01500\x02",
    f"TIMER_DELIVER_MS\x01{_NOW_MS - 1}\x02",
)
_PEER: Final = bytes(range(40, 40 + HOST_BYTES))


def send_agrees(library: Library) -> bool:
    """Whether the library lays out sends of each kind, none left, as its twin does, and they count in the same seconds."""
    theirs_of, ours_of = (_TERMS._replace(slots=_slots()) for _ in range(2))
    twin = Kernel(_STORE_HOST, _rules(lambda: theirs_of))
    native = NativeKernel(library, _STORE_HOST, _rules(lambda: ours_of))
    for kernel in (twin, native):
        kernel.topics_changed({_TOPIC: TopicConfig(_TOPIC, 4, 4, PERM_READ | PERM_WRITE)})
    sends = _sends()
    data = b"".join(sends)
    for seals in (True, False):
        wanted, found = _run(seals), _run(seals)
        source = Source(data, 0, _PEER, len(sends))
        theirs, progress = twin.take_one(wanted, source), Progress([source])
        native.lay_out(found, progress)
        if not progress.index:  # it asked by what messages wait
            native.lay_out(found, progress)
        ours = progress.found[0]
        if ours.position != len(data) or _results(wanted, theirs) != _results(found, ours):
            return False
        if _counts(theirs_of) != _counts(ours_of):
            return False
    return True


class _Transactions:
    """Any number may begin."""

    def room(self) -> HalfRoom:
        return HalfRoom(1 << 20, 1 << 30)

    def begun(self, halves: Sequence[Half], end_offset: int) -> None: ...


def _rules(terms: AskTerms) -> KernelRules:
    return KernelRules(UniqueIds(_NOW_MS), terms, (1000, 5000), "", LaidOutHalves(_Transactions()))


def _slots() -> SlotLimit:
    return SlotLimit(lambda: 1 << 20, lambda: (0, 0), lambda _first, _count: (), Done, tuple)


def _counts(terms: Terms) -> list[int]:
    return [terms.slots.count(slot_ms) for slot_ms in _SECONDS] if terms.slots is not None else []


def _run(seals: bool) -> Run:
    return Run(1 << 33, 1 << 34, 1 << 30, _NOW_MS, TakenOffsets({(_TOPIC, 1): 99}), seals)


def _results(run: Run, taken: Taken) -> tuple[object, ...]:
    """What both must agree in. Of entries: how many messages lie where one begins, which is in the records, too."""
    numbers = sorted(run.next_offsets.items())
    codes_of = [code for *_, code, _, count in run.all_entries() for _ in range(count)]
    places = run.end_offset, run.message_count, numbers, taken.position
    halves = [half for told in run.appended if isinstance(told, partial) for half in told.args[0]]
    return b"".join(run.records), codes_of, places, b"".join(taken.answers), taken.opaques, halves


def _sends() -> list[bytes]:
    """Singles with escapes, with characters of all lengths, with properties of a user's own, one-way; batches; those that wait
    for a moment of their own."""
    plain = "UNIQ_KEY\x01{}\x02WAIT\x01true\x02TAGS\x01{}\x02"
    common, own = plain.format("AB12" * 8, "größe-数-😀"), plain.format("x9", "t") + 'mine\x01is "it"\n\x02'
    items = [_item(number, b"b" * (10 + number // 2), plain.format(f"{number:032X}", "t")) for number in range(5)]
    return [
        _frame(1, 1, common, b"x" * 1000),
        _frame(2, 0, own, b"y"),
        _frame(3, 1, common, b"z" * 77, oneway=True),
        _frame(4, 3, own, b"".join(items), is_batch=True),
        _frame(5, 1, common, bytes(range(256))),
        *(_frame(6 + n, n % 4, common + ask, bytes(n + 1)) for n, ask in enumerate(_ASKS)),
        _frame(20, 3, own, b"".join(items) + _item(7, b"later", common + _ASKS[0]), is_batch=True),
        _frame(21, 0, common[:-1], b"open"),
        _frame(22, 1, "", b"unnamed"),
        _frame(23, 1, common + "DELAY\x012\x02", b"delayed"),
        _frame(24, 2, common + "TRAN_MSG\x01true\x02PGROUP\x01producer", b"half"),
        _frame(26, 2, common + "TRAN_MSG\x01true\x02PGROUP\x01p\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x0130", b"half"),
        _frame(25, 2, own, b"".join(_item(7, b"unnamed", "") for _ in range(3)), is_batch=True),
    ]


def _frame(
    opaque: int, queue_id: int, properties: str, body: bytes, *, is_batch: bool = False, oneway: bool = False
) -> bytes:
    fields = {
        **{"a": "producer", "b": _TOPIC, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0", "g": "1700000000000"},
        **{"h": "7", "i": properties, "j": "2", "k": "false", "m": "true" if is_batch else "false"},
    }
    code = codes.SEND_BATCH_MESSAGE if is_batch else codes.SEND_MESSAGE_V2
    return frame.encode_request(code, opaque, fields, body, oneway=oneway)


def _item(flag: int, body: bytes, properties: str) -> bytes:
    encoded = properties.encode()
    size = _ITEM.size + len(body) + LENGTH.size + len(encoded)
    return _ITEM.pack(size, 0, 0, flag, len(body)) + body + LENGTH.pack(len(encoded)) + encoded
