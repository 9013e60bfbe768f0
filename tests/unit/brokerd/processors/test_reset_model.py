"""Any order of sends, commits, resets, pulls, pops and changes of master: each reset is told once, nothing else moves a group."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from remoting import codes
from tests.support.examples import examples
from tests.support.remoting_broker import RemotingBroker, remoting_master

QUEUES = 2
queues = st.integers(0, QUEUES - 1)
places = st.integers(0, 100)  # per cent of a queue


class Resets(RuleBasedStateMachine):
    """Group g pulls, group p pops; what they should know is kept beside the broker."""

    @initialize()
    def start(self) -> None:
        self.broker: RemotingBroker = remoting_master()
        self.broker.topic("t", QUEUES)
        self.broker.group("p")
        self.ends = [0] * QUEUES
        self.committed: list[int | None] = [None] * QUEUES
        self.pending: list[int | None] = [None] * QUEUES
        self.popped = [0] * QUEUES
        for queue_id in range(QUEUES):
            self.send(queue_id, 3)

    @rule(queue_id=queues, count=st.integers(1, 4))
    def send(self, queue_id: int, count: int) -> None:
        self.broker.send(*map(str, range(self.ends[queue_id], self.ends[queue_id] + count)), queue_id=queue_id)
        self.ends[queue_id] += count

    @rule(queue_id=queues, place=places)
    def commit(self, queue_id: int, place: int) -> None:
        offset = self.ends[queue_id] * place // 100
        ext = {"consumerGroup": "g", "topic": "t", "queueId": queue_id, "commitOffset": offset}
        opaque = self.broker.send_request(codes.UPDATE_CONSUMER_OFFSET, ext)
        self.broker.turns.run(10)
        assert self.broker.peer.answers[opaque].code == 0
        if self.pending[queue_id] is None:
            self.committed[queue_id] = offset

    @rule(queue_id=queues, place=places, group=st.sampled_from("gp"))
    def reset(self, queue_id: int, place: int, group: str) -> None:
        offset = self.ends[queue_id] * place // 100
        ext = {"group": group, "topic": "t", "timestamp": 0, "isForce": True, "queueId": queue_id, "offset": offset}
        assert self.broker.answer(codes.INVOKE_BROKER_TO_RESET_OFFSET, ext).code == 0
        if group == "g":
            self.committed[queue_id] = self.pending[queue_id] = offset
        else:
            self.popped[queue_id] = offset

    @rule(queue_id=queues, place=places)
    def pull(self, queue_id: int, place: int) -> None:
        offset = self.ends[queue_id] * place // 100
        ext = {"consumerGroup": "g", "topic": "t", "queueId": queue_id, "queueOffset": offset, "maxMsgNums": 2}
        answer = self.broker.answer(codes.PULL_MESSAGE, {**ext, "sysFlag": 4, "subscription": "*"})
        target = self.pending[queue_id]
        if target is not None:
            assert (answer.code, answer.ext["nextBeginOffset"]) == (codes.PULL_OFFSET_MOVED, str(target))
            self.pending[queue_id] = None
        else:
            assert answer.code == (codes.SUCCESS if offset < self.ends[queue_id] else codes.PULL_NOT_FOUND)

    @rule(queue_id=queues)
    def pop(self, queue_id: int) -> None:
        receive = self.broker.receive(1, group="p", queue_id=queue_id, init_mode=0)
        if self.popped[queue_id] == self.ends[queue_id]:
            assert receive.outcome.messages == ()
            return
        assert receive.bodies == [str(self.popped[queue_id])]
        self.broker.ack(*receive.messages, group="p")
        self.popped[queue_id] += 1

    @rule(dispatched=places)
    def another_master(self, dispatched: int) -> None:
        log = self.broker.log
        other = RemotingBroker(log=log.copy(dispatched=log.end_offset * dispatched // 100), turns=self.broker.turns)
        other.become_master()
        other.log.dispatch()
        self.broker = other

    @invariant()
    def offsets_are_as_committed(self) -> None:
        for queue_id in range(QUEUES if hasattr(self, "broker") else 0):
            found = self.broker.progress.consumer_offset("g", "t", queue_id)
            assert found == self.committed[queue_id]
            assert self.broker.metadata.pending_reset("g", "t", queue_id) == self.pending[queue_id]


TestResets = Resets.TestCase
TestResets.settings = settings(max_examples=examples(30), stateful_step_count=30, deadline=None)
