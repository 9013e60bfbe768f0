"""Requests that ask for what is in the tier: carried out again when what they missed is there, refused when that takes long."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from brokerd.loop.scheduler import Scheduler, Timer
from brokerd.store.cold import ColdMiss
from remoting import codes
from remoting.errors import LogboomError, RequestError

log = logging.getLogger(__name__)

_MOST: Final = 1000
_PATIENCE_S: Final = 10.0

Refuse = Callable[[LogboomError], None]


class Waiting:
    """One request that waits."""

    __slots__ = ("ask", "forget", "owner", "refuse", "timer")

    def __init__(self, owner: object, ask: Callable[[], None], refuse: Refuse) -> None:
        self.owner = owner
        self.ask = ask
        self.refuse = refuse
        self.timer: Timer | None = None
        self.forget: Callable[[], None] = _nothing  # who waits, where what it missed is fetched


def _nothing() -> None: ...


class FetchWaits:
    """Those that wait now, at most `most`, each at most `patience_s`."""

    def __init__(self, scheduler: Scheduler, most: int = _MOST, patience_s: float = _PATIENCE_S) -> None:
        self._scheduler = scheduler
        self._most = most
        self._patience_s = patience_s
        self._waiting: dict[Waiting, None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def attempt(self, owner: object, ask: Callable[[], None], refuse: Refuse) -> Waiting | None:
        """Call `ask`, which does nothing before it has all that it needs; again whenever what it missed may be there.

        What it raises the first time goes through, but for ColdMiss; later it goes to `refuse`. None when it does not wait.
        Raises RequestError when too many do.
        """
        try:
            ask()
        except ColdMiss as miss:
            if len(self._waiting) >= self._most:
                raise RequestError(
                    codes.SYSTEM_BUSY, f"{self._most} requests wait for the tier already; try again"
                ) from None
            waiting = Waiting(owner, ask, refuse)
            self._waiting[waiting] = None
            waiting.timer = self._scheduler.call_later(self._patience_s, self._give_up, waiting)
            waiting.forget = miss.when_fetched(partial(self._again, waiting))
            return waiting
        return None

    def cancel(self, waiting: Waiting) -> None:
        """Nobody wants its answer any more, or it has it."""
        if self._waiting.pop(waiting, waiting) is waiting:
            return
        if waiting.timer is not None:
            waiting.timer.cancel()
        forget, waiting.forget = waiting.forget, _nothing  # what is fetched may take long, or never come
        forget()

    def connection_closed(self, connection: object) -> None:
        """What that owner asked for is forgotten."""
        for waiting in [each for each in self._waiting if each.owner is connection]:
            self.cancel(waiting)

    def _again(self, waiting: Waiting) -> None:
        if waiting not in self._waiting:
            return
        try:
            waiting.ask()
        except ColdMiss as miss:
            waiting.forget = miss.when_fetched(partial(self._again, waiting))
        except LogboomError as error:
            self.cancel(waiting)
            waiting.refuse(error)
        except Exception as error:
            log.exception("a request that waited for the tier failed")
            self.cancel(waiting)
            waiting.refuse(RequestError(codes.SYSTEM_ERROR, f"internal error: {type(error).__name__}"))
        else:
            self.cancel(waiting)

    def _give_up(self, waiting: Waiting) -> None:
        self.cancel(waiting)
        text = f"the tier did not give what this needs within {self._patience_s:g} s; try again"
        waiting.refuse(RequestError(codes.SYSTEM_BUSY, text))
