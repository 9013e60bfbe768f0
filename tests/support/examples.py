"""How many examples a model is tried with: few in every run, more on request (`make models TIMES=30`)."""

from __future__ import annotations

import os
from typing import Final

_TIMES: Final = int(os.environ.get("EXAMPLES_TIMES", "1"))


def examples(count: int) -> int:
    """So many in an ordinary run."""
    return count * _TIMES
