"""Finishing and postponing messages: the calls of one turn of the loop share one record of each kind.

Calls are served in their order, each message to the first valid claim. Nothing changes before the record is appended, and
nobody is answered before it is acknowledged. Who finishes again what is finished is told so, when the record that says it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from brokerd.pop.batch import Batch, Place
from brokerd.pop.claims import Claims
from brokerd.pop.departures import Departures
from brokerd.pop.handles import ReceiptHandle, decode_handle, is_place, join_handle, split_handle, stored_topic
from brokerd.pop.ledger import PopLedger
from brokerd.pop.reading import read_offsets
from brokerd.pop.requests import AckStatus, InvisibleTimeOutcome
from brokerd.pop.surroundings import Surroundings
from brokerd.store.put_status import PutStatus
from remoting.errors import LogboomError
from remoting.record.fields import physical_offset_of

log = logging.getLogger(__name__)

AckDone = Callable[[Sequence[AckStatus]], None]
ChangeDone = Callable[[InvisibleTimeOutcome], None]
ForwardDone = Callable[[AckStatus], None]
_Answer = Callable[[bool], None]  # told whether the records were acknowledged

_OK: Final = AckStatus.OK
_INVALID: Final = AckStatus.INVALID_HANDLE
_FAILED: Final = AckStatus.FAILED


class Finishing:
    """Owned by the pop service. `changed(claims)` hears of what was recorded; who calls while it does not serve is refused."""

    def __init__(
        self,
        around: Surroundings,
        ledger: PopLedger,
        departures: Departures,
        is_serving: Callable[[], bool],
        changed: Callable[[Claims], None],
    ) -> None:
        self._around = around
        self._ledger = ledger
        self._journal = departures.journal
        self._counters = departures.counters
        self._is_serving = is_serving
        self._changed = changed
        self._departures = departures
        self._calls: list[tuple[Callable[[Claims], _Answer], Callable[[], None]]] = []

    def ack(self, group: str, topic: str, handles: Sequence[str], done: AckDone) -> None:
        """Finish messages; one status per handle, in order, when the ack record is acknowledged."""
        self._enqueue(
            lambda claims: self._claim_acks(claims, group, topic, handles, done),
            lambda: done([_FAILED] * len(handles)),
        )

    def change(self, group: str, topic: str, handle: str, invisible_time_ms: int, done: ChangeDone) -> None:
        """Let the message return `invisible_time_ms` from now (0 = at once) and replace its handle."""
        self._enqueue(
            lambda claims: self._claim_change(claims, group, topic, handle, invisible_time_ms, done),
            lambda: done(InvisibleTimeOutcome(_FAILED, handle)),
        )

    def forward(self, group: str, topic: str, handle: str, done: ForwardDone) -> None:
        """Finish the message, and append it to the group's dead-letter topic."""
        self._enqueue(lambda claims: self._claim_forward(claims, group, topic, handle, done), lambda: done(_FAILED))

    def refuse_all(self) -> None:
        """The role changed: whoever waits for the next record should ask the new master."""
        calls, self._calls = self._calls, []
        for _, refuse in calls:
            refuse()

    # ---- inside

    def _enqueue(self, claim: Callable[[Claims], _Answer], refuse: Callable[[], None]) -> None:
        if not self._is_serving():
            refuse()
            return
        self._calls.append((claim, refuse))
        if len(self._calls) == 1:
            self._around.scheduler.call_soon(self._flush)

    def _flush(self) -> None:
        calls, self._calls = self._calls, []
        if not calls:
            return
        claims = Claims(self._ledger, self._around.now_ms())
        before = self._journal.applied_offset
        answers = [claim(claims) for claim, _ in calls]
        forwarded_to = self._journal.applied_offset
        end_offset = forwarded_to if forwarded_to > before else -1
        try:
            for kind, body in claims.records():
                end_offset = self._journal.append(kind, body)
        except LogboomError as error:
            log.info("%d calls that finish messages failed: %s", len(calls), error)
            if end_offset >= 0:  # what the first of several records says holds; its callers repeat, and find it done
                self._changed(claims)
            for answer in answers:
                answer(False)
            return

        def acknowledged(status: PutStatus) -> None:
            for answer in answers:
                answer(status == PutStatus.PUT_OK)

        if end_offset >= 0:
            self._changed(claims)
        elif claims.has_repeats:
            end_offset = self._journal.applied_offset
        if end_offset < 0:
            acknowledged(PutStatus.PUT_OK)
        else:
            self._journal.when_acknowledged(end_offset, acknowledged)

    def _locate(self, group: str, topic: str, text: str) -> tuple[str, ReceiptHandle] | None:
        """The stored topic and the handle; None when it is not one that this broker gives out."""
        handle = decode_handle(text)
        if handle is None or handle.broker_name != self._around.broker_name:
            return None
        stored = stored_topic(group, topic, handle.retry_flag)
        return stored, self._without_place(stored, handle)

    def _without_place(self, stored: str, handle: ReceiptHandle) -> ReceiptHandle:
        """The handle without its last field where that is the physical offset of its message, as it is where there is no tag."""
        if not is_place(handle.proof):
            return handle
        offset = handle.queue_offset
        encoded = read_offsets(self._around.reads, stored, handle.queue_id, [offset]).get(offset)
        is_right = encoded is not None and str(physical_offset_of(encoded)) == handle.proof
        return handle._replace(proof="") if is_right else handle

    def _claim_acks(self, claims: Claims, group: str, topic: str, handles: Sequence[str], done: AckDone) -> _Answer:
        statuses: list[AckStatus] = []
        batches: dict[tuple[str, str, int], Batch | None] = {}
        for text in handles:
            split = split_handle(text)
            if split is None:
                statuses.append(_INVALID)
                continue
            common, offset, proof = split
            key = common, proof, offset if is_place(proof) else -1
            if key not in batches:  # the messages of one pop are usually acked together
                batches[key] = self._batch(claims, group, topic, join_handle(common, offset, proof))
            batch = batches[key]
            statuses.append(_OK if batch is not None and claims.finish_offset(batch, offset) else _INVALID)

        def answer(acknowledged: bool) -> None:
            valid = statuses.count(_OK)
            self._counters.invalid_handles += len(statuses) - valid
            if acknowledged:
                self._counters.acked += valid
                done(statuses)
            else:
                done([_FAILED if status == _OK else status for status in statuses])

        return answer

    def _batch(self, claims: Claims, group: str, topic: str, handle: ReceiptHandle) -> Batch | None:
        if handle.broker_name != self._around.broker_name:
            return None
        stored = stored_topic(group, topic, handle.retry_flag)
        return claims.find_batch(group, stored, self._without_place(stored, handle))

    def _claim_change(
        self, claims: Claims, group: str, topic: str, text: str, invisible_time_ms: int, done: ChangeDone
    ) -> _Answer:
        located = self._locate(group, topic, text)
        pop_time_ms = None
        if located is not None and 0 <= invisible_time_ms <= self._around.settings.max_invisible_time_ms:
            pop_time_ms = claims.change(group, *located, invisible_time_ms)
        if located is None or pop_time_ms is None:
            self._counters.invalid_handles += 1
            return lambda _: done(InvisibleTimeOutcome(_INVALID, text))
        old = located[1]
        new = old._replace(start_offset=old.queue_offset, pop_time_ms=pop_time_ms, invisible_time_ms=invisible_time_ms)

        def answer(acknowledged: bool) -> None:
            if not acknowledged:
                done(InvisibleTimeOutcome(_FAILED, text))
                return
            self._counters.changed += 1
            done(InvisibleTimeOutcome(_OK, new.encode(), new.pop_time_ms, new.invisible_time_ms, new.revive_queue_id))

        return answer

    def _claim_forward(self, claims: Claims, group: str, topic: str, text: str, done: ForwardDone) -> _Answer:
        located = self._locate(group, topic, text)
        given = claims.find_batch(group, *located) if located is not None else None
        if located is None or given is None:
            self._counters.invalid_handles += 1
            return lambda _: done(_INVALID)
        stored, handle = located
        if claims.is_finished(given, handle.queue_offset):
            return lambda acknowledged: done(_OK if acknowledged else _FAILED)
        found = claims.locate(group, stored, handle)
        if found is None:
            self._counters.invalid_handles += 1
            return lambda _: done(_INVALID)
        try:
            pop_time_ms = claims.next_pop_time_ms(found[0].queue)
            has_left = self._departures.forward(Place(*found), pop_time_ms, self._around.now_ms())
        except LogboomError as error:
            log.warning("a message of %s was not forwarded to the dead-letter topic: %s", stored, error)
            return lambda _: done(_FAILED)
        if has_left:
            claims.note_left(found[0])
        else:
            claims.finish(group, stored, handle)
            self._counters.dead_lettered += 1
        return lambda acknowledged: done(_OK if acknowledged else _FAILED)
