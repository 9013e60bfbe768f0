"""`boundary.SendKernel` over `brokerd/native/send.c`: what that leaves, its twin in Python does (`kernel.Kernel`).

One call of the library lays out as many frames as it can of what all peers sent. It knows topics by a table that is made anew
when they change, and takes the next offset of each queue from its owner's row (`QueueOffsets.numbers`), or from where an earlier
call for the run left it; what it took is stored there when the run is in the log (`_TakenSlots`). A queue that it meets for the
first time, and any queue while the twin, too, took numbers for the run, has a guess: what a call took is compared with the run's
(`next_offsets`) before any of its results counts, and a call that guessed wrong is made again. So numbers have one owner in both
modes; and so has the queue of a topic whose turn it is, where clients leave it to the broker: that is the twin.

Where there is a limit to how many messages wait for one second, those that a call took are counted before any of it counts; when
one has no room, the call is made again for the frames before it. How many transactions may begin is told to calls when one is to.

Where the library stops at a frame, the twin takes that one and some behind it: nothing costs more than in Python alone but the
attempt. Requests that were decoded before are the twin's, too.
"""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Callable, Mapping, Sequence, Set
from itertools import pairwise
from typing import Final

from brokerd.metadata.configs import TopicConfig
from brokerd.native.lane import ANSWERS_BYTES, MOST_SENDERS
from brokerd.native.library import Library
from brokerd.sending.boundary import Source, Stop, Taken, Together
from brokerd.sending.kernel import Kernel
from brokerd.sending.progress import Progress
from brokerd.sending.record_areas import RecordAreas
from brokerd.sending.stored_form import TIMERS, KernelRules
from brokerd.sending.unique_ids import UniqueIds
from brokerd.store.log.laid_out import LAID_OUT, LaidOut, QueueSlots, Tally
from brokerd.store.queues.queue_offsets import QueueKey, QueueOffsets, TakenOffsets
from brokerd.store.run import Run
from brokerd.timers.handles import KEY_BYTES
from brokerd.timers.slots import SlotLimit
from brokerd.timers.terms import MAX_BROKER_NAME_BYTES, Terms
from brokerd.transactions.decide import HalfRoom
from brokerd.transactions.records import Half
from remoting import frame
from remoting.frame import Command
from remoting.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from remoting.record.layout import HOST_V6_BYTES, MAX_TOPIC_BYTES

_TWINS_FRAMES: Final = 16  # that the twin takes in a row, before the library is tried again
_RECORDS_BYTES: Final = 1 << 19
_RECORDS_AREAS: Final = 10  # for a run: it ends behind 4 MiB
_ANSWERS_BYTES: Final = ANSWERS_BYTES  # whoever lays out elsewhere has as much room for them
_SCRATCH_BYTES: Final = 1 << 16
_UNITS: Final = 4096
_FRAMES: Final = 1024
_MOMENTS: Final = 4096
_HALVES: Final = _FRAMES
_SOURCES: Final = 2 * MOST_SENDERS
_ANY_FRAMES: Final = 1 << 40
_NOBODY: Final = frozenset[int]()
_UNREAD: Final = (0, 0)

# The structs of send.c
_TARGET: Final = struct.Struct(f"={MAX_TOPIC_BYTES}sBii")
_SLOT_NUMBERS: Final = 2  # the next offset, and the last call
_TOUCHED_NUMBERS: Final = 3  # slot, what the call took for its next offset, and what that is behind it
_TALLY_NUMBERS: Final = 3  # the last call, and what it took: messages, bytes
_ROWS: Final = struct.Struct("=4q")  # where rows of slots and numbers of rows are, and how many there are of both
_TAKE_ARGUMENTS: Final = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64)  # rows, what was touched, of how many slots
_REQUEST: Final = struct.Struct("=16q")
_SOURCE: Final = struct.Struct(f"=6q{HOST_V6_BYTES}s4x")
_PROGRESS_NUMBERS: Final = 4  # position, frames, and where answers and opaques of the source end among all
_MOMENT_NUMBERS: Final = (
    3  # when a message is due, the code of its entry, and how many frames the call took before its own
)
_HALF: Final = struct.Struct("=7q")
_NAME_BEGIN_BYTES: Final = 16
_RESULTS: Final = struct.Struct("=17q")
_LEFT, _ROOM, _TERMS = 1, 2, 3
# The struct of moments.c
_TERMS_OF: Final = struct.Struct(f"=6q{KEY_BYTES}s{MAX_BROKER_NAME_BYTES + 1}s32xQQ")
_STATE: Final = struct.Struct("=q")
_ARE_NEEDED: Final = struct.Struct(f"={_TERMS_OF.size - 8}xQ")
_UNASKED, _KNOWN, _NONE = 0, 1, 2

