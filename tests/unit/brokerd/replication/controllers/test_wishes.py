"""What is wanted of a session waits until its shell takes it there, the newest of each kind."""

from __future__ import annotations

from brokerd.replication.controllers.wishes import Wishes
from brokerd.replication.required_set.sync_state import Proposal


class Session:
    def __init__(self) -> None:
        self.asked: list[object] = []

    def request_sync(self) -> None:
        self.asked.append("sync")

    def request_election(self) -> None:
        self.asked.append("election")

    def request_members(self) -> None:
        self.asked.append("members")

    def propose(self, proposal: Proposal, master_epoch: int) -> None:
        self.asked.append((proposal.token, master_epoch))


def test_each_kind_is_passed_on_once() -> None:
    wishes, session = Wishes(), Session()
    wishes.request_sync()
    wishes.request_sync()
    wishes.propose(Proposal(1, frozenset({1}), 7), 3)
    wishes.propose(Proposal(9, frozenset({1, 2}), 8), 4)
    wishes.request_members()
    wishes.request_election()
    assert wishes.are_there.is_set()
    wishes.pass_on(session)
    assert session.asked == ["sync", (9, 4), "members", "election"]
    wishes.pass_on(session)
    assert len(session.asked) == 4
