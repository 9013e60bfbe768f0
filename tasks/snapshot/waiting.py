"""What waits inside a broker group, by its master's word: open transactions, delayed messages, the index (pure)"""

from __future__ import annotations

from remoting.facts.broker_state import ScheduleState, TransactionState
from remoting.facts.snapshot import DelayLevel, Delays, KeyIndex, Transactions
from tasks.snapshot.inputs import known

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
    is_any = told.open > 0
    return Transactions(
        open=told.open,
        open_bytes=known(told.open_bytes),
        max_open=known(told.max_open),
        oldest_since_ms=known(told.oldest_since_ms) if is_any else None,
        oldest_age_ms=known(told.oldest_age_ms) if is_any else None,
        oldest_checks=known(told.oldest_checks) if is_any else None,
        max_checks=known(told.max_checks),
        overdue=is_any and told.oldest_checks > 0,
        committed=known(told.committed),
        rolled_back=known(told.rolled_back),
        given_up=known(told.given_up),
    )


def delays(told: ScheduleState | None) -> Delays | None:
    if told is None:
        return None
    is_news = 0 <= told.last_ago_ms <= LATE_FOR_MS
    return Delays(
        waiting=sum(known(each.waiting) or 0 for each in told.levels),
        last_late_ms=known(told.last_late_ms),
        last_ago_ms=known(told.last_ago_ms),
        overdue_ms=known(told.overdue_ms),
        late=max(told.last_late_ms if is_news else 0, told.overdue_ms) > LATE_MS,
        delivered=known(told.delivered),
        failures=known(told.failures),
        lost=known(told.lost),
        returned=known(told.returned),
        dead_lettered=known(told.dead_lettered),
        levels=tuple(
            DelayLevel(
                level=each.level,
                delay_ms=known(each.delay_ms),
                waiting=known(each.waiting),
                late_ms=known(each.late_ms),
            )
            for each in told.levels
        ),
    )


def index(lag_bytes: int) -> KeyIndex | None:
    return KeyIndex(lag_bytes=lag_bytes, behind=lag_bytes >= INDEX_BEHIND_BYTES) if lag_bytes >= 0 else None
