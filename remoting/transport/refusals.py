"""Peers that a listener turns away, as it has enough: said now and then, as they come again, a thousand in a second."""

from __future__ import annotations

import logging
from time import monotonic
from typing import Final

SAID_EVERY_S: Final = 10.0


class Refusals:
    """Of one listener, whose log has them. `what` names its connections."""

    def __init__(self, log: logging.Logger, what: str) -> None:
        self._log = log
        self._what = what
        self._unsaid = 0
        self._silent_until_s = 0.0

    def note(self, peer: str, open_count: int) -> None:
        """This one is turned away, while so many are open."""
        now_s = monotonic()
        if now_s < self._silent_until_s:
            self._unsaid += 1
            return
        before = f", and refused {self._unsaid} others meanwhile" if self._unsaid else ""
        self._log.warning("refusing %s: %d %s are open already%s", peer, open_count, self._what, before)
        self._silent_until_s = now_s + SAID_EVERY_S
        self._unsaid = 0
