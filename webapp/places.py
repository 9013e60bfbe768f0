"""How many websockets there are: so many in all, and of these a share for each person.

A websocket stays as long as its page, so those that one person opens, or somebody with a cookie of his, would take all file
descriptors of the console. A page without one shows what it showed when it was loaded, and tries again.
"""

from __future__ import annotations

import resource
from collections import Counter
from functools import cache
from typing import Final

MOST: Final = 2048
MOST_OF_ONE: Final = 256


class Places:
    """Who has how many of them."""

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._taken: Counter[int] = Counter()

    def take(self, person: int) -> bool:
        """One for the person of this id; False when there is none."""
        if self._taken.total() >= self._most or self._taken[person] >= self._most_of_one:
            return False
        self._taken[person] += 1
        return True

    def leave(self, person: int) -> None:
        """One of the person's is free again."""
        self._taken[person] -= 1
        if not self._taken[person]:
            del self._taken[person]


@cache
def places() -> Places:
    """Those of this process: for a quarter of its file descriptors, and for one person a quarter of these."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST if soft == resource.RLIM_INFINITY else min(MOST, soft // 4)
    return Places(most, min(MOST_OF_ONE, most // 4))
