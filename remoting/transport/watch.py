"""What is unfinished in a daemon: the budgets of `unfinished` with the loop's clock, looked at while there is something."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from remoting.exposition import Family
from remoting.settings import setting
from remoting.transport.unfinished import Holder, Piece, Unfinished

_LOOK_S: Final = 0.25
_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class UnfinishedSettings:
    """What peers may make a daemon hold of frames and bodies that are not all there."""

    max_bytes: int = setting(192 * _MIB, "of all peers together", minimum=32 * _MIB, maximum=1 << 40)
    max_unproven_bytes: int = setting(
        32 * _MIB,
        "of those who have not shown who they are, with access.authentication: beside the others",
        minimum=24 * _MIB,
        maximum=1 << 40,
    )
    deadline_s: float = setting(
        30.0, "how long a frame, a body or the head of a request may take to come", minimum=0.05, maximum=3600
    )


class Watch:
    """Of one daemon; made on its loop, or before it runs."""

    def __init__(self, settings: UnfinishedSettings) -> None:
        deadline_ms = int(settings.deadline_s * 1000)
        self.deadline_ms = deadline_ms
        self.proven = Unfinished(settings.max_bytes, deadline_ms)
        self.unproven = Unfinished(settings.max_unproven_bytes, deadline_ms)
        self._timer: asyncio.TimerHandle | None = None

    def begin(
        self, holder: Holder, peer: str, wanted_bytes: int, received_bytes: int, *, is_proven: bool = True
    ) -> Piece:
        """See `Unfinished.begin`. `is_proven`: nobody is asked who he is, or this peer has shown it."""
        loop = asyncio.get_running_loop()
        if self._timer is None:
            self._timer = loop.call_later(_LOOK_S, self._look)
        budget = self.proven if is_proven else self.unproven
        return budget.begin(holder, peer, wanted_bytes, received_bytes, _ms(loop))

    def end(self, piece: Piece) -> None:
        """See `Unfinished.end`."""
        piece.budget.end(piece, _ms(asyncio.get_running_loop()))

    def arrived(self, piece: Piece) -> None:
        """See `Unfinished.arrived`."""
        piece.budget.arrived(piece, _ms(asyncio.get_running_loop()))

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now_ms = _ms(loop)
        self.proven.look(now_ms)
        self.unproven.look(now_ms)
        more = len(self.proven) or len(self.unproven)
        self._timer = loop.call_later(_LOOK_S, self._look) if more else None

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def families(self) -> list[Family]:
        """What metrics show of it, the same on brokers and controllers."""
        both = (self.proven, self.unproven)
        return [
            Family("logboom_unfinished_bytes", "gauge", "reserved for frames and bodies that are not all there").add(
                sum(each.held_bytes for each in both)
            ),
            Family("logboom_unfinished_waiting", "gauge", "frames and bodies that wait for room").add(
                sum(each.waiting for each in both)
            ),
            Family("logboom_unfinished_dropped_total", "counter", "given up: late, or more than their share").add(
                sum(each.dropped for each in both)
            ),
        ]


def _ms(loop: asyncio.AbstractEventLoop) -> int:
    return int(loop.time() * 1000)
