"""A carrier whose thread begins when it is let go, or waited for: what is put before that lies there."""

from __future__ import annotations

import threading
from typing import Any

from brokerd.native.carrier import Carrier
from tests.support.native_library import native_library


class Held(Carrier):
    """`waited`: how often somebody waited for a piece."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(native_library(), **settings)
        self._free = threading.Event()
        self.waited = 0

    def let_go(self) -> None:
        self._free.set()

    def finish(self, ticket: int) -> None:
        self.waited += 1
        self.let_go()
        super().finish(ticket)

    def stop(self) -> None:
        self.let_go()
        super().stop()

    def _run(self) -> None:
        self._free.wait()
        super()._run()
