"""Broken rules of one broker group: who must have a message, what a replica acknowledges, what is cut, which epoch is believed.

The first ones are those of the original, one at a time, in the order of the windows of docs/RELIABILITY.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from brokerd.replication.epochs.epoch_file import EpochFile
from brokerd.replication.epochs.epoch_list import EpochEntry, EpochList
from brokerd.replication.required_set.quorum import Quorum, decide
from brokerd.replication.required_set.sync_state import Proposal, SyncState
from brokerd.replication.roles import mastership as mastership_rules
from brokerd.replication.roles import role_machine
from brokerd.replication.roles.effects import Role, RoleView
from brokerd.replication.roles.followership import CopyStage, Followership
from brokerd.replication.roles.mastership import Mastership, Transfer
from brokerd.replication.roles.role_machine import RoleMachine
from brokerd.replication.settings import ReplicationSettings
from brokerd.replication.wire.frames import Handshake, Piece
from controllerd.replicas import apply as replicas_changes
from controllerd.replicas import heartbeat as heartbeats
from controllerd.replicas.state import Group, ReplicasState
from tests.sim.mutants import Mutant, light, scenario
from tests.unit.brokerd.replication import test_stories, test_windows
from tests.unit.brokerd.replication.group import Controller
from tests.unit.brokerd.replication.required_set.test_sync_state_model import Game
from tests.unit.controllerd.replicas import test_heartbeat
from tests.unit.controllerd.replicas.test_invariants import Histories


class OneSlot(SyncState):
    """W4: one slot for the proposed set; the next replica that catches up overwrites it, while the first is on its way."""

    def join(self, broker_id: int) -> None:
        self.joining = set()
        self.in_flight = None
        super().join(broker_id)


class ForgetsUnanswered(SyncState):
    """W5: a proposal without an answer is taken for one that was not applied."""

    def unknown(self, token: int, now_ms: int) -> None:
        proposal = self._answered(token)
        if proposal is not None:
            self.joining -= proposal.members
            self._recompute()


class ChecksThenActs(SyncState):
    """W6: that a replica has everything is looked at first, and it is required from a later moment on."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._checked: set[int] = set()
        self._is_fresh = False
        super().__init__(*arguments, **named)

    def may_join(self, broker_id: int, now_ms: int) -> bool:
        return broker_id not in self._checked and super().may_join(broker_id, now_ms)

    def join(self, broker_id: int) -> None:
        self._checked.add(broker_id)
        self._is_fresh = True

    def propose(self, lagging: frozenset[int], now_ms: int) -> Proposal | None:
        if self._is_fresh:
            self._is_fresh = False
            return None
        self.joining |= self._checked
        self._checked.clear()
        self._recompute()
        return super().propose(lagging, now_ms)


class LetsGoTooSoon(SyncState):
    """A member that lags is required no more as soon as its removal is proposed."""

    def propose(self, lagging: frozenset[int], now_ms: int) -> Proposal | None:
        proposal = super().propose(lagging, now_ms)
        if proposal is not None:
            self.local = proposal.members
            self._recompute()
        return proposal


_advance = Mastership.advance
_next_transfer = Mastership.next_transfer
_begin = EpochList.begin
_observe = RoleMachine.observe
_position = Mastership._position
_elect = Controller.elect


def _advance_alone(self: Mastership) -> None:
    """W7: with a set of one, everything is confirmed that this broker has."""
    _advance(self)
    if len(self.sync.local) == 1:
        self.confirm_offset = max(self.confirm_offset, self.own_position)


def _position_or_ignore(self: Mastership, broker_id: int) -> int:
    """W8: a member that has not acked on this connection yet is left out."""
    position = _position(self, broker_id)
    return position if position >= 0 else self._log.end_offset


def _begin_unless_equal(self: EpochList, epoch: int, start_offset: int) -> None:
    """W9: an epoch that starts where the last one does is refused; its bytes carry the older number."""
    last = self.last
    if last is None or last.start_offset != start_offset:
        _begin(self, epoch, start_offset)


def _label_with_next(self: Mastership, connection: int) -> Transfer | None:
    """W10: the last batch of an epoch is labelled with the next epoch."""
    transfer = _next_transfer(self, connection)
    if transfer is None:
        return None
    following = self._epochs.find(transfer.header.offset + transfer.length)
    if following is None or following[0].epoch == transfer.header.epoch:
        return transfer
    entry = following[0]
    header = transfer.header._replace(epoch=entry.epoch, epoch_start=entry.start_offset)
    return Transfer(header, transfer.length)


