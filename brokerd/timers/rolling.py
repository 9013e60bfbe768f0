"""When a timer that is far ahead is appended again on its way (pure).

A record lasts as long as its file of the log, so a message that waits longer is appended again before that: it travels in legs of
at most a window each. No leg but the last ends within the last half window, so a message is not appended again just before it is
delivered.
"""

from __future__ import annotations

from typing import NamedTuple

from brokerd.timers.codes import MESSAGE, encode_code


class Wait(NamedTuple):
    """When a timer that is appended now is due, and when it is appended again before that; None when it is not."""

    due_ms: int
    leg_ms: int | None

    @property
    def code(self) -> int:
        """Of its entry, when it waits since it was sent."""
        return encode_code(self.due_ms if self.leg_ms is None else self.leg_ms, MESSAGE)


def leg_before(due_ms: int, now_ms: int, least_due_ms: int, window_ms: int) -> int | None:
    """When a timer that is appended now is to be appended again; None when it waits where it is until it is due.

    `least_due_ms` is when the next timer can be due that is still found; a clock that was set back may say less.
    """
    now_ms = max(now_ms, least_due_ms)
    ahead_ms = due_ms - now_ms
    if ahead_ms <= window_ms:
        return None
    if ahead_ms - window_ms < window_ms // 2:
        return now_ms + ahead_ms // 2
    return now_ms + window_ms
