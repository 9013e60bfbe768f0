"""Timers that stand still: what takes messages and recalls of clients, over a broker group whose clock a test sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from brokerd.timers.clients import TimedMessages
from brokerd.timers.interface import Recalled
from brokerd.timers.settings import TimerSettings
from brokerd.timers.slots import SlotLimit
from remoting import codes
from remoting.errors import RequestError

DAY_MS = 86_400_000


@dataclass
class StillTimers:
    """`interface.Timers`: nothing is delivered; what was recalled is remembered, and refused the second time."""

    wall_ms: Callable[[], int]
    least_due_ms: int = 0
    window_ms: int = 2 * DAY_MS
    key: bytes | None = bytes(range(32))
    recalled: list[Recalled] = field(default_factory=list)
    slots: SlotLimit | None = None

    def now_ms(self) -> int:
        return self.wall_ms()

    @property
    def drawn_key(self) -> bytes | None:
        return self.key

    def later_ms(self) -> int:
        return self.wall_ms()

    @property
    def is_settled(self) -> bool:
        return True

    def follow_clock(self) -> None:
        """It is never earlier than what was delivered."""

    def recall_key(self) -> bytes | None:
        return self.key

    def slot_limit(self) -> SlotLimit | None:
        return self.slots

    def has_room_for_marker(self, topic: str) -> bool:
        return True

    def is_pending(self, place: int, due_ms: int) -> bool:
        return (place, due_ms) not in {(each.place, each.due_ms) for each in self.recalled}

    def recall(self, timer: Recalled, done: Callable[[RequestError | None], None]) -> None:
        if self.is_pending(timer.place, timer.due_ms):
            self.recalled.append(timer)
            done(None)
        else:
            done(RequestError(codes.ILLEGAL_OPERATION, "the message was recalled already"))


def timed_messages(
    timers: StillTimers, broker_name: str = "broker-a", next_place: Callable[[], int] = lambda: 0
) -> TimedMessages:
    """What endpoints use of them."""
    limits = TimerSettings()
    return TimedMessages(timers, lambda: limits, broker_name, next_place)