def _observe_in_place(self: RoleMachine, view: RoleView, now_ms: int) -> None:
    """W11: a master that starts again takes up its epoch, at the log's new end."""
    if view.master_id == self.broker_id and view.master_epoch == self.highest_epoch and self.role is Role.FENCED:
        self.view = view
        self._switch(role_machine.Event.ELECTED, now_ms)
    else:
        _observe(self, view, now_ms)


def _begin_again(self: EpochList, epoch: int, start_offset: int) -> None:
    entries: list[EpochEntry] = [entry for entry in self.entries if entry.epoch != epoch]
    self.replace(entries)
    _begin(self, epoch, start_offset)


def _accept_all(self: Followership, header: Any) -> str:
    return ""


def _everybody_alive(self: Controller) -> list[int]:
    """An unclean election: any live replica."""
    return sorted(each for each in self.registered if self.group[each].alive)


def _elect_anybody(self: Controller, winner: int) -> None:
    self.members = frozenset()
    _elect(self, winner)


# ---- others

_settled = Followership._settled
_cut = Followership._cut
_received = Followership.received
_handshake = Mastership.handshake
_close_connections = RoleMachine._close_connections
_observed = SyncState.observed


def _nobody_else(self: Mastership, broker_id: int) -> int:
    """Every member is taken to have what the master has."""
    return self._log.end_offset


def _keep_those_of_the_same_master(self: RoleMachine, reason: str) -> None:
    """W12: a master that is elected again keeps the connections of its old epoch."""
    is_again = self.mastership is not None and self.view is not None and self.view.master_id == self.broker_id
    before = len(self._outbox)
    _close_connections(self, reason)
    if is_again:
        del self._outbox[before:]


def _cut_epochs_first(self: Followership, common: int) -> None:
    """W13: the epoch list is cut before the log, so that a crash in between leaves bytes under the number of another epoch."""
    begin = len(self._outbox)
    _cut(self, common)
    self._outbox[begin:] = reversed(self._outbox[begin:])


def _ack_what_is_not_flushed(self: Followership, connection: int, pieces: list[Piece], now_ms: int) -> None:
    """A replica acknowledges what it has in memory."""
    _received(self, connection, pieces, now_ms)
    if self.stage is CopyStage.TRANSFER:
        self._send_ack(self._log.end_offset, now_ms)


def _settled_unflushed(self: Followership, now_ms: int) -> None:
    """The first ack on a connection does not wait for the flush of what the replica has."""
    flushed_offset = self._log.flushed_offset
    self._log.flushed_offset = self._log.end_offset
    _settled(self, now_ms)
    self._log.flushed_offset = flushed_offset


def _observe_older(self: RoleMachine, view: RoleView, now_ms: int) -> None:
    """W17: whoever tells an older epoch is believed."""
    self.highest_epoch = min(self.highest_epoch, view.master_epoch)
    self.master_epoch = min(self.master_epoch, view.master_epoch)
    _observe(self, view, now_ms)


def _keep_in_memory(self: EpochFile, epoch: int) -> None:
    """The highest master epoch that a broker accepted is not on its disk."""
    self._master_epoch = epoch


def _decide_without_minimum(settings: ReplicationSettings, members: int, near: int) -> Quorum:
    """W21: messages are taken however few copies they will have."""
    return decide(settings, members, near)._replace(refused=False)


def _keep_settings(self: Mastership, settings: ReplicationSettings) -> None:
    """A master goes on by the settings that it began with."""


def _tell_the_role_alone(self: RoleMachine, settings: ReplicationSettings) -> None:
    """Settings that change are those of the present role, and the next one has the former ones."""
    role = self.mastership or self.followership
    if role is not None:
        role.reconfigure(settings)


def _refused_for_nothing(self: SyncState, token: int, code: int, now_ms: int) -> None:
    """W23: a replica for whose sake a change was rejected stays required."""
    proposal = self._answered(token)
    if proposal is not None:
        self._not_before_ms = now_ms + self._retry_ms
        self.needs_read = True


def _stay(self: SyncState, broker_ids: Iterable[int]) -> None:
    return None


