"""What those who take messages and recalls from clients need of the timers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from brokerd.timers.slots import SlotLimit
from remoting.errors import RequestError


class Recalled(NamedTuple):
    """A timer that is to be taken back: what a handle says whose tag was checked."""

    topic: str  # that it was sent to
    unique_key: str
    place: int  # the queue offset of its first record in the timer topic: what the answer to its send said
    due_ms: int  # as that record has it (TIMER_DUE_MS)
    by: str = ""  # who takes it back, where that is known


class Timers(Protocol):
    """The timers of this broker group. All is called on the loop's thread.

    A record of the timer topic is stamped and appended in one turn of the loop, so that it is behind the cursor: it has the
    property `codes.DUE_MS`, which is `least_due_ms` or later, also when somebody asked for an earlier time, and `codes.LEG_MS`
    (`rolling.leg_before`) when it is due further ahead than `window_ms`. A delete marker that a client sends says in
    `codes.OUT_MS` which slot it is for, and has the leg `least_due_ms`: it is effective at once.
    """

    def now_ms(self) -> int:
        """The time by which timers are kept: what is due is delivered when this says so, and a relative delay counts from it."""

    def later_ms(self) -> int:
        """What time it may be instead, which is not earlier, while that is not settled; else the same."""

    def follow_clock(self) -> None:
        """To be called before something is stamped: when it turned out to be earlier than the last timer was due that was
        delivered, what is sent now does not wait for that time again. On the master, else nothing."""

    @property
    def is_settled(self) -> bool:
        """Whether it is one time alone, and `follow_clock` has nothing to do. Nothing is appended."""

    @property
    def least_due_ms(self) -> int:
        """Whatever is appended now has to be due then or later."""

    @property
    def window_ms(self) -> int:
        """What is due further ahead than this is appended again on the way."""

    @property
    def drawn_key(self) -> bytes | None:
        """That secret, as far as it was drawn already: nothing is appended."""

    def recall_key(self) -> bytes | None:
        """The secret of this broker group that makes handles, drawn when there is none; None when the log does not take it now.

        A handle made with it may be given out when a timer that was appended afterwards is acknowledged.
        """

    def slot_limit(self) -> SlotLimit | None:
        """What counts the timers of each second and says whether there is room for one more; None without a limit. Nothing is
        taken while it `is_behind`."""

    def has_room_for_marker(self, topic: str) -> bool:
        """Whether one more delete marker of a client, for a message that was sent to that topic, has its effect."""

    def is_pending(self, place: int, due_ms: int) -> bool:
        """Whether the timer that waited first at that queue offset still waits, and was not recalled. On the master."""

    def recall(self, timer: Recalled, done: Callable[[RequestError | None], None]) -> None:
        """Take a timer back; `done` follows when that cannot be lost any more, or with the reason why it is refused:
        ILLEGAL_OPERATION when it was delivered or recalled already."""
