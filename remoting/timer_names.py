"""What the properties of timers are called: in the timer topic, and in the messages that were delivered from it."""

from __future__ import annotations

from typing import Final

# Properties that clients know from the original.
REAL_TOPIC: Final = "REAL_TOPIC"  # where the message goes
OUT_MS: Final = "TIMER_OUT_MS"  # the slot that the original puts it in: due within the second behind
ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
DELETE_KEY: Final = "TIMER_DEL_UNIQKEY"  # real topic + "+" + unique key of what is taken back
# Properties of Logboom.
DUE_MS: Final = "TIMER_DUE_MS"  # when it is due, to the millisecond
LEG_MS: Final = "TIMER_LEG_MS"  # when it is appended again, which is before that
RECALLED_BY: Final = "TIMER_RECALLED_BY"  # of a delete marker: who took the message back at the console
MOVED: Final = "TIMER_MOVED"  # of a timer that was appended again before its time, though it was on its last leg
PLACE: Final = "TIMER_PLACE"  # the queue offset at which the message waited first

SLOT_MS: Final = 1000  # of the original; what is in the slot S is due in (S, S + SLOT_MS]
