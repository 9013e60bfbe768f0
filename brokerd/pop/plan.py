"""The plan of a pop, as it is made and as it is carried out: what is found in which queues (pure).

`taking` makes it, `shares` divides it among pops, `giving` records it and answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from brokerd.filters.budget import Budget
from brokerd.filters.message_filter import MessageFilter
from brokerd.pop.batch import Older
from brokerd.pop.copies import counts_earlier_deliveries
from brokerd.pop.handles import proof_of
from brokerd.pop.order.passing import New
from brokerd.pop.records import Pop
from brokerd.pop.requests import PoppedMessage, PopRequest
from remoting.errors import LogboomError
from remoting.record.fields import offsets_of


class Source(NamedTuple):
    """A stored topic that a pop takes from, with how many of its queues are read."""

    topic: str
    retry_flag: int
    queues: int


class Chance(NamedTuple):
    """What is left to chance in a plan. `begin` says with which queue, as a part of them all; `percentile`, from 0 to 99, whether
    priorities count. It is drawn anew after each pop, so that who looks sees what the next pop takes."""

    begin: float
    returned_first: bool
    percentile: int


class Found(NamedTuple):
    """Messages of one queue. `topic` is the stored one; `counts` = deliveries from this queue, None = the first of each.

    `again` are the places of those that were taken before: so many of the first ones.
    """

    topic: str
    retry_flag: int
    queue_id: int
    offsets: list[int]
    records: list[bytes]
    counts: Sequence[int] | None
    again: Sequence[Older] = ()


@dataclass(slots=True)
class Taking:
    """What one pop takes. `batches` are those of the record, also of queues that only move on; `more` = a scan is unfinished.

    `new_left` = how many messages the group may be given that it does not hold already; `is_held_back`: there are more of them.
    `is_gated`: there are new messages behind a gate (`order/gate.py`). `is_out_of_turn`: some that came back are to be read when
    it is the group's turn (`cold_turns.py`), which has it tried again then and not before.
    `dropped` are places of older batches that it lets go of and gives to nobody: its filter does not admit them, or they are gone
    from the store (`lost` of them), each with its stored topic. `passing` are the new messages of the queues where some are
    passed over. `unreadable` are the batches whose messages the store cannot give now: stored topic, queue, pop time.
    `failure` is why a queue could not be read, which counts when no other one has anything (`check`).
    When the `budget` is spent on messages that the filter did not admit, the next plan goes on behind them.
    """

    messages_left: int
    bytes_left: int
    budget: Budget
    new_left: int = 0
    is_ordered: bool = False
    keeps_groups: bool = False
    batches: list[list[Any]] = field(default_factory=list)
    found: list[Found] = field(default_factory=list)
    dropped: list[tuple[str, Older]] = field(default_factory=list)
    passing: list[New] = field(default_factory=list)
    unreadable: dict[tuple[str, int, int], None] = field(default_factory=dict)
    lost: int = 0
    rest_count: int = 0
    more: bool = False
    is_held_back: bool = False
    is_gated: bool = False
    is_out_of_turn: bool = False
    failure: LogboomError | None = None

    def check(self) -> None:
        """Raises LogboomError when nothing was taken, and a queue that may have something could not be read."""
        failure, self.failure = self.failure, None  # which would know this by where it is raised
        if failure is not None and not self.found and not self.dropped and not self.more:
            raise failure

    @property
    def is_full(self) -> bool:
        return self.messages_left <= 0 or self.bytes_left <= 0


class Work(NamedTuple):
    """One plan while it is made. `again` is what comes again, by (stored topic, queue). `limits` are
    the gate's."""

    request: PopRequest
    message_filter: MessageFilter
    chance: Chance
    now_ms: int
    taking: Taking
    again: dict[tuple[str, int], list[tuple[Older, bytes]]]
    limits: Mapping[int, int]


def popped_messages(
    request: PopRequest, found: Sequence[Found], recorded: Pop, revive_queue_id: int, broker_name: str
) -> list[PoppedMessage]:
    """What was taken as the endpoints answer it, in the order taken: queue by queue, ascending."""
    common = f"{recorded.pop_time_ms} {recorded.invisible_time_ms} {revive_queue_id}"
    end = f" {proof_of(recorded.tag)}" if recorded.tag else ""
    messages: list[PoppedMessage] = []
    asked = request.topic
    for topic, flag, queue_id, offsets, records, counts, _ in found:
        prefix = f"{offsets[0]} {common} {flag} {broker_name} {queue_id} "
        starts_anew = not counts_earlier_deliveries(topic)
        for place, record in enumerate(records):
            queue_offset, _, deliveries = offsets_of(record)
            if starts_anew:
                deliveries = 0
            deliveries += counts[place] if counts is not None else 1
            handle = f"{prefix}{queue_offset}{end}"
            messages.append(PoppedMessage(record, asked, flag, queue_id, queue_offset, handle, deliveries))
    return messages
