"""What the clients of a story know: everything that they tried, and how each attempt ended for them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from brokerd.transactions.decide import Outcome

Place = tuple[int, int]  # queue id, queue offset


@dataclass
class TopicLife:
    """A topic that is deleted and made again, by one client, which goes on only when it knows how the last step ended."""

    name: str
    generation: int = 0
    exists: bool = False  # as its last step, known to have succeeded, left it
    is_settled: bool = True  # no step is under way
    sent: dict[bytes, int] = field(default_factory=dict)  # of the present generation, with its copies at most
    acknowledged: dict[bytes, Place] = field(default_factory=dict)  # of the present generation


@dataclass
class History:
    """Bodies are unique. A body may be stored once for every attempt that was not refused before it was stored."""

    attempts: dict[bytes, int] = field(default_factory=dict)
    acknowledged: dict[bytes, list[Place]] = field(default_factory=dict)
    finished: dict[bytes, float] = field(default_factory=dict)  # popped, and when the consumer knew that its ack holds
    finished_places: dict[tuple[int, int, int], float] = field(
        default_factory=dict
    )  # the same by (retry flag, queue, offset)
    given_up: set[bytes] = field(default_factory=set)  # by the consumer, for the dead-letter topic, for certain
    perhaps_finished: set[bytes] = field(default_factory=set)  # an ack's outcome is not known, so it may hold
    deliveries: Counter[bytes] = field(default_factory=Counter)
    committed: dict[tuple[str, int], int] = field(default_factory=dict)  # (group, queue) -> highest confirmed offset
    asked: dict[tuple[str, int], int] = field(default_factory=dict)  # (group, queue) -> highest that was tried
    seen: dict[Place, bytes] = field(default_factory=dict)  # what a reader saw, which must stay
    wanted: dict[bytes, Outcome] = field(default_factory=dict)  # of each transaction, how it shall end
    begun: set[bytes] = field(default_factory=set)  # transactions whose half message was acknowledged
    delayed: dict[bytes, tuple[int, float]] = field(default_factory=dict)  # body -> (level, when it was sent first)
    delayed_acknowledged: set[bytes] = field(default_factory=set)
    delayed_seen: set[bytes] = field(default_factory=set)  # by somebody
    given_back: set[tuple[bytes, int]] = field(default_factory=set)  # (body, how often it was before), acknowledged
    topics: dict[str, TopicLife] = field(default_factory=dict)
    operations: Counter[tuple[str, str]] = field(default_factory=Counter)  # (operation, outcome)

    def count(self, operation: str, outcome: str) -> None:
        self.operations[operation, outcome] += 1

    def may_be_stored(self, body: bytes) -> None:
        """An attempt begins: its message may end up in the log."""
        self.attempts[body] = self.attempts.get(body, 0) + 1

    def refused(self, body: bytes) -> None:
        """That attempt stored nothing, for certain."""
        self.attempts[body] -= 1
