"""The families of timers."""

from __future__ import annotations

from typing import Final

from brokerd.timers.service import TimerService
from remoting.exposition import Family

_GAUGES: Final = {
    "waiting": "timers that wait, and delete markers among them",
    "near": "of these, what the master has in memory since it is due soon",
    "uncounted": "entries of the timer topic that the counts by topic lack, as after a start",
    "aside": "timers that cannot be read or stored now, and are tried again",
    "fences": "times that the clock went back behind what was delivered, and did not get there again",
    "in_tier": "of those that wait, what is in the tier",
    "tier_objects": "objects of the tier that have some",
    "left": "parts of what is late that newer timers overtook, and that wait beside these",
}
_COUNTERS: Final = {
    "delivered": "timers delivered",
    "rolled": "timers appended again on their way",
    "moved": "of these, timers appended again before their time, since their files of the log were to go",
    "stowed": "timers that went to the tier",
    "returned": "timers that came back from there",
    "tier_failures": "attempts to have timers go to the tier or come back that failed, and are repeated",
    "recalled": "timers that were due and had been recalled",
    "failures": "attempts to deliver that failed, and are repeated",
    "lost": "timers whose topic or group was removed while they waited, or that could not be read for long",
}


def timer_families(timers: TimerService) -> list[Family]:
    """Those of one broker."""
    state = timers.state()
    return [
        *(Family(f"logboom_timers_{name}", "gauge", help).add(getattr(state, name)) for name, help in _GAUGES.items()),
        Family(
            "logboom_timers_overdue_seconds",
            "gauge",
            "for how long the first timer that waits could have been delivered",
        ).add(state.overdue_ms / 1000),
        Family(
            "logboom_timers_clock_doubted_seconds",
            "gauge",
            "how far this machine's clock is ahead of the time by which timers are kept",
        ).add(state.doubted_ms / 1000),
        *(
            Family(f"logboom_timers_{name}_total", "counter", help).add(getattr(state, name))
            for name, help in _COUNTERS.items()
        ),
        Family("logboom_timers_late_seconds", "histogram", "how late timers were delivered").add(
            timers.counters.late_s
        ),
    ]
