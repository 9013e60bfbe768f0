"""The brokers' native library, built before they start: on a new machine that takes a second, once.

Without a compiler brokers run their loops in Python, and say so; only `kernel.mode=native` then keeps them from starting. So a
failure here is told and prevents nothing.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence

from webapp.appliance.place import PROJECT_DIR

_TIMEOUT_S = 180
_UNWANTED = "kernel.mode=python"


def build(broker_settings: Sequence[str], tell: Callable[[str], None]) -> None:
    """Build the library unless the settings do without it."""
    if _UNWANTED in broker_settings:
        return
    try:
        done = subprocess.run(
            [sys.executable, "-m", "brokerd.native"],
            cwd=PROJECT_DIR,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        tell(f"brokers run in Python alone, which costs more processor time: {error}")
        return
    if done.returncode != 0:
        lines = done.stderr.split("\n")
        reason = next((line for line in reversed(lines) if line.strip()), f"exit code {done.returncode}")
        tell(f"brokers run in Python alone, which costs more processor time: {reason}")