def _told_last(
    beat: heartbeats.Heartbeat, known: heartbeats.Heartbeat, *, elsewhere: bool = False
) -> heartbeats.Heartbeat:
    """W24: an offset that a broker once told stays, whatever it cut since."""
    return heartbeats._monotone(beat, known)


def _forget_the_floor(state: ReplicasState, group: Group) -> ReplicasState:
    """W25: with a group, its epochs and ids are forgotten."""
    groups = {name: each for name, each in state.groups.items() if name != group.broker_name}
    return ReplicasState(groups, state.retired)


def _count_learners(self: Mastership, connection: int, frame: Handshake, now_ms: int) -> None:
    """A learner is taken for a replica like any other."""
    _handshake(self, connection, frame._replace(learner=False), now_ms)


def _show_what_is_flushed(self: Followership) -> None:
    """A replica shows what it has, not what its master has confirmed."""
    self.confirm_offset = max(self.confirm_offset, self._log.flushed_offset)


def _end_attempts_by_reading(self: SyncState, members: frozenset[int], set_epoch: int) -> None:
    """W5: a read of the set is taken for the end of what was proposed before it."""
    _observed(self, members, set_epoch)
    self._unknown.clear()
    self._recompute()


def _floor_of_the_epoch(self: Mastership) -> int:
    """W6: a replica joins with what was there when the epoch began."""
    return self._epoch_start


def _says(rule: Any) -> str:
    return " ".join((rule.__doc__ or "").split())


def _game(seed: int) -> None:
    """The sync-state set alone, as a game of a master, its replicas and the controllers."""
    Game(seed, replicas=3).play(80)


def _history(_seed: int) -> None:
    """Requests to the controllers in any order; the first of some histories that breaks a promise is enough."""
    Histories.happened = Counter()
    run_state_machine_as_test(
        Histories,
        settings=settings(
            max_examples=75,
            stateful_step_count=50,
            deadline=None,
            derandomize=True,
            phases=[Phase.generate],
            report_multiple_bugs=False,
            suppress_health_check=[HealthCheck.too_slow],  # the processor may be somebody else's
        ),
    )


_SWITCHES = {"elect": 6.0, "push": 14.0, "arm": 3.0, "lose_master": 0.5}

