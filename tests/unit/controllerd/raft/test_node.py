"""Who waits for a proposal or a read is answered once, with the truth or with an error."""

from __future__ import annotations

from typing import Any

import pytest

from controllerd.raft.messages import Entry, EntryKind, Message, MessageKind, Snapshot
from controllerd.raft.node import OutcomeUnknown, RaftNode
from controllerd.raft.quorum import Configuration
from remoting.errors import NotLeader
from tests.unit.controllerd.raft.test_core import acknowledge, elect, make_core


class Recorder:
    """A state machine that remembers what was decided, and a list of answers; a request is its own decision."""

    def __init__(self) -> None:
        self.applied: list[bytes] = []
        self.tail: list[bytes] = []
        self.answers: list[Any] = []

    def decide(self, request: bytes) -> bytes:
        return request

    def appended(self, data: bytes) -> None:
        self.tail.append(data)

    def forget(self) -> None:
        self.tail = []

    def apply(self, data: bytes) -> str:
        self.applied.append(data)
        return f"did {data.decode()}"

    def snapshot(self) -> bytes:
        return b" ".join(self.applied)

    def restore(self, data: bytes) -> None:
        self.applied = data.split()

    def answered(self, result: Any) -> None:
        self.answers.append(result)


def work(node: RaftNode) -> None:
    while node.ready() is not None:
        node.finish()


def serving_node(compact_after_entries: int = 1000) -> tuple[RaftNode, Recorder]:
    recorder = Recorder()
    node = RaftNode(make_core(), recorder, compact_after_entries=compact_after_entries, keep_entries=2)
    elect(node.core)
    work(node)
    acknowledge(node.core, 1)
    work(node)
    assert node.is_serving
    return node, recorder


def depose(node: RaftNode, *entries: Entry) -> None:
    """Another leader of the next term appends after entry 1."""
    node.step(
        Message(MessageKind.APPEND, "n3", "n1", node.core.term + 1, index=1, log_term=1, commit=9, entries=entries)
    )
    work(node)


def test_a_reply_comes_when_the_command_is_applied() -> None:
    node, recorder = serving_node()
    node.propose(b"x", recorder.answered)
    work(node)
    assert recorder.answers == []
    acknowledge(node.core, 2)
    work(node)
    assert recorder.answers == ["did x"]


def test_nobody_waits_for_what_was_not_taken() -> None:
    recorder = Recorder()
    node = RaftNode(make_core(), recorder, compact_after_entries=10, keep_entries=0)
    with pytest.raises(NotLeader):
        node.propose(b"x", recorder.answered)
    with pytest.raises(NotLeader):
        node.read(recorder.answered)
    node.close()
    assert recorder.answers == []


def test_a_proposal_that_was_replaced_did_not_happen() -> None:
    node, recorder = serving_node()
    node.propose(b"x", recorder.answered)
    work(node)
    depose(node, Entry(2, 2, b"other"))
    (answer,) = recorder.answers
    assert isinstance(answer, NotLeader)
    assert recorder.applied == [b"other"]


def test_a_proposal_of_a_deposed_leader_has_an_unknown_outcome() -> None:
    node, recorder = serving_node()
    node.propose(b"x", recorder.answered)
    work(node)
    node.step(Message(MessageKind.HEARTBEAT, "n3", "n1", node.core.term + 1))
    work(node)
    (answer,) = recorder.answers
    assert isinstance(answer, OutcomeUnknown)
    # It is decided later, by the next leader, and nobody is told twice.
    node.step(
        Message(
            MessageKind.APPEND,
            "n3",
            "n1",
            node.core.term,
            index=2,
            log_term=1,
            commit=3,
            entries=(Entry(3, 2, b"", EntryKind.EMPTY),),
        )
    )
    work(node)
    assert recorder.applied == [b"x"]
    assert len(recorder.answers) == 1


def test_a_snapshot_over_a_waiting_proposal_leaves_its_outcome_unknown() -> None:
    node, recorder = serving_node()
    node.propose(b"x", recorder.answered)
    work(node)
    snapshot = Snapshot(5, 2, Configuration.of(("n1", "n2", "n3")), b"a b c")
    node.step(Message(MessageKind.SNAPSHOT, "n3", "n1", 2, snapshot=snapshot))
    work(node)
    (answer,) = recorder.answers
    assert isinstance(answer, OutcomeUnknown)
    assert recorder.applied == [b"a", b"b", b"c"]


def test_reads_of_one_moment_share_a_round_and_wait_for_proposals_before_them() -> None:
    node, recorder = serving_node()
    node.read(recorder.answered)
    node.read(recorder.answered)
    node.propose(b"x", recorder.answered)
    node.read(lambda result: recorder.answers.append("late read"))
    ready = node.ready()
    assert ready is not None
    beats = [message for message in ready.send_now if message.kind is MessageKind.HEARTBEAT and message.to == "n2"]
    assert [beat.context for beat in beats] == [1, 2]
    node.finish()
    node.step(Message(MessageKind.HEARTBEAT_RESPONSE, "n2", "n1", 1, context=2))
    work(node)
    assert recorder.answers == [None, None], "the third read waits for the proposal"
    acknowledge(node.core, 2)
    work(node)
    assert recorder.answers == [None, None, "did x", "late read"]


def test_reads_of_a_deposed_leader_fail() -> None:
    node, recorder = serving_node()
    node.read(recorder.answered)
    work(node)
    depose(node)
    (answer,) = recorder.answers
    assert isinstance(answer, NotLeader)


def test_closing_answers_everybody() -> None:
    node, recorder = serving_node()
    node.propose(b"x", recorder.answered)
    node.read(recorder.answered)
    node.close()
    assert [type(answer) for answer in recorder.answers] == [OutcomeUnknown, NotLeader]


def test_the_log_is_compacted_when_it_grew() -> None:
    node, recorder = serving_node(compact_after_entries=5)
    for number in range(2, 6):
        assert node.compaction() is None
        node.propose(b"c%d" % number, recorder.answered)
        work(node)
        acknowledge(node.core, number)
        work(node)
    compaction = node.compaction()
    assert compaction is not None
    assert compaction.snapshot.data == b"c2 c3 c4 c5"
    assert (compaction.compacted_index, [entry.index for entry in compaction.entries]) == (3, [4, 5])
    assert node.compaction() is None
