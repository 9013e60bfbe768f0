"""Connections that stay with the carrier's thread for what they send, and the lane, which the loop lends it meanwhile (`lane.c`):
the end of the log, and what the loop's own calls lay sends out with (`sending/native_kernel.py`).

While it is lent nobody else appends, or lays out: whoever wants to takes it back first (`sending/lending.py`). What the thread
took is in the log's file, and answered, or it waits for the disk with its answer; the loop takes note of it then.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from mmap import mmap
from typing import Final, NamedTuple

from brokerd.native.library import Library
from brokerd.native.stays import Over, Waiting
from remoting.transport.carrying import Lender

MOST_SENDERS: Final = 128  # lane.h has the same numbers
MOST_LEFT_BYTES: Final = 128 * 1024
ANSWERS_BYTES: Final = 256 * 1024
MOST_WAITING: Final = 64
_KEPT_BYTES: Final = 2 * ANSWERS_BYTES
# Of who looks after those who stay: so often it is seen who sent nothing, as to come and go costs as much as some messages do;
# and so long one stays at most, that is ten seconds
_LOOKS_BETWEEN: Final = 4
_MOST_LOOKS: Final = 400
_SENT_NUMBERS: Final = 4
_WAITING_NUMBERS: Final = 5
_TIMES: Final = 304  # of which each octave has so many, to the power of two
_STEP_BITS: Final = 3


class Done(NamedTuple):
    """What was done while the lane was lent: frames that were taken, in how many passes, and how long that took. Of a write that
    failed, up to where of the log it was to be, and the system's error; 0 without one."""

    frames: int
    passes: int
    busy_ns: int
    tried_end: int
    error: int


_LENT_NUMBERS: Final = 5  # areas, descriptor, begin of the file, how long, syncs
_NUMBERS: Final = _LENT_NUMBERS + len(Done._fields)
_FRAMES, _ERROR = (_LENT_NUMBERS + Done._fields.index(name) for name in ("frames", "error"))
_LEFT, _TIMED = _NUMBERS, _NUMBERS + 1  # behind these


class Lane:
    """The memory of one, with all who stay; not used up to now it takes no room. All of it is the loop's."""

    def __init__(self, library: Library, carrier_at: int) -> None:
        area = ctypes.c_void_p
        self._memory = mmap(-1, library.function("native_lane_bytes", ctypes.c_int64)())
        self.at = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._numbers = memoryview(self._memory)[: 8 * (_TIMED + 1)].cast("q")
        self._lend = library.function("native_lane_lend", ctypes.c_int32, area)
        self._take_back = library.function("native_lane_take_back", None, area)
        self._ask_waited = library.function("native_lane_waited", ctypes.c_int64, area, area)
        self._waited, self._timed = array("q", bytes(2 * 8 * _TIMES)), 0  # timed: messages, up to now
        self._summon = partial(library.function("native_carrier_summon", None, area), carrier_at)

    def lend(self, areas_at: int, descriptor: int, file_begin: int, for_ns: int, syncs_at: int = 0) -> None:
        """The loop has it. What `areas_at` points to has a run that begins at the log's end, which is in that file. Answers wait
        for the syncs that are at `syncs_at` (0: they do not), which are there as long as anybody stays."""
        self._numbers[:_LENT_NUMBERS] = array("q", (areas_at, descriptor, file_begin, for_ns, syncs_at))
        if self._lend(self.at):
            self._summon()

    def take_back(self) -> Done:
        """The thread has it. Returns when it is not at work."""
        self._take_back(self.at)
        return Done(*self._numbers[_LENT_NUMBERS:_NUMBERS])

    def waited(self) -> Iterator[tuple[float, int]]:
        """Of messages that waited for the disk, and were answered since this was asked last: for how many ms, to a sixteenth of
        that, and how many. Mostly there are none, which costs next to nothing."""
        timed = self._numbers[_TIMED]
        if timed == self._timed:
            return
        self._timed = timed
        count = self._ask_waited(self.at, self._waited.buffer_info()[0])
        numbers = self._waited[: 2 * count].tolist()
        yield from zip(map(_middle_ms, numbers[::2]), numbers[1::2], strict=True)

    @property
    def has_news(self) -> bool:
        """Whether something was taken since it was lent, or could not be written. Of the numbers it is these that are looked at
        while the thread goes on, which writes each as one."""
        return bool(self._numbers[_FRAMES] or self._numbers[_ERROR])

    @property
    def left(self) -> int:
        """How many stays are over, or about to be, since there is a lane."""
        return self._numbers[_LEFT]


class _Sender(NamedTuple):
    number: int
    lender: Lender
    ticket: int
    times: int
    told: Callable[[int], None]


