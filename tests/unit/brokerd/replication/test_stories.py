"""Random schedules over whole broker groups: writes, elections, crashes with power loss, cut connections, late and lost answers.

After every event no electable replica may lack an acknowledged message and no two logs may differ where their epochs say that
they agree; at the end the group must heal and its logs be identical. The same stories with rules that are known to be wrong
must fail, and each kind of event must have happened.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from brokerd.replication.epochs.epoch_list import EpochList
from brokerd.replication.roles.effects import PersistEpochs, Role, RoleView, TruncateLog
from brokerd.replication.roles.followership import CopyStage, Followership
from brokerd.replication.roles.mastership import Mastership, Transfer
from brokerd.replication.roles.role_machine import Event, RoleMachine
from brokerd.replication.settings import ReplicationSettings
from brokerd.replication.wire.frames import Handshake, Piece
from remoting.errors import ProtocolError
from tests.unit.brokerd.replication.group import Controller
from tests.unit.brokerd.replication.schedules import WEIGHTS, Story

SCHEDULES = int(os.environ.get("STORY_SCHEDULES", "125"))
SWITCHES = {"elect": 6, "push": 14, "arm": 3, "lose_master": 0.5}
CONTROL = {"abandon": 6, "lose_answer": 3, "cut": 5, "process": 5, "elect": 1, "start": 6, "deliver": 40, "tick": 14}


def tell(
    seeds: range,
    weights: dict[str, float] | None = None,
    *,
    size: int = 3,
    ack_after: str = "flush",
    learners: frozenset[int] = frozenset(),
    steps: int = 90,
) -> Counter[str]:
    did: Counter[str] = Counter()
    for seed in seeds:
        story = Story(
            seed, size=size, settings=ReplicationSettings(ack_after=ack_after), learners=learners, steps=steps
        )
        try:
            story.run(weights)
            story.finish()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        did += story.did
        did["acknowledged"] += len(story.group.acknowledged)
    return did


@pytest.mark.parametrize(
    ("weights", "size", "ack_after"),
    [
        pytest.param({}, 3, "flush", id="mixed"),
        pytest.param(SWITCHES, 3, "flush", id="switches"),
        pytest.param(CONTROL, 3, "flush", id="control"),
        pytest.param({}, 2, "flush", id="two"),
        pytest.param({}, 5, "flush", id="five"),
        pytest.param({"arm": 0}, 3, "append", id="append"),
    ],
)
def test_nothing_acknowledged_is_lost_and_the_group_heals(weights: dict[str, float], size: int, ack_after: str) -> None:
    did = tell(range(SCHEDULES), weights, size=size, ack_after=ack_after)
    assert did["acknowledged"] > SCHEDULES
    wanted = {**WEIGHTS, **weights}
    for event, weight in wanted.items():
        assert not weight or did[event] > SCHEDULES / 30, f"hardly any {event}: {did}"


ROT = {
    "rot": 1.5,
    "suspect": 1,
    "start": 8,
    "deliver": 60,
    "process": 20,
    "answer": 20,
    "append": 20,
    "crash": 0.3,
    "arm": 0,
}


@pytest.mark.parametrize("size", [3, 5])
def test_logs_that_lost_their_ends_lead_nobody_who_has_more(size: int) -> None:
    did = tell(range(SCHEDULES // 2), ROT, size=size, steps=250)
    assert did["acknowledged"] > SCHEDULES
    assert did["rot"] > SCHEDULES / 3
    assert did["suspect"] > SCHEDULES / 3


def test_stories_find_suspects_that_leave_the_set_until_the_last_may_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(self: Controller, broker_id: int) -> None:
        if broker_id in self.members and len(self.members) > 1:
            if self.master_id == broker_id:
                self.lose_master()
            self.members -= {broker_id}
            self.set_epoch += 1
        self.suspects.discard(broker_id)

    monkeypatch.setattr(Controller, "judge", judge)
    assert fails(range(SCHEDULES), ROT, steps=250)


def test_stories_find_an_election_of_a_suspect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Controller, "trusted", property(lambda self: self.members))
    monkeypatch.setattr(Controller, "judge", lambda self, broker_id: self.suspects.discard(broker_id))
    assert fails(range(SCHEDULES), ROT, steps=250)


def test_learners_copy_everything_and_are_in_no_set_whatever_happens() -> None:
    did = tell(range(SCHEDULES // 2), size=4, learners=frozenset({2, 4}))
    assert did["acknowledged"] > SCHEDULES // 4
    assert did["elect"] > SCHEDULES // 4


def test_stories_find_a_master_that_counts_learners(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Mastership.handshake

    def handshake(self: Mastership, connection: int, frame: Handshake, now_ms: int) -> None:
        original(self, connection, frame._replace(learner=False), now_ms)

    monkeypatch.setattr(Mastership, "handshake", handshake)
    assert fails(range(20), learners=frozenset({3}))


def fails(
    seeds: range,
    weights: dict[str, float] | None = None,
    *,
    learners: frozenset[int] = frozenset(),
    steps: int = 90,
) -> bool:
    """Whether any of the stories does; those behind the first one that does are not told."""
    try:
        tell(seeds, weights, learners=learners, steps=steps)
    except (AssertionError, ProtocolError):
        return True
    return False


def test_stories_find_an_epoch_that_is_refused_where_another_one_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    original = EpochList.begin

    def begin(self: EpochList, epoch: int, start_offset: int) -> None:
        last = self.last
        if last is None or (last.epoch < epoch and last.start_offset < start_offset):
            original(self, epoch, start_offset)

    monkeypatch.setattr(EpochList, "begin", begin)
    assert fails(range(SCHEDULES), SWITCHES)


def test_stories_find_a_batch_that_is_labelled_with_the_next_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Mastership.next_transfer

    def next_transfer(self: Mastership, connection: int) -> Transfer | None:
        transfer = original(self, connection)
        if transfer is None:
            return None
        found = self._epochs.find(transfer.header.offset + transfer.length)
        assert found is not None
        (epoch, start), _ = found
        header = transfer.header._replace(epoch=epoch, epoch_start=min(start, transfer.header.offset))
        return Transfer(header, transfer.length)

    monkeypatch.setattr(Mastership, "next_transfer", next_transfer)
    assert fails(range(SCHEDULES // 4))


def test_stories_find_a_restarted_master_that_goes_on_with_its_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    observe, begin = RoleMachine.observe, EpochList.begin

    def observe_again(self: RoleMachine, view: RoleView, now_ms: int) -> None:
        if self.role is Role.FENCED and view.master_id == self.broker_id and view.master_epoch == self.highest_epoch:
            self.view = view
            self._switch(Event.ELECTED, now_ms)
        else:
            observe(self, view, now_ms)

    def move(self: EpochList, epoch: int, start_offset: int) -> None:
        while self._entries and self._entries[-1].epoch >= epoch:
            self._entries.pop()
        begin(self, epoch, start_offset)

    monkeypatch.setattr(RoleMachine, "observe", observe_again)
    monkeypatch.setattr(EpochList, "begin", move)
    assert fails(range(SCHEDULES))


def test_stories_find_replicas_that_ack_what_they_have_not_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Followership.received

    def received(self: Followership, connection: int, pieces: list[Piece], now_ms: int) -> None:
        original(self, connection, pieces, now_ms)
        if self.stage is CopyStage.TRANSFER:
            self._send_ack(self._log.end_offset, now_ms)

    monkeypatch.setattr(Followership, "received", received)
    assert fails(range(SCHEDULES // 4))


def test_stories_find_acks_that_are_counted_across_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deposed master that still counts its old required set as itself alone."""
    monkeypatch.setattr(Mastership, "_position", lambda self, broker_id: self._log.end_offset)
    assert fails(range(SCHEDULES // 4))


def test_stories_find_a_replica_that_shows_what_its_master_has_not_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    def advance(self: Followership) -> None:
        self.confirm_offset = max(self.confirm_offset, self._log.flushed_offset)

    monkeypatch.setattr(Followership, "_advance_confirm", advance)
    assert fails(range(SCHEDULES // 4))


def test_stories_find_a_master_that_shows_what_it_has_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Mastership.advance

    def advance(self: Mastership) -> None:
        original(self)
        self.confirm_offset = max(self.confirm_offset, self.own_position)

    monkeypatch.setattr(Mastership, "advance", advance)
    assert fails(range(SCHEDULES // 4))


def test_the_log_is_cut_before_the_epochs() -> None:
    """The other way round, a crash in between would leave bytes of one epoch under the number of another."""
    from tests.unit.brokerd.replication.roles.test_followership import Replica

    replica = Replica("1@0 2@50", end=100)
    replica.greet("1@0 3@50", end=80, epoch=3)
    kinds = [type(effect) for effect in replica.effects if isinstance(effect, TruncateLog | PersistEpochs)]
    assert kinds == [TruncateLog, PersistEpochs]
