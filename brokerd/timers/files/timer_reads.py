"""Finds timers in the wheel and the timer log in the order of their keys, a bounded part in each call."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from typing import Final, NamedTuple

from brokerd.timers.codes import SLOT_MS, START, Key
from brokerd.timers.done import Done
from brokerd.timers.files.chain import Walk
from brokerd.timers.files.layout import slot_for
from brokerd.timers.files.slot_keys import MOST_KEYS, SlotKeys
from brokerd.timers.files.timer_log import TimerLog
from brokerd.timers.files.wheel import TimerWheel

MOST_RECORDS: Final = 2048  # looked at in a call: about five milliseconds


class Question(NamedTuple):
    """What is asked for: the first `limit` keys behind `after` that are due before `until_ms`."""

    after: Key
    until_ms: int
    limit: int


class TimerReads:
    """Reads of one wheel and log. Raises DamagedTimerFiles when these contradict each other."""

    def __init__(
        self,
        wheel: TimerWheel,
        log: TimerLog,
        walk: Walk,
        most_records: int = MOST_RECORDS,
        most_keys: int = MOST_KEYS,
    ) -> None:
        self._wheel = wheel
        self._log = log
        self._walk = walk
        self._most_records = most_records
        self._most_keys = most_keys
        self._question: Question | None = None
        self._found: list[Key] = []
        self._next_ms = 0  # the slot that the question stands at
        self._keys: SlotKeys | None = None
        self._oldest = 0  # the number of the first record that may not be done with, by a cursor at `_oldest_cursor`
        self._oldest_cursor = START

    @property
    def found(self) -> Sequence[Key]:
        """What was found so far for the question that was asked last."""
        return self._found

    @property
    def is_asked(self) -> bool:
        """Whether a question is being answered, which has to know what is added."""
        return self._question is not None

    def reset(self) -> None:
        """Records were cut, or are other ones."""
        self._question, self._keys = None, None
        self._oldest_cursor, self._oldest = START, 0

    def between(self, question: Question, least_offset: int) -> list[Key] | None:
        """The answer, without entries of queue offsets below the least; None when that takes
        another call with the same question."""
        if question != self._question:
            self._question, self._found, self._next_ms = question, [], slot_for(question.after.due_ms)
        if not self._go_on(question, least_offset):
            return None
        self._question = None
        return self._found

    def added(self, key: Key) -> None:
        """A record with that key was added: it belongs to an answer that is past its place already."""
        question, found = self._question, self._found
        is_past = question is not None and (slot_for(key.due_ms) < self._next_ms or (found and key < found[-1]))
        if question is not None and is_past and question.after < key and key.due_ms < question.until_ms:
            insort(found, key)
            del found[question.limit :]

    def oldest(self, done: Done) -> int | None:
        """The queue offset of the first record that may not be done with; None when all of them are."""
        log = self._log
        if done.cursor < self._oldest_cursor:
            self._oldest = 0
        self._oldest_cursor = done.cursor
        self._oldest = max(self._oldest, log.first)
        end = min(log.end, self._oldest + self._most_records)
        while self._oldest < end:
            record = log.record(self._oldest)
            if not (record.is_elsewhere or done.has(record.key)):
                return record.queue_offset
            self._oldest += 1
        return log.record(self._oldest).queue_offset if self._oldest < log.end else None

    def _go_on(self, question: Question, least_offset: int) -> bool:
        """Go on with the question; whether its answer is found."""
        found, room = self._found, self._most_records
        if self._log.first == self._log.end:
            return True
        for slot_ms in self._wheel.slots_between(self._next_ms, slot_for(question.until_ms - 1)):
            self._next_ms = slot_ms
            while len(found) < question.limit:
                lower = found[-1] if found else question.after
                keys = self._keys_of(slot_ms, lower)
                gathered = keys.gather(self._wheel.slot(slot_ms), self._walk.looks * max(1, room))
                room -= 1 + gathered // self._walk.looks
                if room <= 0:
                    return False
                wanted = min(room, question.limit - len(found))
                taken = keys.take(lower, question.until_ms, wanted, least_offset)
                found += taken
                room -= len(taken)
                if len(taken) == wanted:
                    continue
                if keys.has_all_before(question.until_ms):
                    break
                self._keys = None  # those that it kept are used up
            if len(found) == question.limit:
                return True
            self._next_ms = slot_ms + SLOT_MS
        return True

    def _keys_of(self, slot_ms: int, lower: Key) -> SlotKeys:
        keys = self._keys
        if keys is None or keys.slot_ms != slot_ms or keys.after > lower:
            keys = self._keys = SlotKeys(self._log, self._walk, slot_ms, lower, self._most_keys)
        return keys
