"""Work that is too much for one turn of the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def run_in_turns(steps: Iterator[int], most: int, call_soon: Callable[..., Any]) -> None:
    """Take steps, each of which says how much it was, until that is `most`; then go on in the next turn. The first ones are taken
    at once, so little work is done when this returns."""
    done = 0
    for size in steps:
        done += size
        if done >= most:
            call_soon(run_in_turns, steps, most, call_soon)
            return
