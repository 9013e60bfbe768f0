"""What waits inside a broker group, by its master's word: open transactions, delayed messages, the index (pure)"""

from __future__ import annotations

from remoting.facts.broker_state import ScheduleState, TimerState, TransactionState
from remoting.facts.snapshot import DelayLevel, Delays, KeyIndex, Timers, Transactions
from tasks.snapshot.inputs import known, shown

LATE_MS = 5_000
"""A delivery that is later than this is worth a warning; below it, a busy machine is the reason."""
LATE_FOR_MS = 300_000
"""So long one late delivery is news: after it what is said about the past would look like the present."""
INDEX_BEHIND_BYTES = 1 << 30
"""A burst leaves the index behind by hundreds of megabytes, and it is read after it."""


def transactions(told: TransactionState | None) -> Transactions | None:
    """None when the master does not answer, or does not tell; so it is with the other parts."""
    if told is None:
        return None
    if told.open > 0:
        return shown(Transactions, told, overdue=told.oldest_checks > 0)
    oldest = dict.fromkeys(("oldest_since_ms", "oldest_age_ms", "oldest_checks"))
    return shown(Transactions, told, open=0, overdue=False, **oldest)


def delays(told: ScheduleState | None) -> Delays | None:
    if told is None:
        return None
    is_news = 0 <= told.last_ago_ms <= LATE_FOR_MS
    return shown(
        Delays,
        told,
        waiting=sum(known(each.waiting) or 0 for each in told.levels),
        late=max(told.last_late_ms if is_news else 0, told.overdue_ms) > LATE_MS,
        levels=tuple(shown(DelayLevel, each) for each in told.levels),
    )


def timers(told: TimerState | None) -> Timers | None:
    return None if told is None else shown(Timers, told, late=told.overdue_ms > LATE_MS)


def index(lag_bytes: int) -> KeyIndex | None:
    return KeyIndex(lag_bytes=lag_bytes, behind=lag_bytes >= INDEX_BEHIND_BYTES) if lag_bytes >= 0 else None
