"""What a broker counts of its sends and reads, and the words for why sends are refused."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Final

from brokerd.statistics.figures import Durations, Statistics
from brokerd.store.put_status import PutStatus
from brokerd.store.run import Run
from remoting import codes
from remoting.errors import FlowControl, LogboomError, NotMaster, StorageError

# Why sends are refused, as metrics name it
NOT_MASTER: Final = "not_master"
TOO_FEW_REPLICAS: Final = "too_few_replicas"
TOO_MANY_WAITING: Final = "too_many_waiting"
TOO_MANY_DUE: Final = "too_many_due"
STORE: Final = "store"
RULE: Final = "rule"
REFUSALS: Final = (NOT_MASTER, TOO_FEW_REPLICAS, TOO_MANY_WAITING, TOO_MANY_DUE, STORE, RULE)


def refusal_reason(error: LogboomError) -> str:
    """The word for a refusal: by what it is, else by its code."""
    if isinstance(error, NotMaster):
        return NOT_MASTER
    if isinstance(error, FlowControl):
        return TOO_MANY_DUE
    if error.code == codes.SYSTEM_BUSY:
        return TOO_MANY_WAITING
    if isinstance(error, StorageError) or error.code == codes.SERVICE_NOT_AVAILABLE:
        return STORE
    return TOO_FEW_REPLICAS if error.code == codes.SYSTEM_ERROR else RULE


class Counters:
    """Running totals since the start, for rates; and the same by topic and group. `when_served`, if it is set, is called when
    they grow."""

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
        "when_served",
    )

    def __init__(self, statistics: Statistics | None = None) -> None:
        self.in_messages = self.in_bytes = self.out_messages = self.out_bytes = 0
        self.refused = dict.fromkeys(REFUSALS, 0)  # send requests, by why
        self.missed = 0  # pulls that were answered without a message
        self.statistics = statistics or Statistics()
        # From the append of messages to their acknowledgement; of those for which nobody waits that was appended with them, none
        self.puts = Durations()
        self.reads = Durations()  # of queues, for pulls that found something
        self.when_served: Callable[[], None] | None = None

    def pulled(
        self, reader: tuple[str, str, int], messages: int, size_bytes: int, read_ms: float, pulls: int = 1
    ) -> None:
        """A reader (group, topic, queue) was given messages, in so many answers, each of which took so long to read."""
        self.out_messages += messages
        self.out_bytes += size_bytes
        self.reads.add(read_ms, pulls)
        self.statistics.pulled(reader, messages, size_bytes, int(read_ms) * pulls, pulls)
        if self.when_served is not None:
            self.when_served()

    def stored(self, run: Run) -> None:
        """The messages of a run are in the log."""
        count, size = run.message_count, run.size
        self.in_messages += count
        self.in_bytes += size
        self.statistics.stored(run)
        if self.when_served is not None:
            self.when_served()

    def timed(self, messages: int, tell: Callable[[PutStatus], None]) -> Callable[[PutStatus], None]:
        """The same as `tell`; so many messages, which are in the log since now, count with the time until it is called."""
        appended_ns = perf_counter_ns()

        def tell_and_count(status: PutStatus) -> None:
            acknowledged_ns = perf_counter_ns()
            tell(status)
            self.puts.add((acknowledged_ns - appended_ns) / 1e6, messages)

        return tell_and_count

    def unawaited(self, messages: int) -> None:
        """Nobody waits for the acknowledgement of so many messages, which are in the log."""
        self.puts.add(0.0, messages)

    def refuse(self, error: LogboomError, count: int = 1) -> None:
        """Sends were refused as a whole, before anything was stored."""
        self.refused[refusal_reason(error)] += count