_BROKERS_TOPICS: Final = (TIMER_TOPIC, HALF_TOPIC, SCHEDULE_TOPIC)
_NO_ROOM: Final = HalfRoom(0, 0)
_UNASKED_ROOM: Final = HalfRoom(-1 << 62, 0)  # send.c says the same
_CALLS_AREAS: Final = ("request", "sources", "buffers", "progress", "results")
_AREAS: Final = (
    "records",
    "answers",
    "scratch",
    "units",
    "opaques",
    "touched",
    "turned",
    "moments",
    "halves",
    "tallied",
)


class _Areas(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in _CALLS_AREAS),
        *(
            (name, ctypes.c_int64 if name in ("target_count", "timer_slot", "delay_count") else ctypes.c_void_p)
            for name in (
                "targets",
                "target_count",
                "slots",
                "turns",
                "tallies",
                "timer_slot",
                "terms",
                "delays_ms",
                "delay_count",
            )
        ),
        *((name, ctypes.c_void_p) for name in (*_AREAS, "early")),
        *((f"{name}_room", ctypes.c_int64) for name in _AREAS),
        ("cluster", ctypes.c_char_p),
        ("cluster_length", ctypes.c_int64),
        ("max_frame_bytes", ctypes.c_int64),
        ("store_host_length", ctypes.c_int64),
        ("store_host", ctypes.c_uint8 * HOST_V6_BYTES),
        ("names_begin", ctypes.c_uint8 * _NAME_BEGIN_BYTES),
    )


class _Topics:
    """The table of topics and queues as the library has it; `keys` names the slots, `names` the topics. The last of both are the
    broker's: that of timers, that of half messages, and that of the delay levels with a slot for each of so many."""

    def __init__(self, queues: Mapping[str, int], levels: int) -> None:
        self.names = sorted(queues, key=lambda name: (len(name), name))
        self.keys: list[QueueKey] = []
        packed = bytearray()
        for name in self.names:
            packed += _TARGET.pack(name.encode(), len(name), queues[name], len(self.keys))
            self.keys += [(name, queue_id) for queue_id in range(queues[name])]
        self.names += _BROKERS_TOPICS
        self.timer_slot = len(self.keys)
        self.keys += [TIMERS, (HALF_TOPIC, 0), *((SCHEDULE_TOPIC, level) for level in range(max(1, levels)))]
        self.targets = array("b", bytes(packed) or b"\0")
        self.slots = array("q", bytes(8 * _SLOT_NUMBERS * len(self.keys)))
        self.turns = array("q", bytes(8 * _SLOT_NUMBERS * len(self.names)))
        self.tallies = array("q", bytes(8 * _TALLY_NUMBERS * len(self.names)))
        self.queues = QueueSlots(self.names, self.keys)


