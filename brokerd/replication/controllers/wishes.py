"""What the driver wants of the session, kept until the session's shell takes it there.

Made before either of them: the driver is told by the session, and the session asked by the driver.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from operator import methodcaller

from brokerd.replication.controllers.session import Session
from brokerd.replication.required_set.sync_state import Proposal
from brokerd.replication.roles.effects import Ask


class Wishes:
    """Implements `driver.RoleAuthority`. `are_there` is set with every wish, or to have the session's clock looked at."""

    def __init__(self) -> None:
        self.are_there = asyncio.Event()
        self._wishes: dict[Ask | None, Callable[[Session], None]] = {}  # the newest of each kind

    def ask(self, what: Ask) -> None:
        self._add(what, methodcaller("ask", what))

    def propose(self, proposal: Proposal, master_epoch: int) -> None:
        self._add(None, methodcaller("propose", proposal, master_epoch))

    def pass_on(self, session: Session) -> None:
        """Ask the session for what was wanted since the last time. Of two proposals the older is of an ended mastership."""
        wishes, self._wishes = self._wishes, {}
        for ask in wishes.values():
            ask(session)

    def _add(self, kind: Ask | None, wish: Callable[[Session], None]) -> None:
        self._wishes[kind] = wish
        self.are_there.set()
