"""The sync-state set as a game between a master, its replicas and a controller that answers late, never, or after a give-up.

The question after every move: does each replica that the controller could elect have every acknowledged byte? Our rules must
never lose; three rule sets that are known to lose must be caught by the same game, or it would prove nothing.
"""

from __future__ import annotations

import os
from collections import Counter
from random import Random

import pytest

from brokerd.replication.epochs.epoch_list import EpochEntry, EpochList
from brokerd.replication.log import LogPosition
from brokerd.replication.required_set.replica_progress import ConnectionStage
from brokerd.replication.required_set.sync_state import REFUSALS, Proposal, SyncState
from brokerd.replication.roles.effects import Effect, ProposeSyncStateSet, SendRelease
from brokerd.replication.roles.mastership import Mastership
from brokerd.replication.roles.role_context import RoleContext
from brokerd.replication.settings import ReplicationSettings
from brokerd.replication.wire.frames import Handshake
from remoting import codes

SCHEDULES = int(os.environ.get("MODEL_SCHEDULES", "500"))
MOVES = {
    "append": 10, "catch_up": 16, "disconnect": 3, "connect": 8, "tick": 8, "process": 8, "answer": 8, "lose": 2,
    "give_up": 3, "read": 4, "wipe": 2,
}  # fmt: skip


class Loss(AssertionError):
    """An electable replica lacks acknowledged bytes."""