MUTANTS = (
    Mutant("nobody but itself", "W1", _says(_nobody_else), ((Mastership, "_position", _nobody_else),), light()),
    Mutant(
        "two of three",
        "W2",
        "Two copies are enough for an acknowledgement, and any member may be elected.",
        (),
        light(settings=ReplicationSettings(all_ack_in_sync_state_set=False, in_sync_replicas=2)),
    ),
    Mutant("removal too soon", "W3", _says(LetsGoTooSoon), ((role_machine, "SyncState", LetsGoTooSoon),), light()),
    Mutant("one slot", "W4", _says(OneSlot), ((role_machine, "SyncState", OneSlot),), light(), within=1000),
    Mutant(
        "forgets unanswered", "W5", _says(ForgetsUnanswered), ((role_machine, "SyncState", ForgetsUnanswered),), light()
    ),
    Mutant(
        "a read ends attempts",
        "W5",
        _says(_end_attempts_by_reading),
        ((SyncState, "observed", _end_attempts_by_reading),),
        _game,
        within=500,
    ),
    Mutant("checks, then acts", "W6", _says(ChecksThenActs), ((role_machine, "SyncState", ChecksThenActs),), light()),
    Mutant(
        "joins with an old end",
        "W6",
        _says(_floor_of_the_epoch),
        ((Mastership, "_join_floor", _floor_of_the_epoch),),
        light(),
    ),
    Mutant("shows what it has alone", "W7", _says(_advance_alone), ((Mastership, "advance", _advance_alone),), light()),
    Mutant(
        "a replica shows all",
        "W7",
        _says(_show_what_is_flushed),
        ((Followership, "_advance_confirm", _show_what_is_flushed),),
        light(),
    ),
    Mutant(
        "silent members left out",
        "W8",
        _says(_position_or_ignore),
        ((Mastership, "_position", _position_or_ignore),),
        light(),
    ),
    Mutant(
        "epoch refused",
        "W9",
        _says(_begin_unless_equal),
        ((EpochList, "begin", _begin_unless_equal),),
        light(heals=True),
    ),
    Mutant(
        "next label",
        "W10",
        _says(_label_with_next),
        ((Mastership, "next_transfer", _label_with_next), (Followership, "_epoch_problem", _accept_all)),
        # Nothing is healed, so that the divergence itself is found, and not only an epoch list that begins too late.
        light(
            heals=False,
            steps=150,
            weights={"elect": 5, "crash": 3, "start": 8, "deliver_part": 14, "cut": 3, "append": 20},
        ),
        within=6000,
        first=650,
    ),
    Mutant(
        "epoch taken up again",
        "W11",
        _says(_observe_in_place),
        ((RoleMachine, "observe", _observe_in_place), (EpochList, "begin", _begin_again)),
        light(heals=True),
    ),
    Mutant(
        "old connections",
        "W12",
        _says(_keep_those_of_the_same_master),
        ((RoleMachine, "_close_connections", _keep_those_of_the_same_master),),
        scenario(test_windows.test_w12_a_new_epoch_of_the_same_master_begins_on_new_connections),
        within=1,
    ),
    Mutant(
        "epochs cut first",
        "W13",
        _says(_cut_epochs_first),
        ((Followership, "_cut", _cut_epochs_first),),
        scenario(test_stories.test_the_log_is_cut_before_the_epochs),
        within=1,
    ),
    Mutant(
        "acknowledged in memory",
        "W14",
        "The master counts its own bytes before they are on its disk.",
        ((Mastership, "own_position", property(lambda self: self._log.end_offset)),),
        light(),
    ),
    Mutant(
        "ack from memory",
        "W14",
        _says(_ack_what_is_not_flushed),
        ((Followership, "received", _ack_what_is_not_flushed),),
        light(),
    ),
    Mutant(
        "first ack before flush",
        "W14",
        _says(_settled_unflushed),
        ((Followership, "_settled", _settled_unflushed),),
        light(weights={"cut": 5, "dial": 16}),
        within=1000,
    ),
    Mutant(
        "an older epoch is believed",
        "W17",
        _says(_observe_older),
        ((RoleMachine, "observe", _observe_older),),
        light(weights={"push_old": 6, "elect": 5}),
    ),
    Mutant(
        "highest epoch not stored",
        "W17",
        _says(_keep_in_memory),
        ((EpochFile, "save_master_epoch", _keep_in_memory),),
        light(weights={"push_old": 8, **_SWITCHES}),
        within=2000,
    ),
    Mutant(
        "too few copies",
        "W21",
        _says(_decide_without_minimum),
        ((mastership_rules, "decide", _decide_without_minimum),),
        light(settings=ReplicationSettings(min_in_sync_replicas=2)),
    ),
    Mutant(
        "settings are not taken",
        "live settings",
        _says(_keep_settings),
        ((Mastership, "reconfigure", _keep_settings),),
        light(weights={"reconfigure": 3}),
        within=40,
    ),
    Mutant(
        "settings go with a role",
        "live settings",
        _says(_tell_the_role_alone),
        ((RoleMachine, "reconfigure", _tell_the_role_alone),),
        light(weights={"reconfigure": 3}),
        within=60,
    ),
    Mutant(
        "the rejected stay required",
        "W23",
        _says(_refused_for_nothing),
        ((SyncState, "refused", _refused_for_nothing), (SyncState, "leave_joining", _stay)),
        light(ends_without_one=True),
        first=37,
    ),
    Mutant(
        "offsets only grow",
        "W24",
        _says(_told_last),
        ((heartbeats, "_compared", _told_last),),
        scenario(test_heartbeat.test_offsets_may_go_back_within_an_incarnation_and_only_grow_without_one),
        within=1,
    ),
    Mutant(
        "cleaned groups begin anew",
        "W25",
        _says(_forget_the_floor),
        ((replicas_changes, "_retire", _forget_the_floor),),
        _history,
        within=1,
    ),
    Mutant(
        "unclean election",
        "unclean election",
        _says(_everybody_alive),
        ((Controller, "candidates", _everybody_alive), (Controller, "elect", _elect_anybody)),
        light(),
    ),
    Mutant(
        "learners count",
        "learners",
        _says(_count_learners),
        ((Mastership, "handshake", _count_learners),),
        light(learners=frozenset({3})),
    ),
)
