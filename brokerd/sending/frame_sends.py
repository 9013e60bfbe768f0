"""Sends of other endpoints than the remoting one, given to the kernel as the frames that mean the same: one append, no drafts.

What the kernel leaves is left to whoever asked, who knows the general path and every rule. A frame has one message; one that is
two-way (its opaque is its key) is a message that is answered with a handle, which the frame's answer has.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Final, NamedTuple

from brokerd.sending.acknowledging import Acknowledger
from brokerd.sending.boundary import SendKernel, Source, Stop, Taken
from brokerd.sending.counters import Counters
from brokerd.sending.outcomes import ROLE_CHANGED
from brokerd.store.put_status import PutStatus
from brokerd.store.run import Run
from brokerd.store.store import MessageStore
from remoting import codes
from remoting.errors import LogboomError, RequestError, as_request_error

log = logging.getLogger(__name__)

_MAX_RUN_BYTES: Final = 4 * 1024 * 1024
_HANDLE: Final = re.compile(rb'"recallHandle":"([^"]*)"')


class FramePart(NamedTuple):
    """Frames of one peer (packed address and port), one behind the other: the key of each, and where it ends. What `keeps_order`
    is stored in its order, with all other parts that do."""

    peer: bytes
    keeps_order: bool
    frames: bytes
    keys: Sequence[int]
    ends: Sequence[int]


StoredFrame = tuple[int, int, str]  # its key, its message's queue offset, and what recalls it ("": nothing does)
# Told of frames of one run, when it is acknowledged or not; the error says why not
FramesDone = Callable[[Sequence[StoredFrame], PutStatus, RequestError | None], None]


class FrameSends:
    """Shares the kernel with the remoting endpoint: whoever lays out holds the log's end for no longer than his turn."""

    def __init__(self, store: MessageStore, acknowledger: Acknowledger, kernel: SendKernel, counters: Counters) -> None:
        self._store = store
        self._acknowledger = acknowledger
        self._kernel = kernel
        self._counters = counters

    def send(self, parts: Sequence[FramePart], done: FramesDone) -> list[int]:
        """Append what the kernel takes of the parts, of which `done` is told; the keys of what is left. When one is of those that
        keep their order, so are all behind it."""
        if self._acknowledger.refusal() is not None:
            return [key for part in parts for key in part.keys]
        sending = _Sending(self._store, self._acknowledger, self._counters, done)
        left: list[int] = []
        is_order_left = False
        for part in parts:
            if part.keeps_order and is_order_left:
                left += part.keys
                continue
            before = len(left)
            self._take(sending, part, left)
            is_order_left |= part.keeps_order and len(left) > before
        sending.append()
        return left

    def _take(self, sending: _Sending, part: FramePart, left: list[int]) -> None:
        peer, keeps_order, frames, keys, ends = part
        number, count, position = 0, len(keys), 0
        while number < count:
            run = sending.run or sending.begin()
            if run is None:
                left += keys[number:]
                return
            before = len(run.entries)
            (taken,) = self._kernel.take(run, [Source(frames, position, peer, count - number)])
            laid_out = len(run.entries) - before
            sending.add(keys[number : number + laid_out], before, taken)
            number += laid_out
            position = taken.position
            if taken.stop is Stop.FULL:
                sending.append(run.room + 1)
            elif number < count and keeps_order:
                left += keys[number:]
                return
            elif number < count:
                left.append(keys[number])
                position = ends[number]
                number += 1


class _Sending:
    """The runs of one call, one after the other."""

    def __init__(self, store: MessageStore, acknowledger: Acknowledger, counters: Counters, done: FramesDone) -> None:
        self.run: Run | None = None
        self._store = store
        self._acknowledger = acknowledger
        self._counters = counters
        self._done = done
        self._stored: list[StoredFrame] = []
        self._least_bytes = 0

    def begin(self) -> Run | None:
        """The next run; None when the store takes nothing, of which the general path tells why."""
        try:
            self.run = self._store.begin_run(self._least_bytes)
        except LogboomError as error:
            log.info("no run for sends: %s", error)
        return self.run

    def add(self, keys: Sequence[int], first_entry: int, taken: Taken) -> None:
        """The frames with these keys are laid out: their entries are the run's, from the first on."""
        run = self.run
        assert run is not None
        offsets = [entry[2] for entry in run.entries[first_entry:]]
        if taken.opaques:
            handles = _handles_of(taken)
            self._stored += [(key, offset, handles.get(key, "")) for key, offset in zip(keys, offsets, strict=True)]
        else:
            self._stored += [(key, offset, "") for key, offset in zip(keys, offsets, strict=True)]
        if run.size >= _MAX_RUN_BYTES:
            self.append()

    def append(self, least_bytes: int = 0) -> None:
        """Append the present run, and tell of it when it is acknowledged. The next has room for so many bytes."""
        run, stored = self.run, self._stored
        self.run, self._stored, self._least_bytes = None, [], least_bytes
        if run is None or not run.records:
            return
        try:
            self._store.append_laid_out(run)
        except LogboomError as error:
            log.error("cannot append: %s", error)
            self._done(stored, PutStatus.SERVICE_NOT_AVAILABLE, as_request_error(error, codes.SERVICE_NOT_AVAILABLE))
            return
        counters, count, done = self._counters, run.message_count, self._done
        counters.stored(run)
        self._acknowledger.appended(run.end_offset)
        appended_ns = perf_counter_ns()

        def acknowledged(status: PutStatus) -> None:
            counters.puts.add((perf_counter_ns() - appended_ns) / 1e6, count)
            is_unknown = status is PutStatus.SERVICE_NOT_AVAILABLE
            done(stored, status, RequestError(codes.SERVICE_NOT_AVAILABLE, ROLE_CHANGED) if is_unknown else None)

        self._acknowledger.wait(run.end_offset, acknowledged)


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
