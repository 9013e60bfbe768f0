"""Rules of the core that need a hand-made situation."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from controllerd.raft import proposals
from controllerd.raft.core import RaftCore
from controllerd.raft.leading import CoreSettings
from controllerd.raft.log import RaftLog
from controllerd.raft.membership import ChangeKind, MemberChange
from controllerd.raft.messages import Entry, HardState, Message, MessageKind, Role
from controllerd.raft.proposals import ProposalRefused
from controllerd.raft.quorum import Configuration
from remoting.errors import NotLeader

NAMES = ("n1", "n2", "n3")


def make_core(
    terms: Sequence[int] = (),
    *,
    term: int = 0,
    name: str = "n1",
    voters: tuple[str, ...] = NAMES,
    settings: CoreSettings | None = None,
    seed: int = 1,
) -> RaftCore:
    entries = [Entry(index, of_term, b"x") for index, of_term in enumerate(terms, 1)]
    return RaftCore(
        name,
        Configuration.of(voters),
        RaftLog(entries=entries),
        HardState(term),
        settings or CoreSettings(),
        random.Random(seed),
    )


def drain(core: RaftCore) -> list[Message]:
    """Carry out everything; return what was sent."""
    sent: list[Message] = []
    while core.has_ready():
        ready = core.ready()
        sent += [*ready.send_now, *ready.send_after_persist]
        core.advance()
    return sent


def elect(core: RaftCore) -> None:
    """Make the core the leader by a vote of n2."""
    core.campaign()
    drain(core)
    core.step(Message(MessageKind.PRE_VOTE_RESPONSE, "n2", core.id, core.term + 1))
    drain(core)
    core.step(Message(MessageKind.VOTE_RESPONSE, "n2", core.id, core.term))
    assert core.role is Role.LEADER


def acknowledge(core: RaftCore, index: int, sender: str = "n2") -> None:
    core.step(Message(MessageKind.APPEND_RESPONSE, sender, core.id, core.term, index=index))


def test_an_entry_of_an_earlier_term_is_not_decided_by_counting() -> None:
    """Figure 8 of the paper: a majority holds it, and yet a later leader may replace it."""
    core = make_core([1, 2], term=3)
    elect(core)
    drain(core)
    acknowledge(core, 2)
    assert core.log.committed == 0
    acknowledge(core, 3)
    assert core.log.committed == 3


def test_own_entries_count_only_when_durable() -> None:
    core = make_core(voters=("n1", "n2", "n3"))
    elect(core)
    ready = core.ready()
    assert ready.persist is not None
    acknowledge(core, 1)
    assert core.log.committed == 0, "one durable copy, at n2, is no majority"
    core.advance()
    assert core.log.committed == 1


def test_a_leader_serves_only_after_applying_an_entry_of_its_term() -> None:
    core = make_core()
    elect(core)
    with pytest.raises(NotLeader):
        proposals.propose(core.serving(), b"early")
    with pytest.raises(NotLeader):
        core.read_index()
    drain(core)
    acknowledge(core, 1)
    assert not core.is_serving
    drain(core)
    assert core.is_serving
    assert proposals.propose(core.serving(), b"now").index == 2


def test_proposals_are_bounded() -> None:
    core = make_core(settings=CoreSettings(max_entry_bytes=10, max_uncommitted_bytes=25))
    elect(core)
    drain(core)
    acknowledge(core, 1)
    drain(core)
    with pytest.raises(ProposalRefused, match="11 bytes exceeds"):
        proposals.propose(core.serving(), b"x" * 11)
    proposals.propose(core.serving(), b"x" * 10)
    proposals.propose(core.serving(), b"x" * 10)
    with pytest.raises(ProposalRefused, match="wait to be committed"):
        proposals.propose(core.serving(), b"x" * 10)
    drain(core)
    acknowledge(core, 3)
    drain(core)
    proposals.propose(core.serving(), b"x" * 10)


def test_election_timeouts_are_random_within_bounds_and_redrawn() -> None:
    seen = set()
    for seed in range(200):
        core = make_core(seed=seed, settings=CoreSettings(election_ticks=10))
        ticks = 0
        while core.role is Role.FOLLOWER:
            core.tick()
            ticks += 1
        seen.add(ticks)
    assert seen == set(range(10, 20))


def test_ticks_that_are_counted_together_bring_no_election() -> None:
    settings = CoreSettings(heartbeat_ticks=3)
    for seed in range(50):
        core = make_core(settings=settings, seed=seed)
        assert core.calm_ticks == 1, "who hears no leader counts each tick"
        core.step(Message(MessageKind.HEARTBEAT, "n2", "n1", 1))
        together = 0
        while core.role is Role.FOLLOWER:
            count = core.calm_ticks
            for each in range(count):
                core.tick()
                assert core.role is Role.FOLLOWER or each == count - 1 == 0
            together += count > 1
        assert together >= 1


def test_a_leader_that_all_follow_counts_ticks_up_to_its_heartbeat_together() -> None:
    core = make_core(settings=CoreSettings(heartbeat_ticks=3))
    elect(core)
    drain(core)
    assert core.calm_ticks == 1, "nobody said yet what it has"
    acknowledge(core, 1)
    assert core.calm_ticks == 1
    acknowledge(core, 1, "n3")
    drain(core)
    for _ in range(3):
        assert core.calm_ticks == 3
        for _ in range(3):
            assert not drain(core)
            core.tick()
        assert {message.kind for message in drain(core)} == {MessageKind.HEARTBEAT}
        for name in ("n2", "n3"):
            core.step(Message(MessageKind.HEARTBEAT_RESPONSE, name, "n1", core.term))
    proposals.transfer(core.serving(), "n2")
    assert core.calm_ticks == 1


def test_a_successor_is_told_again_with_each_heartbeat_until_the_time_is_over() -> None:
    core = make_core(settings=CoreSettings(heartbeat_ticks=3))
    elect(core)
    acknowledge(core, 1)
    acknowledge(core, 1, "n3")
    drain(core)
    proposals.transfer(core.serving(), "n2")
    told = []
    for tick in range(20):
        told += [(tick, message.to) for message in drain(core) if message.kind is MessageKind.TIMEOUT_NOW]
        core.tick()
        for name in ("n2", "n3"):
            core.step(Message(MessageKind.HEARTBEAT_RESPONSE, name, "n1", core.term))
    assert told == [(0, "n2"), (3, "n2"), (6, "n2"), (9, "n2")]
    assert core.transferee is None


def test_one_vote_per_term_and_only_for_a_log_that_is_not_behind() -> None:
    core = make_core([1, 2], term=2)
    core.step(Message(MessageKind.VOTE, "n2", "n1", 3, index=1, log_term=2))
    core.step(Message(MessageKind.VOTE, "n3", "n1", 3, index=2, log_term=2))
    core.step(Message(MessageKind.VOTE, "n2", "n1", 3, index=9, log_term=9))
    core.step(Message(MessageKind.VOTE, "n3", "n1", 3, index=2, log_term=2))
    answers = [(message.to, message.reject) for message in drain(core)]
    assert answers == [("n2", True), ("n3", False), ("n2", True), ("n3", False)]
    assert core.vote == "n3"


def test_a_vote_leaves_only_after_it_is_durable() -> None:
    core = make_core()
    core.step(Message(MessageKind.VOTE, "n2", "n1", 1))
    ready = core.ready()
    assert ready.send_now == ()
    assert ready.persist is not None
    assert ready.persist.hard_state == HardState(1, "n2", 0)
    assert [message.kind for message in ready.send_after_persist] == [MessageKind.VOTE_RESPONSE]


def test_nothing_is_written_for_a_commit_alone() -> None:
    core = make_core([1], term=1)
    core.step(Message(MessageKind.HEARTBEAT, "n2", "n1", 1, commit=1))
    ready = core.ready()
    assert ready.persist is None
    assert [entry.index for entry in ready.committed] == [1]


def test_a_cut_off_leader_learns_the_later_term_from_an_answer() -> None:
    core = make_core(term=5)
    core.step(Message(MessageKind.HEARTBEAT, "n2", "n1", 3))
    assert core.leader is None
    (answer,) = drain(core)
    assert (answer.kind, answer.to, answer.term) == (MessageKind.APPEND_RESPONSE, "n2", 5)


def test_answers_from_strangers_and_impossible_acknowledgements_are_ignored() -> None:
    core = make_core()
    elect(core)
    drain(core)
    acknowledge(core, 1, sender="n9")
    acknowledge(core, 99)
    assert core.log.committed == 0


def test_a_write_in_progress_does_not_hide_what_was_cut_meanwhile() -> None:
    """An append of term 1 is being written while a new leader replaces it: the replaced entry must not count as durable."""
    core = make_core()
    core.step(Message(MessageKind.APPEND, "n2", "n1", 1, entries=(Entry(1, 1, b"a"), Entry(2, 1, b"b"))))
    writing = core.ready()
    assert writing.persist is not None
    core.step(Message(MessageKind.APPEND, "n3", "n1", 2, index=1, log_term=1, entries=(Entry(2, 2, b"c"),)))
    core.advance()
    assert core.log.stable_index <= 1
    then = core.ready()
    assert then.persist is not None
    assert then.persist.entries[-1] == Entry(2, 2, b"c")


def test_a_node_that_is_no_voter_never_campaigns() -> None:
    core = make_core(name="n9")
    for _ in range(100):
        core.tick()
    assert core.role is Role.FOLLOWER
    assert drain(core) == []


def test_a_request_to_take_over_means_nothing_to_the_leader_a_later_term_or_a_learner() -> None:
    leader = make_core()
    elect(leader)
    leader.step(Message(MessageKind.TIMEOUT_NOW, "n2", "n1", leader.term))
    assert leader.role is Role.LEADER
    later = make_core(term=5)
    later.step(Message(MessageKind.TIMEOUT_NOW, "n2", "n1", 4))
    assert (later.role, later.term) == (Role.FOLLOWER, 5)
    learner = make_core(name="n9")
    learner.step(Message(MessageKind.TIMEOUT_NOW, "n2", "n9", 1))
    assert learner.role is Role.FOLLOWER
    assert not [message for message in drain(learner) if message.kind is MessageKind.VOTE]
    voter = make_core(term=4)
    voter.step(Message(MessageKind.TIMEOUT_NOW, "n2", "n1", 4))
    assert (voter.role, voter.term) == (Role.CANDIDATE, 5)
    assert all(message.forced for message in drain(voter))


def test_what_votes_say_is_decided_is_believed_only_of_the_same_entry() -> None:
    core = make_core([1, 2, 2], term=2)
    core.step(Message(MessageKind.PRE_VOTE_RESPONSE, "n2", "n1", 2, reject=True, commit=2, reject_hint=1))
    assert core.log.committed == 0, "another entry is decided there"
    core.step(Message(MessageKind.PRE_VOTE_RESPONSE, "n2", "n1", 2, reject=True, commit=9, reject_hint=2))
    assert core.log.committed == 0, "this one is not here"
    core.step(Message(MessageKind.PRE_VOTE_RESPONSE, "n2", "n1", 2, reject=True, commit=2, reject_hint=2))
    assert core.log.committed == 2


def test_a_decided_change_is_durable_before_it_takes_effect() -> None:
    core = make_core(voters=("n1", "n2"))
    elect(core)
    drain(core)
    acknowledge(core, 1)
    drain(core)
    proposals.propose_change(core.serving(), [MemberChange(ChangeKind.REMOVE, "n2")])
    drain(core)
    acknowledge(core, 2)
    ready = core.ready()
    assert [entry.index for entry in ready.committed] == [2]
    assert ready.persist is not None
    assert ready.persist.hard_state.commit == 2, "who forgets that n2 left would go on needing its vote"
    assert core.configuration.voters == ("n1", "n2")
    core.advance()
    assert core.configuration.voters == ("n1",)
