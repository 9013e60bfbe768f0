"""Settings of timers (`--set timers.key=value`)."""

from __future__ import annotations

from dataclasses import dataclass

from remoting.settings import check, setting


@dataclass(frozen=True, slots=True)
class TimerSettings:
    """How much is delivered at once, and how long a timer stays in one place of the log."""

    batch_messages: int = setting(512, "most timers delivered in one turn of the loop", minimum=1, maximum=100_000)
    batch_bytes: int = setting(4 << 20, "most bytes of them, but always one", minimum=1024, maximum=64 << 20)
    in_flight_messages: int = setting(
        16_384, "most delivered timers that wait to be acknowledged", minimum=1, maximum=1_000_000
    )
    in_flight_bytes: int = setting(32 << 20, "most bytes of them", minimum=1024, maximum=1 << 30)
    retry_ms: int = setting(
        1000, "when a delivery fails, the next try is after this time", minimum=10, maximum=3_600_000
    )
    near_s: int = setting(60, "what is due within this time is kept in memory", minimum=1, maximum=3600)
    near_max: int = setting(2_000_000, "but no more timers than this; 8 bytes each", minimum=1, maximum=100_000_000)
    max_ahead_s: int = setting(
        40 * 86_400,
        "how far ahead of now a message may be delivered",
        minimum=1,
        maximum=100 * 366 * 86_400,
        live=True,
        original="timerMaxDelaySec",
    )
    max_per_slot: int = setting(
        0,
        "how many timers may be due in one second, or be appended again on their way in it: a send for a second that has as many "
        "is refused; 0 = any number",
        minimum=0,
        maximum=(1 << 31) - 1,
        live=True,
        original="timerCongestNumEachSlot",
    )
    roll_window_s: int = setting(
        172_800,
        "a timer further ahead is appended again after this time, so that its file of the log may go; two thirds of "
        "`retention.reserved_time_ms` when that is less",
        minimum=1,
        maximum=366 * 86_400,
        original="timerRollWindowSlot",
    )

    tier_ahead_s: int = setting(
        21_600,
        "with a tier (`tiers.url`), a timer that is due further ahead than this when its file of the log is to go waits in the "
        "object store",
        minimum=2,
        maximum=366 * 86_400,
    )
    tier_back_s: int = setting(
        3600,
        "a timer comes back from the object store so long before it is due; half of `tier_ahead_s` when that is less",
        minimum=1,
        maximum=86_400,
    )

    files: bool = setting(
        True, "find timers that are not due soon in files of the original's layout; without, in the queue"
    )

    def __post_init__(self) -> None:
        check("timers", self)
