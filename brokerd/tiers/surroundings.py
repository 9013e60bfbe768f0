"""What the tier of a broker works with: its own queues and log, its topics, and what else goes on in the process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from brokerd.replication.epochs.epoch_list import EpochEntry
from brokerd.tiers.index.keys import Keys, PlainKeys
from brokerd.tiers.stowage import Stowage
from brokerd.tiers.upload.batches import QueueReads
from brokerd.tiers.upload.uploader import Loop
from remoting.tier.states import Row


class LocalQueues(QueueReads, Protocol):
    """This broker's own consume queues and log."""

    def local_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """[min, max) of the queue offsets whose messages its files have."""

    def position_of(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Where the message begins in the log; the queue offset is in the local range."""

    def next_offset(self, topic: str, queue_id: int) -> int:
        """The number that the queue's next message gets."""

    def go_on_at(self, ends: Mapping[tuple[str, int], int]) -> None:
        """Let queues whose messages are not in its files any more end there, also those that it knows nothing of."""

    def all_queues(self) -> Sequence[tuple[str, int]]:
        """Every queue that has messages, or had."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the service works with. `attributes` are a topic's, None without one. `lineage` are the epochs of the log that the
    tier's messages are of, and its end; `epoch` is the master's. `state_rows` are what a mount needs besides messages. With
    `is_mount` a group is served from the tier in the place of its own brokers; it expires, and nothing else becomes of it.
    `usurped` is called when somebody else serves the group; it ends this broker. `stowage` is for timers."""

    local: LocalQueues
    attributes: Callable[[str], Mapping[str, str] | None]
    lineage: Callable[[], tuple[Sequence[EpochEntry], int]]
    random_bits: Callable[[int], int]
    loop: Loop
    broker_name: str
    epoch: Callable[[], int]
    state_rows: Callable[[], Sequence[Row]]
    usurped: Callable[[str], None]
    stowage: Stowage
    is_mount: bool = False
    keys: Keys = field(default_factory=PlainKeys)
