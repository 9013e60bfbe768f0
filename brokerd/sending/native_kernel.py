"""`boundary.SendKernel` over `brokerd/native/send.c`: what that leaves, its twin in Python does (`kernel.Kernel`).

One call of the library lays out as many frames as it can. It knows topics by a table that is made anew when they change, and
guesses the next offset of each queue from its last call; the run knows better (`next_offsets`), so what a call took is compared
with that before any of its results counts, and a call that guessed wrong is made again. So numbers have one owner in both modes.

Where the library stops at a frame, the twin takes that one and some behind it: nothing costs more than in Python alone but the
attempt. Requests that were decoded before are the twin's, too.
"""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Mapping, Sequence
from typing import Final

from brokerd.metadata.configs import TopicConfig
from brokerd.native.library import Library
from brokerd.sending.boundary import Stop, Taken
from brokerd.sending.kernel import Kernel
from brokerd.sending.timed import AskTerms, no_terms
from brokerd.store.queues.queue_offsets import QueueKey, TakenOffsets
from brokerd.store.run import Run
from brokerd.timers.handles import KEY_BYTES
from brokerd.timers.terms import MAX_BROKER_NAME_BYTES, Terms
from remoting import frame
from remoting.frame import Command
from remoting.names import TIMER_TOPIC
from remoting.record.layout import HOST_BYTES, MAX_TOPIC_BYTES

_TWINS_FRAMES: Final = 16  # that the twin takes in a row, before the library is tried again
_RECORDS_BYTES: Final = 1 << 19
_ANSWERS_BYTES: Final = 1 << 18
_SCRATCH_BYTES: Final = 1 << 16
_UNITS: Final = 4096
_FRAMES: Final = 1024

# The structs of send.c
_TARGET: Final = struct.Struct(f"={MAX_TOPIC_BYTES}sBii")
_SLOT_NUMBERS: Final = 2  # the next offset, and the last call
_TOUCHED_NUMBERS: Final = 2  # slot, and what the call took for its next offset
_UNIT: Final = struct.Struct("=iiqqqqq")
_REQUEST: Final = struct.Struct(f"=8q{HOST_BYTES}s")
_RESULTS: Final = struct.Struct("=10q")
_LEFT, _ROOM, _TERMS = 1, 2, 3
# The struct of moments.c
_TERMS_OF: Final = struct.Struct(f"=6q{KEY_BYTES}s{MAX_BROKER_NAME_BYTES + 1}s32xQ")
_STATE: Final = struct.Struct("=q")
_UNASKED, _KNOWN, _NONE = 0, 1, 2


class _Areas(ctypes.Structure):
    _fields_ = (
        *(
            (name, ctypes.c_int64 if name in ("target_count", "timer_slot") else ctypes.c_void_p)
            for name in ("targets", "target_count", "slots", "timer_slot", "terms")
        ),
        *((name, ctypes.c_void_p) for name in ("records", "answers", "scratch", "units", "opaques", "touched")),
        *(
            (f"{name}_room", ctypes.c_int64)
            for name in ("records", "answers", "scratch", "units", "opaques", "touched")
        ),
        ("max_frame_bytes", ctypes.c_int64),
        ("store_host", ctypes.c_uint8 * HOST_BYTES),
    )


class _Topics:
    """The table of topics and queues as the library has it; `keys` names the slots, the last of which is that of timers, and
    `names` the topics, the last of which is theirs."""

    def __init__(self, queues: Mapping[str, int]) -> None:
        self.names = sorted(queues, key=lambda name: (len(name), name))
        self.keys: list[QueueKey] = []
        packed = bytearray()
        for name in self.names:
            packed += _TARGET.pack(name.encode(), len(name), queues[name], len(self.keys))
            self.keys += [(name, queue_id) for queue_id in range(queues[name])]
        self.names.append(TIMER_TOPIC)
        self.keys.append((TIMER_TOPIC, 0))
        self.targets = array("b", bytes(packed) or b"\0")
        self.slots = array("q", bytes(8 * _SLOT_NUMBERS * len(self.keys)))


