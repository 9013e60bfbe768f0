"""Whether this worker was told to stop, known in the children that do its work.

A Celery worker that is told to stop waits for its tasks; a report could keep it for hours. The parent sets a byte in memory that
it shares with the children it forked; a report looks at it several times a second.
"""

from __future__ import annotations

import mmap
from typing import Any

from celery.signals import worker_shutting_down

_flag = mmap.mmap(-1, 1)


@worker_shutting_down.connect  # type: ignore[untyped-decorator]
def _stop(**_: Any) -> None:
    _flag[0] = 1


def is_worker_stopping() -> bool:
    """Whether the worker was told to stop."""
    return bool(_flag[0])
