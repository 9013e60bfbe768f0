"""Appending messages, the general path: every rule, any endpoint.

Sending is two steps: append at the end of the log in one write, then answer when the position is acknowledged. The loop's thread
alone appends, so an offset that was given out is still right when its bytes are written.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from brokerd.delay.levels import DEFAULT_DELAYS, Delays
from brokerd.delay.rules import schedule
from brokerd.metadata.configs import TopicConfig
from brokerd.sending.outcomes import SendOutcome
from brokerd.sending.rules import prepare, waits_for_store
from brokerd.statistics.figures import Durations, Statistics
from brokerd.store.draft import Draft
from brokerd.store.put_status import PutStatus
from brokerd.transactions.records import HALF_TOPIC
from remoting import codes
from remoting.errors import LogboomError, NotMaster, RequestError, StorageError, as_request_error

log = logging.getLogger(__name__)

ROLE_CHANGED: Final = "the role of this broker changed while the message waited; whether it is stored is unknown"


class Appended(Protocol):
    """Where one draft went."""

    @property
    def physical_offset(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def queue_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...


class Store(Protocol):
    """What sending needs of the store: a draft's last check, and the append that assigns offsets."""

    def check_draft(self, draft: Draft) -> None: ...

    def append_checked(self, drafts: Sequence[Draft]) -> Sequence[Appended]: ...

    def next_timestamp(self) -> int: ...


class HalfMessages(Protocol):
    """What sending needs of transactions."""

    def divert(self, draft: Draft) -> Draft:
        """The half message of a draft that begins a transaction, any other draft as it is. Raises RequestError."""

    def stored(self, draft: Draft, place: Appended) -> None:
        """A half message was appended."""


class Acknowledger(Protocol):
    """What sending needs of the replica: whether appends are accepted now, and when a position is acknowledged."""

    def refusal(self) -> LogboomError | None: ...

    def appended(self, end_offset: int) -> None: ...

    def wait(self, position: int, callback: Callable[[PutStatus], None]) -> None: ...


# Why sends are refused, as metrics name it
NOT_MASTER: Final = "not_master"
TOO_FEW_REPLICAS: Final = "too_few_replicas"
TOO_MANY_WAITING: Final = "too_many_waiting"
STORE: Final = "store"
RULE: Final = "rule"
REFUSALS: Final = (NOT_MASTER, TOO_FEW_REPLICAS, TOO_MANY_WAITING, STORE, RULE)


def refusal_reason(error: LogboomError) -> str:
    """The word for a refusal: by what it is, else by its code."""
    if isinstance(error, NotMaster):
        return NOT_MASTER
    if error.code == codes.SYSTEM_BUSY:
        return TOO_MANY_WAITING
    if isinstance(error, StorageError) or error.code == codes.SERVICE_NOT_AVAILABLE:
        return STORE
    return TOO_FEW_REPLICAS if error.code == codes.SYSTEM_ERROR else RULE


class Counters:
    """Running totals since the start, for rates; and the same by topic and group."""

    __slots__ = (
        "in_bytes",
        "in_messages",
        "missed",
        "out_bytes",
        "out_messages",
        "puts",
        "reads",
        "refused",
        "statistics",
    )

    def __init__(self, statistics: Statistics | None = None) -> None:
        self.in_messages = self.in_bytes = self.out_messages = self.out_bytes = 0
        self.refused = dict.fromkeys(REFUSALS, 0)  # send requests, by why
        self.missed = 0  # pulls that were answered without a message
        self.statistics = statistics or Statistics()
        self.puts = Durations()  # from the append of messages to their acknowledgement
        self.reads = Durations()  # of queues, for pulls that found something

    def refuse(self, error: LogboomError, count: int = 1) -> None:
        """Sends were refused as a whole, before anything was stored."""
        self.refused[refusal_reason(error)] += count


class UniqueIds:
    """Names for messages whose client gave none: process, counter and start, in the clients' 32-digit form."""

    def __init__(self, now_ms: int) -> None:
        self._prefix = f"{os.getpid() & 0xFFFF:04X}{now_ms & 0xFFFFFFFFFFFF:012X}"
        self._count = itertools.count()

    def __call__(self) -> str:
        return f"{self._prefix}{next(self._count):016X}"


