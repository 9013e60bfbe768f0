"""Finishing and postponing messages: the calls of one turn of the loop share one record of each kind.

Calls are served in their order, each message to the first valid claim. Nothing changes before the record is appended, and
nobody is answered before it is acknowledged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from brokerd.journal.journal import Journal
from brokerd.pop.claims import Claims
from brokerd.pop.counters import PopCounters
from brokerd.pop.handles import ReceiptHandle, decode_batch_handle, decode_handle, split_handle, stored_topic
from brokerd.pop.ledger import PopLedger
from brokerd.pop.queue_ledger import Batch
from brokerd.pop.requests import AckStatus, InvisibleTimeOutcome
from brokerd.pop.reviver import forward
from brokerd.pop.surroundings import Surroundings
from brokerd.store.put_status import PutStatus
from remoting.errors import LogboomError, raise_refusal

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
        journal: Journal,
        counters: PopCounters,
        is_serving: Callable[[], bool],
        changed: Callable[[Claims], None],
    ) -> None:
        self._around = around
        self._ledger = ledger
        self._journal = journal
        self._counters = counters
        self._is_serving = is_serving
        self._changed = changed
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
        """Append the message to the group's dead-letter topic, then finish it: first the copy, then the ack."""
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
        answers = [claim(claims) for claim, _ in calls]
        end_offset = -1
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

        if end_offset < 0:
            acknowledged(PutStatus.PUT_OK)
        else:
            self._changed(claims)
            self._journal.when_acknowledged(end_offset, acknowledged)

    def _locate(self, group: str, topic: str, text: str) -> tuple[str, ReceiptHandle] | None:
        """The stored topic and the handle; None when it is not one that this broker gives out."""
        handle = decode_handle(text)
        if handle is None or handle.broker_name != self._around.broker_name:
            return None
        return stored_topic(group, topic, handle.retry_flag), handle

    def _claim_acks(self, claims: Claims, group: str, topic: str, handles: Sequence[str], done: AckDone) -> _Answer:
        statuses: list[AckStatus] = []
        batches: dict[str, Batch | None] = {}
        for text in handles:
            split = split_handle(text)
            if split is None:
                statuses.append(_INVALID)
                continue
            prefix, offset, _ = split
            if prefix not in batches:  # the messages of one pop are usually acked together
                batches[prefix] = self._batch(claims, group, topic, prefix)
            batch = batches[prefix]
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

    def _batch(self, claims: Claims, group: str, topic: str, prefix: str) -> Batch | None:
        handle = decode_batch_handle(prefix)
        if handle is None or handle.broker_name != self._around.broker_name:
            return None
        return claims.find_batch(group, stored_topic(group, topic, handle.retry_flag), handle)

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
        found = claims.locate(group, *located) if located is not None else None
        if located is None or found is None:
            self._counters.invalid_handles += 1
            return lambda _: done(_INVALID)
        batch, place = found
        stored, handle = located
        around = self._around
        try:
            draft = forward(group, stored, handle.queue_id, handle.queue_offset, batch.deliveries(place), around.reads)
            if draft is not None:
                raise_refusal(around.metadata.ensure_topic(draft.topic))
                around.record_log.append_messages([draft])
        except LogboomError as error:
            log.warning("a message of %s was not forwarded to the dead-letter topic: %s", stored, error)
            return lambda _: done(_FAILED)
        claims.finish(group, stored, handle)

        def answer(acknowledged: bool) -> None:
            self._counters.dead_lettered += acknowledged
            done(_OK if acknowledged else _FAILED)

        return answer
