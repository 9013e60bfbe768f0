"""Half messages that were given up: a list of them, and what somebody decides about one by hand.

They are the messages in queue 0 of the given-up topic, where a decision is a message as well, written in one piece with what it
does. So what was decided is read from the log alone, on every broker and after every change of master: whoever decides looks at
all that the log holds, confirmed or not, and finds the decision of whoever was first. Decisions that were dispatched are
remembered, until the log is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from brokerd.store.draft import Draft
from brokerd.store.unit import Unit
from brokerd.transactions import records
from brokerd.transactions.records import GIVEN_UP_TOPIC, Decision, EndedAs
from brokerd.transactions.topics import TransactionTopics
from remoting import codes
from remoting.errors import RequestError
from remoting.facts.given_up import GivenUp, GivenUpPage
from remoting.record.codec import Record, decode_record

MAX_LISTED: Final = 100
_CHUNK: Final = 1024
_MOST_AT_ONCE: Final = 1 << 17  # entries looked at for one request; who wants to know more asks again


class GivenUpMessages:
    """Of one broker; only a master decides. `commit_draft` makes the message of a half message, or raises RequestError."""

    def __init__(self, topics: TransactionTopics, commit_draft: Callable[[Record, Mapping[str, str]], Draft]) -> None:
        self._topics = topics
        self._commit_draft = commit_draft
        self._decisions: dict[int, Decision] = {}
        self._next = 0  # the first entry that was not looked at

    def restart(self) -> None:
        """The log was cut: what was read may be gone."""
        self._decisions.clear()
        self._next = 0

    def page(self, before: int | None, count: int) -> GivenUpPage:
        """Up to `count` of them with a queue offset below `before` (None: the newest), the newest first."""
        self._look_for_decisions()
        low, high = self._topics.log.queue_range(GIVEN_UP_TOPIC, 0)
        end = high if before is None else min(before, high)
        items: list[GivenUp] = []
        looked_at = 0
        while end > low and len(items) < count and looked_at < _MOST_AT_ONCE:
            start = max(low, end - _CHUNK)
            units = self._topics.log.read_units(GIVEN_UP_TOPIC, 0, start, end - start)
            looked_at += len(units)
            for index in range(len(units) - 1, -1, -1):
                end = start + index
                if units[index][2] != records.DECISION_CODE:
                    items.append(self._describe(self._read(units[index])))
                if len(items) == count:
                    break
            else:
                end = start
        return GivenUpPage(items=tuple(items), before=end if end > low else None)

    def end(self, offset: int, ended_as: EndedAs, by: str) -> int:
        """Commit the half message at a queue offset, or roll it back; the position whose acknowledgement makes that true.

        The same decision again changes nothing. Raises RequestError for another one than was made, and LogboomError.
        """
        record = self.find(offset)
        made = self.decision_about(offset)
        if made is not None:
            if made.ended_as is not ended_as:
                raise _refused(f"{made.by} decided {made.ended_as} about it already")
            return made.end_offset
        drafts = [self._commit_draft(record, record.property_map())] if ended_as is EndedAs.COMMIT else []
        drafts.append(self._topics.decision(record, ended_as, by))
        return self._topics.log.append_placed(drafts)[-1].end_offset

    def find(self, offset: int) -> Record:
        """The half message at a queue offset of those that were given up. Raises RequestError."""
        low, high = self._topics.log.queue_range(GIVEN_UP_TOPIC, 0)
        if low <= offset < high:
            unit = self._topics.log.read_units(GIVEN_UP_TOPIC, 0, offset, 1)[0]
            if unit[2] != records.DECISION_CODE:
                return self._read(unit)
        raise _refused(f"no half message that was given up is at queue offset {offset}; there are [{low}, {high})")

    def decision_about(self, offset: int) -> Decision | None:
        """What was decided about one, by all that the log holds."""
        self._look_for_decisions()
        tail = self._decisions_in(self._topics.log.undispatched_units(GIVEN_UP_TOPIC))
        return self._decisions.get(offset) or next((each for each in tail if each.offset == offset), None)

    # ---- inside

    def _look_for_decisions(self) -> None:
        low, high = self._topics.log.queue_range(GIVEN_UP_TOPIC, 0)
        start = self._next = max(self._next, low)
        while self._next < high:
            if self._next - start >= _MOST_AT_ONCE:
                raise RequestError(
                    codes.SYSTEM_BUSY,
                    f"the messages that were given up are being looked through: {high - self._next} left",
                )
            units = self._topics.log.read_units(GIVEN_UP_TOPIC, 0, self._next, min(_CHUNK, high - self._next))
            for decision in self._decisions_in(units):
                self._decisions.setdefault(decision.offset, decision)
            self._next += len(units)

    def _decisions_in(self, units: Sequence[Unit]) -> list[Decision]:
        found = (records.decision_of(self._read(unit)) for unit in units if unit[2] == records.DECISION_CODE)
        return [each for each in found if each is not None]

    def _read(self, unit: Unit) -> Record:
        return decode_record(self._topics.log.record_at(unit[0], unit[1]))

    def _describe(self, record: Record) -> GivenUp:
        properties = record.property_map()
        half, decision = records.half_of(record, properties), self._decisions.get(record.queue_offset)
        return GivenUp(
            offset=record.queue_offset,
            key=half.unique_key,
            producer_group=properties.get(records.PRODUCER_GROUP, ""),
            topic=properties.get(records.REAL_TOPIC, ""),
            size=record.size,
            begun_at_ms=record.born_timestamp_ms,
            given_up_at_ms=record.store_timestamp_ms,
            checks=half.checks,
            decision=decision.ended_as if decision is not None else None,
            decided_by=decision.by if decision is not None else None,
            decided_at_ms=decision.at_ms if decision is not None else None,
        )


def _refused(text: str) -> RequestError:
    return RequestError(codes.ILLEGAL_OPERATION, text)