class Game:
    """One master epoch. Replicas are numbers: how many bytes each has.

    With `staying` the other replicas are in the set from its begin: they have what was acknowledged before, and have yet to hear
    of this master.
    """

    def __init__(self, seed: int, replicas: int, *, staying: bool = False) -> None:
        self.rng = Random(seed)
        self.now_ms = 0
        self.log = LogPosition(0, 100, 100)
        self.outbox: list[Effect] = []
        self.held = dict.fromkeys(range(2, replicas + 1), 100 if staying else 0)
        self.connections: dict[int, int] = {}
        self.next_connection = 1
        self.members = frozenset({1, *self.held}) if staying else frozenset({1})
        self.set_epoch = 7
        self.requests: list[Proposal] = []
        self.abandoned: list[Proposal] = []
        self.answers: list[tuple[int, int, frozenset[int], int]] = []
        self.acknowledged = 0 if staying else 100
        self.did: Counter[str] = Counter()
        sync = SyncState(1, self.members, self.set_epoch, retry_ms=20, rejoin_delay_ms=50)
        settings = ReplicationSettings(not_caught_up_ms=300, reconnect_grace_ms=30)
        registered = set(range(1, replicas + 1))
        epochs = EpochList([EpochEntry(1, 0), EpochEntry(3, 100)])
        context = RoleContext(settings, 1, epochs, self.log, self.outbox)
        self.mastership = Mastership(context, EpochEntry(3, 100), sync, registered, 0, 0)

    def play(self, moves: int) -> None:
        for name in self.rng.choices(list(MOVES), list(MOVES.values()), k=moves):
            if getattr(self, name)():
                self.did[name] += 1
            self.settle()

    def settle(self) -> None:
        effects = iter(self.outbox)
        for effect in effects:  # also those that come meanwhile
            if isinstance(effect, ProposeSyncStateSet):
                self.requests.append(effect.proposal)
            elif isinstance(effect, SendRelease):
                self._drop_log(effect.connection)
        self.outbox.clear()
        for broker_id, connection in list(self.connections.items()):
            if connection not in {peer.connection for peer in self.mastership.followers}:
                del self.connections[broker_id]
        assert self.mastership.acknowledged_offset >= self.acknowledged
        self.acknowledged = self.mastership.acknowledged_offset
        for broker_id in self.members - {1}:
            if self.held[broker_id] < self.acknowledged:
                raise Loss(f"b{broker_id} has {self.held[broker_id]} of {self.acknowledged} acknowledged bytes")

    def append(self) -> bool:
        self.log.end_offset += 10
        self.log.flushed_offset = self.log.end_offset
        self.mastership.advance()
        return True

    def catch_up(self) -> bool:
        """A connected replica gets all, or some, of what it lacks, and acks."""
        greeted = [each.broker_id for each in self.mastership.followers if each.stage is ConnectionStage.STREAMING]
        if not greeted:
            return False
        broker_id = self.rng.choice(greeted)
        connection = self.connections[broker_id]
        while (transfer := self.mastership.next_transfer(connection)) is not None:
            self.mastership.transferred(connection, transfer.length, self.now_ms)
        missing = self.log.end_offset - self.held[broker_id]
        self.held[broker_id] += missing if self.rng.random() < 0.7 else self.rng.randint(0, missing)
        self.mastership.acked(connection, self.held[broker_id], self.now_ms)
        return True

    def connect(self) -> bool:
        absent = [each for each in self.held if each not in self.connections]
        if not absent:
            return False
        broker_id, connection = self.rng.choice(absent), self.next_connection
        self.next_connection += 1
        self.connections[broker_id] = connection
        self.mastership.accepted(connection, self.now_ms)
        self.mastership.handshake(connection, Handshake(broker_id), self.now_ms)
        self.mastership.acked(connection, self.held[broker_id], self.now_ms)
        return True

    def wipe(self) -> bool:
        """A replica whose log is damaged asks to be let go of; it waits for that with its log as it is."""
        broker_id, connection = self.rng.choice(list(self.held)), self.next_connection
        self.next_connection += 1
        self.connections[broker_id] = connection
        self.mastership.accepted(connection, self.now_ms)
        self.mastership.handshake(connection, Handshake(broker_id, starts_anew=True), self.now_ms)
        return True

    def _drop_log(self, connection: int) -> None:
        """It was let go of: from now on it has nothing, which is what it acks first."""
        for broker_id, each in self.connections.items():
            if each == connection:
                self.held[broker_id] = 0
                self.mastership.acked(connection, 0, self.now_ms)

    def disconnect(self) -> bool:
        if not self.connections:
            return False
        broker_id = self.rng.choice(list(self.connections))
        self.mastership.lost(self.connections.pop(broker_id), self.now_ms)
        return True

    def tick(self) -> bool:
        self.now_ms += self.rng.choice((10, 40, 150))
        self.mastership.tick(self.now_ms)
        return True

    def process(self) -> bool:
        """The controller handles some request, also one whose sender gave up."""
        waiting = self.requests + self.abandoned
        if not waiting:
            return False
        proposal = self.rng.choice(waiting)
        known = proposal in self.requests
        (self.requests if known else self.abandoned).remove(proposal)
        if proposal.members == self.members:
            code = codes.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
        elif proposal.base_epoch != self.set_epoch:
            code = codes.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH
        elif self.rng.random() < 0.05:
            code = codes.CONTROLLER_BROKER_NOT_ALIVE
        else:
            code = codes.SUCCESS
            self.members, self.set_epoch = proposal.members, self.set_epoch + 1
        if known:
            self.answers.append((proposal.token, code, self.members, self.set_epoch))
        return True

    def answer(self) -> bool:
        if not self.answers:
            return False
        token, code, members, set_epoch = self.answers.pop(self.rng.randrange(len(self.answers)))
        if code == codes.SUCCESS:
            self.mastership.sync.accepted(token, members, set_epoch)
        elif code in REFUSALS:
            self.mastership.sync.refused(token, code, self.now_ms)
        self._go_on()
        return True

    def lose(self) -> bool:
        """An answer never arrives."""
        if not self.answers:
            return False
        token, *_ = self.answers.pop(self.rng.randrange(len(self.answers)))
        self.mastership.sync.unknown(token, self.now_ms)
        self._go_on()
        return True

    def give_up(self) -> bool:
        """The master stops waiting for an answer to a request that is still under way."""
        if not self.requests:
            return False
        proposal = self.requests.pop(self.rng.randrange(len(self.requests)))
        self.abandoned.append(proposal)
        self.mastership.sync.unknown(proposal.token, self.now_ms)
        self._go_on()
        return True

    def read(self) -> bool:
        self.mastership.sync.observed(self.members, self.set_epoch)
        self._go_on()
        return True

    def _go_on(self) -> None:
        self.mastership.propose(self.now_ms)
        self.mastership.advance()


def losses(replicas: int, schedules: int = SCHEDULES, *, staying: bool = False) -> tuple[int, Counter[str]]:
    lost, did = 0, Counter()
    for seed in range(schedules):
        try:
            game = Game(seed, replicas, staying=staying)
            game.play(80)
        except Loss:
            lost += 1
        did += game.did
    return lost, did


@pytest.mark.parametrize("staying", [False, True])
@pytest.mark.parametrize("replicas", [2, 3, 4])
def test_no_electable_replica_lacks_acknowledged_bytes(replicas: int, staying: bool) -> None:
    lost, did = losses(replicas, staying=staying)
    assert lost == 0
    for move in MOVES:
        assert did[move] > SCHEDULES / 10, f"the game hardly played {move}: {did}"