class MessageSender:
    """`services.Sender`. `topic` looks a topic up in the present table; `delays` are those of the delay levels."""

    def __init__(
        self,
        store: Store,
        acknowledger: Acknowledger,
        topic: Callable[[str], TopicConfig | None],
        counters: Counters,
        halves: HalfMessages,
        cluster: str,
        delays: Delays = DEFAULT_DELAYS,
    ) -> None:
        self._store = store
        self._acknowledger = acknowledger
        self.topic = topic
        self._counters = counters
        self._halves = halves
        self._cluster = cluster
        self._delays = delays
        self._turns: dict[str, int] = {}
        self._unique_id = UniqueIds(store.next_timestamp())

    def send(self, drafts: Sequence[Draft], done: Callable[[Sequence[SendOutcome]], None]) -> None:
        """Append all drafts; see services.Sender."""
        error = self._acknowledger.refusal()
        if error is not None:
            self._counters.refuse(error, len(drafts))
            too_few = refusal_reason(error) == TOO_FEW_REPLICAS
            status = PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH if too_few else PutStatus.SERVICE_NOT_AVAILABLE
            refused = SendOutcome(status, error=as_request_error(error, codes.SERVICE_NOT_AVAILABLE))
            done([refused] * len(drafts))
            return
        outcomes, ready = self.prepare(drafts)
        if ready:
            self.append(outcomes, ready, done)
        else:
            done(outcomes)

    def prepare(self, drafts: Sequence[Draft]) -> tuple[list[SendOutcome], list[tuple[int, Draft]]]:
        """An outcome per draft (final where it is refused) and the drafts to append, each with its index."""
        outcomes: list[SendOutcome] = []
        ready: list[tuple[int, Draft]] = []
        for draft in drafts:
            try:
                topic, turn = self.topic(draft.topic), self.turn_of(draft.topic)
                prepared = prepare(draft, topic, turn, self._unique_id, self._cluster, len(self._delays))
                stored = schedule(self._halves.divert(prepared), self._delays)
                self._store.check_draft(stored)
                ready.append((len(outcomes), stored))
                outcomes.append(SendOutcome(PutStatus.PUT_OK, prepared.queue_id))
            except RequestError as refusal:
                self._counters.refused[RULE] += 1
                outcomes.append(SendOutcome(PutStatus.MESSAGE_ILLEGAL, error=as_request_error(refusal)))
        return outcomes, ready

    def append(
        self,
        outcomes: list[SendOutcome],
        ready: Sequence[tuple[int, Draft]],
        done: Callable[[Sequence[SendOutcome]], None],
    ) -> None:
        """Append what `prepare` found ready; `done` gets all outcomes, as in `send`."""
        try:
            appended = self._store.append_checked([draft for _, draft in ready])
        except StorageError as failure:
            log.error("cannot append: %s", failure)
            refusal = as_request_error(failure, codes.SERVICE_NOT_AVAILABLE)
            done([SendOutcome(PutStatus.SERVICE_NOT_AVAILABLE, error=refusal)] * len(outcomes))
            return
        for (index, draft), place in zip(ready, appended, strict=True):
            outcomes[index] = outcomes[index]._replace(
                queue_offset=place.queue_offset, physical_offset=place.physical_offset
            )
            self._counters.in_bytes += len(draft.body)
            size = place.end_offset - place.physical_offset
            self._counters.statistics.stored_in(draft.topic, 1, size)
            if draft.topic == HALF_TOPIC:
                self._halves.stored(draft, place)
        self._counters.in_messages += len(ready)
        end_offset = appended[-1].end_offset
        self._acknowledger.appended(end_offset)
        if any(waits_for_store(draft.properties) for _, draft in ready):
            self._acknowledger.wait(end_offset, lambda status: done(_with_status(outcomes, status)))
        else:
            done(outcomes)

    def turn_of(self, topic: str) -> Callable[[int], int]:
        """Round robin over n queues of a topic."""

        def next_queue(queues: int) -> int:
            turn = self._turns[topic] = (self._turns.get(topic, -1) + 1) % queues
            return turn

        return next_queue


def _with_status(outcomes: Sequence[SendOutcome], status: PutStatus) -> Sequence[SendOutcome]:
    """The outcomes of an append once its status is known: stored ones take it, refused ones keep their refusal."""
    if status is PutStatus.PUT_OK:
        return outcomes
    error = (
        RequestError(codes.SERVICE_NOT_AVAILABLE, ROLE_CHANGED) if status is PutStatus.SERVICE_NOT_AVAILABLE else None
    )
    return [
        outcome if outcome.error is not None else outcome._replace(status=status, error=error) for outcome in outcomes
    ]
