"""What this broker group answers to another one that wants to know whether a consumer group passed a handover here.

That a group passed is said only when everything that says so is acknowledged: a new master of this group knows it, too. A version
that is not known here yet is one whose change this master has not heard of. One that is older than the present one and not there
any more was forgotten when nothing of it was left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from brokerd.journal.record_log import RecordLog
from brokerd.metadata.service import MetadataService
from brokerd.placement.handovers import Handover
from brokerd.pop.order.gate import Gate, Question
from brokerd.pop.order.passed import Passed
from brokerd.pop.surroundings import Surroundings
from brokerd.store.put_status import PutStatus
from remoting.errors import NotMaster


class Answer(NamedTuple):
    """`is_nothing_left`: retention removed here all that came before the handover."""

    has_passed: bool
    is_nothing_left: bool


_WAITS = Answer(has_passed=False, is_nothing_left=False)
_GONE = Answer(has_passed=True, is_nothing_left=True)

Answered = Callable[[Answer], None]


class Answers:
    """Owned by the pop service; for the master alone."""

    def __init__(self, around: Surroundings, gate: Gate, passed: Passed, is_serving: Callable[[], bool]) -> None:
        self._metadata: MetadataService = around.metadata
        self._record_log: RecordLog = around.record_log
        self._handovers = around.handovers
        self._placement_version = around.placement_version
        self._gate = gate
        self._passed = passed
        self._now_ms = around.now_ms
        self._is_serving = is_serving

    def answer(self, question: Question, done: Answered) -> None:
        """`done` is called once, now or when what is said is acknowledged. Raises NotMaster on a replica."""
        if not self._is_serving():
            raise NotMaster
        answer = self._answer(question)
        if not answer.has_passed:
            done(answer)
            return

        def acknowledged(status: PutStatus) -> None:
            done(answer if status == PutStatus.PUT_OK else _WAITS)

        self._record_log.when_acknowledged(self._record_log.end_offset, acknowledged)

    # ---- inside

    def _answer(self, question: Question) -> Answer:
        topic = question.topic
        if self._metadata.topic(topic) is None:
            return _GONE
        handover = next((each for each in self._handovers.of(topic) if each.version == question.version), None)
        if handover is None:
            return _GONE if question.version <= self._placement_version(topic) else _WAITS
        return Answer(self._has_passed(question, handover), self._is_nothing_left(handover))

    def _is_nothing_left(self, handover: Handover) -> bool:
        """Nor of what came here by an earlier one, which would be forgotten before."""
        topic = handover.topic
        is_oldest = all(each.version >= handover.version for each in self._handovers.of(topic))
        return is_oldest and self._passed.is_nothing_left(topic, handover.ends)

    def _has_passed(self, question: Question, handover: Handover) -> bool:
        """Here, and wherever came from what was here then."""
        topic, group, init_mode = question.topic, question.group, question.init_mode
        if not group or not self._passed.has_passed(topic, handover.ends, group, init_mode):
            return False
        return self._gate.has_passed_before(question.version, topic, group, init_mode, self._now_ms())