class _TakenSlots:
    """Numbers that a call took for queues."""

    __slots__ = ("_holder", "_slots", "_store", "_touched")

    def __init__(
        self, store: Callable[..., None], slots: QueueSlots, offsets: QueueOffsets, touched: array[int]
    ) -> None:
        """`touched` is as the call left it; all these queues have rows of these offsets."""
        self._store = store
        self._slots = slots
        self._holder = offsets.holder
        self._touched = touched

    def numbers(self) -> dict[QueueKey, int]:
        keys, touched = self._slots.keys, self._touched
        return {
            keys[slot]: number
            for slot, number in zip(touched[::_TOUCHED_NUMBERS], touched[2::_TOUCHED_NUMBERS], strict=True)
        }

    def store(self, offsets: QueueOffsets) -> None:
        assert offsets.holder is self._holder, "queues went while somebody held a run"
        touched, count = self._touched.buffer_info()
        self._store(_ROWS.pack(*_rows_of(self._slots, offsets)), touched, count // _TOUCHED_NUMBERS)


def _rows_of(slots: QueueSlots, offsets: QueueOffsets) -> tuple[int, int, int, int]:
    """`struct rows`, while nobody has another row."""
    (rows, slot_count), (numbers, count) = slots.rows.of(offsets.holder).buffer_info(), offsets.numbers.buffer_info()
    return rows, numbers, slot_count, count


class NativeKernel:
    """The kernel; `twin` has the same topics, and is told of no others by anybody else."""

    def __init__(
        self,
        library: Library,
        store_host: bytes,
        rules: KernelRules | None = None,
        *,
        max_frame_bytes: int = frame.MAX_FRAME_BYTES,
    ) -> None:
        """See `Kernel`."""
        self._rules = rules = rules or KernelRules(UniqueIds(0))
        self._twin = Kernel(store_host, rules, max_frame_bytes=max_frame_bytes)
        self.may_take = self._twin.may_take
        self._queues: dict[str, int] = {}
        self._topics = _Topics({}, len(rules.delays))
        self._are_topics_new = False
        self._asks_halves = self._had_halves = False
        self._call_number = 0
        self._present = TakenOffsets({})  # of the run of the last call,
        self._since = 0  # and the number of the first call for it
        self._lent_names = range(0)  # the numbers of those that somebody else may give
        self._send = library.function("native_send", None, ctypes.c_void_p)
        self._take_numbers = library.function("native_take_numbers", None, *_TAKE_ARGUMENTS)
        self._records = RecordAreas(_RECORDS_BYTES, _RECORDS_AREAS)
        self._answers = bytearray(_ANSWERS_BYTES)
        self._units, self._scratch = bytearray(_UNITS * LAID_OUT.size), bytearray(_SCRATCH_BYTES)
        self._answers_view = memoryview(self._answers)
        self._units_view = memoryview(self._units)
        self._opaques, self._touched = array("q", bytes(8 * _FRAMES)), array("q", bytes(8 * _TOUCHED_NUMBERS * _FRAMES))
        self._turned = array("q", bytes(8 * _TOUCHED_NUMBERS * _FRAMES))
        self._tallied = array("q", bytes(8 * _FRAMES))
        self._moments = array("q", bytes(8 * _MOMENT_NUMBERS * _MOMENTS))
        self._halves = bytearray(_HALVES * _HALF.size)
        self._halves_view = memoryview(self._halves)
        self._early = array("q", bytes(8 * _FRAMES))
        self._delays_ms = array("q", rules.delays or [0])
        self._cluster = rules.cluster.encode()
        self._terms = bytearray(_TERMS_OF.size)
        self._slots: SlotLimit | None = None  # of these terms
        self._request, self._results = bytearray(_REQUEST.size), bytearray(_RESULTS.size)
        self._sources = bytearray(_SOURCE.size * _SOURCES)
        self._progress = array("q", bytes(8 * _PROGRESS_NUMBERS * _SOURCES))
        self._buffers = (ctypes.c_char_p * _SOURCES)()
        self._areas = _Areas(
            request=_address(self._request),
            sources=_address(self._sources),
            buffers=ctypes.addressof(self._buffers),
            progress=_address(self._progress),
            results=_address(self._results),
            terms=_address(self._terms),
            delays_ms=_address(self._delays_ms),
            delay_count=len(rules.delays),
            records=self._records.address,
            answers=_address(self._answers),
            scratch=_address(self._scratch),
            units=_address(self._units),
            opaques=_address(self._opaques),
            touched=_address(self._touched),
            turned=_address(self._turned),
            moments=_address(self._moments),
            halves=_address(self._halves),
            tallied=_address(self._tallied),
            early=_address(self._early),
            records_room=_RECORDS_BYTES,
            answers_room=_ANSWERS_BYTES,
            scratch_room=_SCRATCH_BYTES,
            units_room=_UNITS,
            opaques_room=_FRAMES,
            touched_room=_FRAMES,
            turned_room=_FRAMES,
            moments_room=_MOMENTS,
            halves_room=_HALVES,
            tallied_room=_FRAMES,
            cluster=self._cluster,
            cluster_length=len(self._cluster),
            max_frame_bytes=max_frame_bytes,
            store_host_length=len(store_host),
        )
        self._areas.store_host[: len(store_host)] = store_host
        self._areas.names_begin[:] = rules.ids.prefix.encode()
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

    def take(self, run: Run, sources: Sequence[Source]) -> list[Taken]:
        self._begin_terms()
        if len(sources) == 1:  # as from who waits for each answer, to whom every microsecond counts
            self._put_source(0, sources[0])
            done, early, stop = self._lay_out(run, 1)
            if done and not early:
                return [self._all_of_one()]
            progress = Progress(sources)
            self._note_progress(progress, done, 1, early)
        else:
            progress = Progress(sources)
            stop = self.lay_out(run, progress)
        while progress.index < len(sources):
            if stop == _LEFT:
                others = self._twin.take_one(run, progress.next_frames(_TWINS_FRAMES))
                if progress.add(others, _TWINS_FRAMES) is not Stop.END:
                    break
                if progress.index == len(sources):
                    break
            stop = self.lay_out(run, progress)
        return progress.found[: progress.index + 1]

    def _all_of_one(self) -> Taken:
        """What the call took of its only source, which is at its end, where nobody is answered early."""
        taken = Taken()
        taken.position, _, answers_end, opaques_end = self._progress[:_PROGRESS_NUMBERS]
        if opaques_end:
            taken.answers.append(bytes(self._answers_view[:answers_end]))
            taken.opaques = self._opaques[:opaques_end].tolist()
        return taken

    def take_together(self, run: Run, buffers: Sequence[bytes], peers: Sequence[bytes], most: int) -> Together:
        self._begin_terms()
        count = min(len(buffers), _SOURCES)
        at, to = 0, self._buffers
        for index, buffer in enumerate(buffers[:count]):
            to[index] = buffer
            peer = peers[index]
            _SOURCE.pack_into(self._sources, at, len(buffer), 0, most, *_UNREAD, len(peer), peer)
            at += _SOURCE.size
        done, early, _ = self._lay_out(run, count)
        numbers = self._progress[: min(done + 1, count) * _PROGRESS_NUMBERS].tolist()
        positions, frames, ends, opaques_ends = (numbers[each::_PROGRESS_NUMBERS] for each in range(_PROGRESS_NUMBERS))
        counts = [end - begin for begin, end in pairwise((0, *opaques_ends))]
        content, opaques = self._answers_view[: ends[-1]].tobytes(), self._opaques[: opaques_ends[-1]]
        return Together(done, positions, frames, counts, ends, content, opaques, early)

    def take_decoded(self, run: Run, requests: Sequence[Command], first: int, peer: bytes) -> Taken:
        return self._twin.take_decoded(run, requests, first, peer)

    def lay_out(self, run: Run, progress: Progress) -> int:
        """Lay out what the library itself takes of the sources; why it stopped at the one that `progress` names then.

        `_ROOM`: call again. `take` forgets by what messages wait; it is asked for when one of them comes, if not before.
        """
        count = self._put_sources(progress)
        done, early, stop = self._lay_out(run, count)
        self._note_progress(progress, done, count, early)
        return stop

    def _lay_out(self, run: Run, count: int) -> tuple[int, Set[int], int]:
        """Lay out so many sources: how many are at their end, which answers are for who does not wait, and why it stopped."""
        is_full = False
        if self._are_topics_new:
            self._topics = _Topics(self._queues, len(self._rules.delays))
            self._hand_over()
        ids, halves_of = self._rules.ids, self._rules.halves
        room = _NO_ROOM
        if halves_of is not None:
            room = halves_of.room(run) if self._asks_halves else _UNASKED_ROOM
        most, taken = _ANY_FRAMES, run.taken
        if taken is not self._present:
            taken.settle()  # the library knows of one run at a time
            self._present, self._since = taken, self._call_number + 1
        while True:
            self._call(run, count, most, room)
            (
                done,
                end_offset,
                frames,
                stop,
                records,
                _,
                units,
                messages,
                _,
                touched,
                moments,
                names,
                halves,
                early,
                turned,
                tallied,
                unmet,
            ) = _RESULTS.unpack(self._results)
            if unmet:
                self._meet(taken.offsets, touched)
            if (unmet or taken) and not self._has_guessed(run.next_offsets, touched):
                self._guess(run.next_offsets, touched)
                self._guess_turns(turned)
                continue
            if not turned or self._has_guessed_turns(turned):
                most = self._frames_with_room(run, frames, moments)
                if most == frames:
                    break
                is_full = True
            self._undo(touched)
            self._guess_turns(turned)
        if touched:
            self._note_taken(taken, touched)
        for target in self._turned_targets(turned) if turned else ():
            self._twin.set_turn(self._topics.names[target], self._topics.turns[target * _SLOT_NUMBERS])
        if frames:
            ids.next_number += names
            entries = self._entries(units, tallied, run.timestamp_ms)
            begun = self._halves_of(halves) if halves and halves_of is not None else ()
            run.add_together(self._records.take(records), entries, end_offset - run.end_offset)
            self._areas.records = self._records.address
            run.folded += messages - units
            if begun and halves_of is not None:
                halves_of.add(run, begun)
                self._had_halves = True
        if is_full:
            stop = _LEFT
        elif stop == _TERMS:
            self._set_terms(self._rules.terms())
            self._asks_halves = True
            stop = _ROOM
        return done, frozenset(self._early[:early]) if early else _NOBODY, stop

    def _note_taken(self, taken: TakenOffsets, touched: int) -> None:
        """The run has these numbers of so many queues."""
        slots = self._touched[: touched * _TOUCHED_NUMBERS]
        taken.in_c.append(_TakenSlots(self._take_numbers, self._topics.queues, taken.offsets, slots))

    def _call(self, run: Run, count: int, most: int, room: HalfRoom) -> None:
        """Have so many sources laid out, and so many frames of all of them at most."""
        self._ask(run, count, most, room)
        self._send(self._areas_at)

    def _ask(self, run: Run, count: int, most: int, room: HalfRoom, *, is_lent: bool = False) -> None:
        self._call_number = number = self._call_number + 1
        next_name = self._rules.ids.next_number
        _REQUEST.pack_into(
            self._request,
            0,
            *(count, most, number, self._since, *_rows_of(self._topics.queues, run.taken.offsets)),
            *(run.end_offset, run.limit, run.timestamp_ms, run.seals, next_name, *room, is_lent),
        )

    def lend(self, run: Run) -> int:
        """Somebody else has the library lay out sends in this run, of which nothing is laid out yet: where the areas for his
        calls are (`lane.c`). Nobody asks for anything here before `take_back`."""
        assert not run.size, "what was laid out before is not known to his calls"
        if self._are_topics_new:
            self._topics = _Topics(self._queues, len(self._rules.delays))
            self._hand_over()
        self._begin_terms()
        self._present, self._since = run.taken, self._call_number + 1
        self._ask(run, 0, _ANY_FRAMES, _UNASKED_ROOM, is_lent=True)
        ids = self._rules.ids
        self._lent_names = range(ids.next_number, ids.next_number + run.room)  # a message takes more than a byte
        ids.next_number = self._lent_names.stop  # others name messages meanwhile
        return self._areas_at

    def take_back(self, run: Run, *, has_failed: bool) -> None:
        """The run has what he had laid out, but for the records, which he has; but for his last call's when that failed."""
        _, end_offset, _, _, _, _, units, messages, _, touched, _, names, *_ = results = _RESULTS.unpack(self._results)
        tallied, lent = results[-2], self._lent_names
        if self._rules.ids.next_number == lent.stop:  # nobody did
            self._rules.ids.next_number = lent.start + names
        if not units:
            return
        self._note_taken(run.taken, touched)
        entries = self._entries(units, tallied, run.timestamp_ms)
        if has_failed:  # which was counted
            entries = entries.part(0, units)
        run.add_together(b"", entries, end_offset - run.end_offset)
        run.folded += messages - units

    def _put_sources(self, progress: Progress) -> int:
        """Tell the library what is left of the sources, or of the first ones; of how many."""
        sources = progress.rest(_SOURCES)
        for index, source in enumerate(sources):
            self._put_source(index, source)
        return len(sources)

    def _put_source(self, index: int, source: Source) -> None:
        buffer, position, peer, most, reading = source
        self._buffers[index] = buffer
        read = _UNREAD if reading is None else reading.of(buffer)
        _SOURCE.pack_into(self._sources, index * _SOURCE.size, len(buffer), position, most, *read, len(peer), peer)

    def _note_progress(self, progress: Progress, done: int, count: int, early: Set[int]) -> None:
        """What the call took of so many sources, the first ones of which are at their end; `early` are the answers for who does
        not wait."""
        answers_at = opaques_at = 0
        numbers = self._progress[: min(done + 1, count) * _PROGRESS_NUMBERS].tolist()
        for at in range(0, len(numbers), _PROGRESS_NUMBERS):
            position, frames, answers_end, opaques_end = numbers[at : at + _PROGRESS_NUMBERS]
            taken = progress.found[progress.index]
            taken.position = position
            if early:
                self._add_answers(taken, answers_at, range(opaques_at, opaques_end), early)
            elif opaques_end > opaques_at:
                taken.answers.append(bytes(self._answers_view[answers_at:answers_end]))
                taken.opaques += self._opaques[opaques_at:opaques_end]
            answers_at, opaques_at = answers_end, opaques_end
            progress.left -= frames
            if done:
                done -= 1
                progress.go_on()

    def _begin_terms(self) -> None:
        """Forget by what messages wait, and what room there is for transactions. Where some asked for a moment, or began one, in
        the turn before, some will: it is asked for before the first of them, which spares a call that ends there."""
        self._asks_halves, self._had_halves = self._had_halves, False
        if _ARE_NEEDED.unpack(self._terms)[0]:
            self._set_terms(self._rules.terms())
        else:
            _STATE.pack_into(self._terms, 0, _UNASKED)

    def _set_terms(self, terms: Terms | None) -> None:
        if terms is None:
            self._terms[:] = bytes(_TERMS_OF.size)
            _STATE.pack_into(self._terms, 0, _NONE)
        else:
            self._slots = terms.slots
            name = terms.broker_name.encode()
            now_ms, least_due_ms, window_ms, _ = terms.clock  # it is one time alone
            _TERMS_OF.pack_into(
                self._terms,
                0,
                *(_KNOWN, now_ms, least_due_ms, window_ms, terms.max_ahead_ms, len(name)),
                terms.key,
                name,
                0,
                0,
            )

    def _touched_slots(self, count: int) -> array[int]:
        """So many queues of which the call took numbers."""
        return self._touched[: count * _TOUCHED_NUMBERS : _TOUCHED_NUMBERS]

    def _firsts(self, count: int) -> array[int]:
        """What came next in them, as far as the call knew."""
        return self._touched[1 : count * _TOUCHED_NUMBERS : _TOUCHED_NUMBERS]

    def _meet(self, offsets: QueueOffsets, count: int) -> None:
        """From now on the library has the rows of so many queues."""
        rows, keys = self._topics.queues.rows.of(offsets.holder), self._topics.keys
        for slot in self._touched_slots(count):
            if rows[slot] < 0:
                rows[slot] = offsets.row_of(keys[slot])

    def _has_guessed(self, next_offsets: TakenOffsets, count: int) -> bool:
        """Whether the call began at the right numbers of so many queues."""
        keys = self._topics.keys
        return next_offsets.next_of(keys[slot] for slot in self._touched_slots(count)) == self._firsts(count).tolist()

    def _guess(self, next_offsets: TakenOffsets, count: int) -> None:
        """So many queues have the run's numbers."""
        slots, keys = self._topics.slots, self._topics.keys
        for slot in self._touched_slots(count):
            slots[slot * _SLOT_NUMBERS] = next_offsets[keys[slot]]

    def _undo(self, count: int) -> None:
        """So many queues have numbers as if the call had not been."""
        slots = self._topics.slots
        for slot, first in zip(self._touched_slots(count), self._firsts(count), strict=True):
            slots[slot * _SLOT_NUMBERS] = first

    def _turned_targets(self, count: int) -> array[int]:
        """So many topics of which the call chose queues."""
        return self._turned[: count * _TOUCHED_NUMBERS : _TOUCHED_NUMBERS]

    def _has_guessed_turns(self, count: int) -> bool:
        """Whether the call began at the right queue of so many topics."""
        firsts = self._turned[1 : count * _TOUCHED_NUMBERS : _TOUCHED_NUMBERS]
        turns = [self._twin.turn_of(self._topics.names[target]) for target in self._turned_targets(count)]
        return turns == firsts.tolist()

    def _guess_turns(self, count: int) -> None:
        """The call did not choose the queues of so many topics."""
        for target in self._turned_targets(count):
            self._topics.turns[target * _SLOT_NUMBERS] = self._twin.turn_of(self._topics.names[target])

    def _frames_with_room(self, run: Run, frames: int, moments: int) -> int:
        """How many of the call's frames come before the first with a message that has no room in its second. Those that wait
        count from now on."""
        if self._slots is None or not moments:
            return frames
        due_ms, codes, frame_of = (
            self._moments[each : moments * _MOMENT_NUMBERS : _MOMENT_NUMBERS] for each in range(_MOMENT_NUMBERS)
        )
        taken = self._slots.take_all(run.next_offsets[TIMERS], due_ms, codes)
        return frames if taken == moments else frame_of[taken]

    def _entries(self, count: int, topics: int, now_ms: int) -> LaidOut:
        """So many entries that the call laid out, for so many topics."""
        names, numbers = self._topics.names, self._topics.tallies
        tallies = [
            Tally(names[target], *numbers[target * _TALLY_NUMBERS + 1 : (target + 1) * _TALLY_NUMBERS])
            for target in self._tallied[:topics]
        ]
        content = bytes(self._units_view[: count * LAID_OUT.size])
        return LaidOut(content, self._topics.queues, now_ms, tallies)

    def _add_answers(self, taken: Taken, at: int, indexes: range, early: Set[int]) -> None:
        """Answers of the call, from a place on, some of which are for who does not wait."""
        for index in indexes:
            end = at + 4 + int.from_bytes(self._answers_view[at : at + 4])
            answer = bytes(self._answers_view[at:end])
            if index in early:
                taken.add_early([answer], [self._opaques[index]])
            else:
                taken.answers.append(answer)
                taken.opaques.append(self._opaques[index])
            at = end

    def _halves_of(self, count: int) -> list[Half]:
        """So many half messages that the call laid out."""
        records = self._records.written
        return [
            Half(
                queue_offset,
                queue_offset,
                position,
                size,
                since_ms,
                0,
                immunity_ms,
                str(records[key_at : key_at + length], "ascii"),
                False,
            )
            for queue_offset, position, size, since_ms, key_at, length, immunity_ms in _HALF.iter_unpack(
                self._halves_view[: count * _HALF.size]
            )
        ]

    def _hand_over(self) -> None:
        """The library gets the present topics."""
        self._areas.targets = _address(self._topics.targets)
        self._areas.target_count = len(self._topics.names) - len(_BROKERS_TOPICS)
        self._areas.slots = _address(self._topics.slots)
        self._areas.turns = _address(self._topics.turns)
        self._areas.tallies = _address(self._topics.tallies)
        self._areas.timer_slot = self._topics.timer_slot
        self._are_topics_new = False


def _address(area: bytearray | array[int]) -> int:
    """Where an area is that does not change its size."""
    return ctypes.addressof(ctypes.c_char.from_buffer(area))