@pytest.mark.parametrize("replicas", [2, 3])
def test_the_game_catches_a_master_that_forgets_unanswered_proposals(
    replicas: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(self: SyncState, token: int, now_ms: int) -> None:
        self._answered(token)

    monkeypatch.setattr(SyncState, "unknown", unknown)
    assert losses(replicas)[0] > 0


@pytest.mark.parametrize("replicas", [2, 3])
def test_the_game_catches_a_master_that_begins_without_those_who_stay(
    replicas: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    initial = SyncState.__init__

    def begin(self: SyncState, self_id: int, members: frozenset[int], set_epoch: int, **rest: int) -> None:
        initial(self, self_id, {self_id}, set_epoch, **rest)

    monkeypatch.setattr(SyncState, "__init__", begin)
    assert losses(replicas, staying=True)[0] > SCHEDULES / 20


def overwrite_proposals(monkeypatch: pytest.MonkeyPatch) -> None:
    """One slot for what was proposed last; whoever was in it before is required no more."""
    original = SyncState.propose

    def propose(self: SyncState, lagging: frozenset[int], now_ms: int) -> Proposal | None:
        before, self.in_flight = self.in_flight, None
        proposal = original(self, lagging, now_ms)
        if proposal is None:
            self.in_flight = before
        else:
            self.joining.clear()
            self._recompute()
        return proposal

    monkeypatch.setattr(SyncState, "propose", propose)


def test_the_game_catches_proposals_that_overwrite_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    overwrite_proposals(monkeypatch)
    assert losses(3)[0] > 0


@pytest.mark.parametrize(("replicas", "share"), [(2, 0.02), (3, 0.05), (4, 0.05)])
def test_the_game_catches_all_three_rules_of_the_usual_design_together(
    replicas: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slot that is overwritten, proposals without an answer forgotten, and "caught up" judged before the ack is counted."""
    overwrite_proposals(monkeypatch)

    def unknown(self: SyncState, token: int, now_ms: int) -> None:
        self._answered(token)

    monkeypatch.setattr(SyncState, "unknown", unknown)
    monkeypatch.setattr(Mastership, "_join_floor", lambda self: self._epoch_start)
    assert losses(replicas)[0] > SCHEDULES * share


def test_the_game_catches_a_read_that_is_taken_for_the_end_of_a_proposal(monkeypatch: pytest.MonkeyPatch) -> None:
    original = SyncState.observed

    def observed(self: SyncState, members: frozenset[int], set_epoch: int) -> None:
        original(self, members, set_epoch)
        self._unknown.clear()
        self._recompute()

    monkeypatch.setattr(SyncState, "observed", observed)
    assert losses(3)[0] > 0


def test_the_game_catches_a_replica_that_is_required_only_when_the_controller_agreed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def recompute(self: SyncState) -> None:
        self.required = self.local | {self.self_id}

    monkeypatch.setattr(SyncState, "_recompute", recompute)
    assert losses(3)[0] > SCHEDULES / 20


def test_the_game_catches_a_member_that_leaves_before_the_controller_agreed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = SyncState.propose

    def propose(self: SyncState, lagging: frozenset[int], now_ms: int) -> Proposal | None:
        proposal = original(self, lagging, now_ms)
        if proposal is not None:
            self.local = proposal.members
            self._recompute()
        return proposal

    monkeypatch.setattr(SyncState, "propose", propose)
    assert losses(3)[0] > SCHEDULES / 20


def test_the_game_catches_an_expansion_that_only_looks_at_the_epoch_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mastership, "_join_floor", lambda self: self._epoch_start)
    assert losses(3)[0] > 0


def test_the_game_catches_a_master_that_ignores_members_without_an_ack(monkeypatch: pytest.MonkeyPatch) -> None:
    def position(self: Mastership, broker_id: int) -> int:
        peer = self._by_id.get(broker_id)
        return peer.ack_offset if peer is not None and peer.ack_offset > 0 else self._log.end_offset

    monkeypatch.setattr(Mastership, "_position", position)
    assert losses(3)[0] > SCHEDULES / 20


def test_the_game_catches_a_master_that_lets_go_of_whom_it_still_requires(monkeypatch: pytest.MonkeyPatch) -> None:
    def release_all(self: Mastership, now_ms: int) -> None:
        for follower in self.followers:
            if follower.stage is ConnectionStage.LEAVING:
                self._outbox.append(SendRelease(follower.connection))
                self._greet(follower, now_ms)

    monkeypatch.setattr(Mastership, "_release_leaving", release_all)
    assert losses(3)[0] > SCHEDULES / 20


def test_the_game_catches_a_master_that_looks_at_the_set_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has proposed, or is about to propose, counts too."""

    def release_those_outside(self: Mastership, now_ms: int) -> None:
        for follower in self.followers:
            if follower.stage is ConnectionStage.LEAVING and follower.broker_id not in self.sync.local:
                self._outbox.append(SendRelease(follower.connection))
                self._greet(follower, now_ms)

    monkeypatch.setattr(Mastership, "_release_leaving", release_those_outside)
    assert losses(3)[0] > 0
