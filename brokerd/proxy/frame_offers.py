"""Sends over gRPC that were written as frames, as a turn takes them (`sending/turns.py`): one frame for each message.

What the kernel leaves is left to whoever offered it, who knows the general path and every rule. A frame that is two-way, its
opaque being its key, is of a message that is answered with a handle, which the frame's answer has.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from brokerd.sending.boundary import Source, Stop, Taken
from brokerd.store.put_status import PutStatus
from brokerd.store.run import Run
from remoting.errors import RequestError

_HANDLE: Final = re.compile(rb'"recallHandle":"([^"]*)"')


class FramePart(NamedTuple):
    """Frames of one peer (packed address and port), one behind the other: the key of each, and where it ends. What `keeps_order`
    is stored in its order, with all other parts of a turn that do."""

    peer: bytes
    keeps_order: bool
    frames: bytes
    keys: Sequence[int]
    ends: Sequence[int]


class StoredFrame(NamedTuple):
    """Where the message of a frame is, in the log and in its queue, and what recalls it ("": nothing does)."""

    key: int
    physical_offset: int
    queue_offset: int
    handle: str


# Told of frames of one run, when it is acknowledged or not; the error says why not
FramesDone = Callable[[Sequence[StoredFrame], PutStatus, RequestError | None], None]


class Left:
    """The keys of what a turn left; `has_ordered`: one of those that keep their order is among them, so all behind it will be."""

    __slots__ = ("has_ordered", "keys")

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.has_ordered = False


class FrameAnswers:
    """`turns.Answers`."""

    __slots__ = ("_done", "_handles", "_keys", "_stored")

    def __init__(self, done: FramesDone) -> None:
        self._done = done
        self._keys: list[int] = []  # of what was laid out, whose entries are the run's
        self._handles: dict[int, str] = {}
        self._stored: Sequence[StoredFrame] = ()

    def add(self, keys: Sequence[int], taken: Taken) -> None:
        """The frames with these keys are laid out."""
        self._keys += keys
        if taken.opaques:
            self._handles.update(_handles_of(taken))

    def appended(self, run: Run) -> bool:
        handles = self._handles
        self._stored = [
            StoredFrame(key, entry[3], entry[2], handles.get(key, ""))
            for key, entry in zip(self._keys, run.all_entries(), strict=True)
        ]
        return True

    def acknowledged(self, status: PutStatus) -> None:
        self._done(self._stored, status, None)

    def refused(self, error: RequestError) -> None:
        stored = self._stored or [StoredFrame(key, -1, -1, "") for key in self._keys]
        self._done(stored, PutStatus.SERVICE_NOT_AVAILABLE, error)


class FrameOffer:
    """`turns.Offer` of a part. Behind a frame that is left it goes on, unless it keeps its order."""

    __slots__ = ("_left", "_number", "_part", "_position")

    def __init__(self, part: FramePart, left: Left) -> None:
        self._part = part
        self._left = left
        self._number = self._position = 0  # of the next frame, and where it begins

    @property
    def goes_on(self) -> bool:
        return self._number < len(self._part.keys)

    def source(self) -> Source:
        part = self._part
        is_closed = part.keeps_order and self._left.has_ordered
        most = 0 if is_closed else len(part.keys) - self._number
        return Source(part.frames, self._position, part.peer, most)

    def note(self, taken: Taken, answers: FrameAnswers) -> None:
        part = self._part
        number = bisect_right(part.ends, taken.position)
        answers.add(part.keys[self._number : number], taken)
        self._number, self._position = number, taken.position
        if taken.stop is Stop.FULL or number == len(part.keys):
            return
        if part.keeps_order:
            self.leave()
        else:
            self._left.keys.append(part.keys[number])
            self._number, self._position = number + 1, part.ends[number]

    def leave(self) -> None:
        part = self._part
        self._left.keys += part.keys[self._number :]
        self._left.has_ordered |= part.keeps_order and self.goes_on
        self._number = len(part.keys)


def _handles_of(taken: Taken) -> dict[int, str]:
    """What recalls the messages of two-way frames, by their keys."""
    answers = b"".join(taken.answers)
    handles = {}
    position = 0
    for key in taken.opaques:
        end = position + 4 + int.from_bytes(answers[position : position + 4])
        found = _HANDLE.search(answers, position, end)
        handles[key] = found[1].decode() if found is not None else ""
        position = end
    return handles
