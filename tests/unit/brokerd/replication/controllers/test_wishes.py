"""What is wanted of a session waits until its shell takes it there, the newest of each kind."""

from __future__ import annotations

from brokerd.replication.controllers.wishes import Wishes
from brokerd.replication.required_set.sync_state import Proposal
from brokerd.replication.roles.effects import Ask


class Session:
    def __init__(self) -> None:
        self.asked: list[object] = []

    def ask(self, what: Ask) -> None:
        self.asked.append(what)

    def propose(self, proposal: Proposal, master_epoch: int) -> None:
        self.asked.append((proposal.token, master_epoch))


def test_each_kind_is_passed_on_once() -> None:
    wishes, session = Wishes(), Session()
    wishes.ask(Ask.SYNC)
    wishes.ask(Ask.SYNC)
    wishes.propose(Proposal(1, frozenset({1}), 7), 3)
    wishes.propose(Proposal(9, frozenset({1, 2}), 8), 4)
    wishes.ask(Ask.MEMBERS)
    wishes.ask(Ask.ELECTION)
    assert wishes.are_there.is_set()
    wishes.pass_on(session)
    assert session.asked == [Ask.SYNC, (9, 4), Ask.MEMBERS, Ask.ELECTION]
    wishes.pass_on(session)
    assert len(session.asked) == 4