class NativeKernel:
    """The kernel; `twin` has the same topics, and is told of no others by anybody else."""

    def __init__(
        self,
        library: Library,
        store_host: bytes,
        terms: AskTerms = no_terms,
        *,
        max_frame_bytes: int = frame.MAX_FRAME_BYTES,
    ) -> None:
        """Records with an IPv6 host are none of its own: then it takes nothing, as its twin."""
        self._twin = Kernel(store_host, terms, max_frame_bytes=max_frame_bytes)
        self._ask_terms = terms
        self._queues: dict[str, int] = {}
        self._topics = _Topics({})
        self._are_topics_new = False
        self._call_number = 0
        place = ctypes.c_void_p
        self._send = library.function("native_send", None, place, place, place, ctypes.c_char_p)
        self._records, self._answers = bytearray(_RECORDS_BYTES), bytearray(_ANSWERS_BYTES)
        self._units, self._scratch = bytearray(_UNITS * _UNIT.size), bytearray(_SCRATCH_BYTES)
        self._records_view, self._answers_view = memoryview(self._records), memoryview(self._answers)
        self._units_view = memoryview(self._units)
        self._opaques, self._touched = array("q", bytes(8 * _FRAMES)), array("q", bytes(8 * _TOUCHED_NUMBERS * _FRAMES))
        self._terms = bytearray(_TERMS_OF.size)
        self._request, self._results = bytearray(_REQUEST.size), bytearray(_RESULTS.size)
        self._request_at, self._results_at = _address(self._request), _address(self._results)
        self._areas = _Areas(
            terms=_address(self._terms),
            records=_address(self._records),
            answers=_address(self._answers),
            scratch=_address(self._scratch),
            units=_address(self._units),
            opaques=_address(self._opaques),
            touched=_address(self._touched),
            records_room=_RECORDS_BYTES,
            answers_room=_ANSWERS_BYTES,
            scratch_room=_SCRATCH_BYTES,
            units_room=_UNITS,
            opaques_room=_FRAMES,
            touched_room=_FRAMES,
            max_frame_bytes=max_frame_bytes,
        )
        if len(store_host) == HOST_BYTES:
            self._areas.store_host[:] = store_host
        self._areas_at = ctypes.addressof(self._areas)
        self._hand_over()

    @property
    def topics(self) -> frozenset[str]:
        return self._twin.topics

    def topics_changed(self, topics: Mapping[str, TopicConfig | None]) -> None:
        self._twin.topics_changed(topics)
        taken = self._twin.topics
        for name, config in topics.items():
            if config is not None and name in taken:
                self._queues[name] = config.write_queue_nums
            else:
                self._queues.pop(name, None)
        self._are_topics_new = True

    def may_take(self, buffer: bytes, peer: bytes) -> bool:
        return self._twin.may_take(buffer, peer)

    def take(self, run: Run, buffer: bytes, position: int, peer: bytes, most: int) -> Taken:
        if len(peer) != HOST_BYTES:
            return self._twin.take(run, buffer, position, peer, most)
        taken = Taken()
        taken.position = position
        _STATE.pack_into(self._terms, 0, _UNASKED)
        while most:
            frames, stop = self.lay_out(run, buffer, peer, most, taken)
            most -= frames
            if stop == _ROOM:
                continue
            if stop != _LEFT or not most:
                break
            asked = min(most, _TWINS_FRAMES)
            others = self._twin.take(run, buffer, taken.position, peer, asked)
            taken.position = others.position
            taken.answers += others.answers
            taken.opaques += others.opaques
            if others.stop is not Stop.END:
                taken.stop = others.stop
                break
            most -= asked
        return taken

    def take_decoded(self, run: Run, requests: Sequence[Command], first: int, peer: bytes) -> Taken:
        return self._twin.take_decoded(run, requests, first, peer)

    def lay_out(self, run: Run, buffer: bytes, peer: bytes, most: int, taken: Taken) -> tuple[int, int]:
        """Lay out what the library itself takes, from `taken.position` on; how many frames it took, and why it stopped.

        `_ROOM`: call again. `take` forgets by what messages wait; it is asked for when one of them comes.
        """
        if self._are_topics_new:
            self._topics = _Topics(self._queues)
            self._hand_over()
        while True:
            self._call_number = number = self._call_number + 1
            _REQUEST.pack_into(
                self._request,
                0,
                *(len(buffer), taken.position, most, number, run.end_offset, run.limit, run.timestamp_ms, run.seals),
                peer,
            )
            self._send(self._areas_at, self._request_at, self._results_at, buffer)
            (position, end_offset, frames, stop, records, answers, units, messages, opaques, touched) = _RESULTS.unpack(
                self._results
            )
            if self._has_guessed(run.next_offsets, touched):
                break
        if frames:
            run.records.append(bytes(self._records_view[:records]))
            self._add_entries(run, units)
            run.folded += messages - units
            run.end_offset = end_offset
            taken.position = position
        if opaques:
            taken.answers.append(bytes(self._answers_view[:answers]))
            taken.opaques += self._opaques[:opaques]
        if stop == _TERMS:
            self._set_terms(self._ask_terms())
            stop = _ROOM
        return frames, stop

    def _set_terms(self, terms: Terms | None) -> None:
        if terms is None or terms.slots is not None:  # the twin counts
            _STATE.pack_into(self._terms, 0, _NONE)
        else:
            name = terms.broker_name.encode()
            now_ms, least_due_ms, window_ms, _ = terms.clock  # it is one time alone
            _TERMS_OF.pack_into(
                self._terms,
                0,
                *(_KNOWN, now_ms, least_due_ms, window_ms, terms.max_ahead_ms, len(name)),
                terms.key,
                name,
                0,
            )

    def _has_guessed(self, next_offsets: TakenOffsets, count: int) -> bool:
        """Whether the call took the right numbers for so many queues; then they are taken in the run, else guesses are set."""
        pairs, slots, keys = self._touched, self._topics.slots, self._topics.keys
        places = range(0, count * _TOUCHED_NUMBERS, _TOUCHED_NUMBERS)
        for at in places:
            if next_offsets[keys[pairs[at]]] != pairs[at + 1]:
                break
        else:
            for at in places:
                slot = pairs[at]
                next_offsets[keys[slot]] = slots[slot * _SLOT_NUMBERS]
            return True
        for at in places:
            slot = pairs[at]
            slots[slot * _SLOT_NUMBERS] = next_offsets[keys[slot]]
        return False

    def _add_entries(self, run: Run, count: int) -> None:
        names, now_ms, add = self._topics.names, run.timestamp_ms, run.entries.append
        for target, queue_id, queue_offset, position, size, code, messages in _UNIT.iter_unpack(
            self._units_view[: count * _UNIT.size]
        ):
            add((names[target], queue_id, queue_offset, position, size, code, now_ms, messages))

    def _hand_over(self) -> None:
        """The library gets the present topics."""
        self._areas.targets = _address(self._topics.targets)
        self._areas.target_count = len(self._topics.names) - 1
        self._areas.slots = _address(self._topics.slots)
        self._areas.timer_slot = len(self._topics.keys) - 1
        self._are_topics_new = False


def _address(area: bytearray | array[int]) -> int:
    """Where an area is that does not change its size."""
    return ctypes.addressof(ctypes.c_char.from_buffer(area))
