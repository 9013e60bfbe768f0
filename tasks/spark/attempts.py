"""How patient an attempt of a task is.

Spark does a task that failed again, since its Python worker may have been killed. What failed after waiting for a master fails
the same way the next time: so the first attempt waits as long as it was told to, and the later ones only a moment.
"""

from __future__ import annotations

from typing import Final

from pyspark import TaskContext

LATER_RETRY_FOR_MS: Final = 5_000


def patience_ms(retry_for_ms: int) -> int:
    """For how long this attempt waits for a master; outside of a task, as long as it was told to."""
    context = TaskContext.get()
    if context is None or context.attemptNumber() == 0:
        return retry_for_ms
    return min(retry_for_ms, LATER_RETRY_FOR_MS)
