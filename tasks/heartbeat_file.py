"""Saying "I am alive" to the supervisor: touching the file that LOGBOOM_HEARTBEAT_FILE names.

Touched from the loop that does the work, never from a thread of its own: a process whose loop hangs must be seen to hang.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)


def beat() -> None:
    """Touch the file now; nothing happens when nobody asked for it."""
    path = os.environ.get("LOGBOOM_HEARTBEAT_FILE")
    if not path:
        return
    try:
        Path(path).touch()
    except OSError as error:
        log.warning("cannot touch the heartbeat file %s: %s", path, error)