class Senders:
    """Those of one lane. All of it is the loop's."""

    def __init__(self, library: Library, carrier_at: int, lane: Lane) -> None:
        area, number = ctypes.c_void_p, ctypes.c_int64
        self._at, self._lane_at = carrier_at, lane.at
        self._lane, self._found = lane, 0  # found: of those who left, up to now
        text = ctypes.c_char_p
        self._put = library.function("native_sender_put", number, area, number, *(text, number) * 2, number, number)
        self._pass = library.function("native_sender_pass", None, area, number, number, text, number)
        self._recall = library.function("native_sender_recall", None, area, number)
        self._look = library.function("native_sender_look", ctypes.c_int32, area, number, *(area,) * 4)
        self._finish = library.function("native_sender_finish", None, area, number)
        self._count_frames = library.function("native_senders_frames", None, area, area)
        self._ask_waiting = library.function("native_senders_waiting", None, area, area)
        self._sent = array("q", bytes(8 * _SENT_NUMBERS))
        self._waiting = array("q", bytes(8 * _WAITING_NUMBERS * MOST_WAITING))
        self._kept, self._left = bytearray(_KEPT_BYTES), bytearray(MOST_LEFT_BYTES)
        numbers_at = self._sent.buffer_info()[0], self._waiting.buffer_info()[0]
        self._looked_at = *numbers_at, _address(self._kept), _address(self._left)
        self._frames = array("q", bytes(8 * MOST_SENDERS))
        self._frames_before = array("q", self._frames)
        self._looks, self._begun = 0, [0] * MOST_SENDERS  # looks when each began to stay
        self._free = list(range(MOST_SENDERS))
        self._of: dict[Lender, _Sender] = {}

    def __len__(self) -> int:
        return len(self._of)

    def __contains__(self, lender: object) -> bool:
        return lender in self._of

    @property
    def have_room(self) -> bool:
        return bool(self._free)

    def waiting(self) -> tuple[int, int]:
        """How many groups of answers wait for the disk, and since when the first of them does (monotonic, in ns); 0 without any.
        For a person: it takes as long as it takes to look at all."""
        numbers = array("q", bytes(2 * 8 * MOST_SENDERS))
        if self._of:
            self._ask_waiting(self._lane_at, numbers.buffer_info()[0])
        those = [2 * sender.number for sender in self._of.values() if numbers[2 * sender.number]]
        return sum(numbers[at] for at in those), min((numbers[at + 1] for at in those), default=0)

    def begin(
        self,
        lender: Lender,
        peer: bytes,
        begun: bytes,
        descriptor: int,
        tickets: tuple[int, int],
        told: Callable[[int], None],
    ) -> None:
        """There is room. `begun` is what was read of a frame that is not all there. `tickets` are its own, which is the next
        piece's, and that of the piece before it, 0 for none."""
        number = self._free.pop()
        own, before = tickets
        self._frames_before[number] = 0
        self._begun[number] = self._looks
        times: int = self._put(self._at, number, peer, len(peer), begun, len(begun), descriptor, before - 1)
        self._of[lender] = _Sender(number, lender, own, times, told)

    def pass_on(self, lender: Lender, content: bytes) -> None:
        """Have this sent, which stays where it is, as the next piece."""
        sender = self._of[lender]
        self._pass(self._at, sender.number, sender.times, content, len(content))

    def recall_one(self, lender: Lender) -> None:
        """Have its stay be over soon."""
        self._recall(self._at, self._of[lender].number)

    def recall_all(self) -> None:
        """Likewise everybody's."""
        for sender in self._of.values():
            self._recall(self._at, sender.number)

    def recall_idle(self) -> None:
        """Likewise of who had nothing taken since that was seen last, some calls ago, or stays for long."""
        self._looks += 1
        if self._looks % _LOOKS_BETWEEN:
            return
        self._count_frames(self._lane_at, self._frames.buffer_info()[0])
        frames, before, begun = self._frames, self._frames_before, self._begun
        for sender in self._of.values():
            number = sender.number
            looks = self._looks - begun[number]
            if (frames[number] == before[number] and looks >= _LOOKS_BETWEEN) or looks > _MOST_LOOKS:
                self._recall(self._at, number)
        self._frames_before[:] = self._frames

    def finish(self, ticket: int) -> bool:
        """Have those be over whose tickets are no later, and return when they are; they are found by `over`. Whether there were
        any: something may be under way that was passed on to them."""
        those = [sender.number for sender in self._of.values() if sender.ticket <= ticket]
        for number in those:
            self._recall(self._at, number)
        for number in those:
            self._finish(self._lane_at, number)
        return bool(those)

    def over(self) -> Iterator[Over]:
        """Those that are over, which are forgotten behind this. Mostly there are none, which costs the same however many stay."""
        if self._lane.left == self._found:
            return
        for lender, sender in list(self._of.items()):
            if not self._look(self._lane_at, sender.number, *self._looked_at):
                continue
            frames, rest, left, waiting = self._sent
            tell, answers = partial(sender.told, frames), bytes(self._kept[:rest])
            yield Over(lender, tell, answers, bytes(self._left[:left]), self._waiting_of(rest, waiting))
            del self._of[lender]
            self._free.append(sender.number)
            self._found += 1

    def _waiting_of(self, begin: int, count: int) -> list[Waiting]:
        """What the last one has that waits; it lies there from `begin` on."""
        numbers = self._waiting[: _WAITING_NUMBERS * count].tolist()
        found = []
        for at in range(0, len(numbers), _WAITING_NUMBERS):
            end, length, requests, since_ns, messages = numbers[at : at + _WAITING_NUMBERS]
            found.append(Waiting(end, bytes(self._kept[begin : begin + length]), requests, since_ns, messages))
            begin += length
        return found


def _middle_ms(time: int) -> float:
    """Of a time among those that are told apart."""
    octave = max(0, (time >> _STEP_BITS) - 1)
    return (time - (octave << _STEP_BITS) + 0.5) * (1 << octave) / 1000


def _address(area: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(area))
