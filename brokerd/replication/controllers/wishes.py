"""What the driver wants of the session, kept until the session's shell takes it there.

Made before either of them: the driver is told by the session, and the session asked by the driver.
"""

from __future__ import annotations

import asyncio

from brokerd.replication.controllers.session import Session
from brokerd.replication.required_set.sync_state import Proposal


class Wishes:
    """Implements `driver.RoleAuthority`. `are_there` is set with every wish, or to have the session's clock looked at."""

    def __init__(self) -> None:
        self.are_there = asyncio.Event()
        self._wants_sync = False
        self._wants_election = False
        self._wants_members = False
        self._proposals: list[tuple[Proposal, int]] = []

    def request_sync(self) -> None:
        self._wants_sync = True
        self.are_there.set()

    def request_election(self) -> None:
        self._wants_election = True
        self.are_there.set()

    def request_members(self) -> None:
        self._wants_members = True
        self.are_there.set()

    def propose(self, proposal: Proposal, master_epoch: int) -> None:
        self._proposals.append((proposal, master_epoch))
        self.are_there.set()

    def pass_on(self, session: Session) -> None:
        """Ask the session for everything that was wanted since the last time."""
        if self._wants_sync:
            session.request_sync()
        if self._wants_election:
            session.request_election()
        if self._wants_members:
            session.request_members()
        self._wants_sync = self._wants_election = self._wants_members = False
        proposals, self._proposals = self._proposals, []
        for proposal, master_epoch in proposals:
            session.propose(proposal, master_epoch)
