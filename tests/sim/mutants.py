"""Rules that lose messages, put in place of ours for the length of a test: a harness that does not find them proves nothing.

`python -m tests.sim --mutants` enters one after the other and says which seed finds it.

The first ones are those of the original, one at a time; the names W4 to W11 are the usual ones of its windows of loss (see
docs/RELIABILITY.md). Nothing here is reachable from the daemons: a mutant replaces a method of a class while it is entered.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from brokerd.composition.deleted_topics import DeletedTopics
from brokerd.delay.deliverer import Deliverer
from brokerd.delay.waiting import WaitingLevel
from brokerd.journal.journal import Journal
from brokerd.replication.epochs.epoch_list import EpochEntry, EpochList
from brokerd.replication.required_set.sync_state import Proposal, SyncState
from brokerd.replication.roles import role_machine
from brokerd.replication.roles.effects import Role, RoleView
from brokerd.replication.roles.followership import Followership
from brokerd.replication.roles.mastership import Mastership, Transfer
from brokerd.replication.roles.role_machine import RoleMachine
from brokerd.replication.settings import ReplicationSettings
from brokerd.store.log.commitlog import CommitLog, SyncMark
from brokerd.store.put_status import PutStatus
from brokerd.store.store import MessageStore
from brokerd.transactions.table import OpenTransactions
from controllerd.raft.log_file import RaftLogFile
from controllerd.replicas import decide as replicas_rules
from controllerd.replicas.state import ReplicasState
from controllerd.state.machine import ControllerMachine
from tests.sim.cluster import SimCluster, Story
from tests.sim.light import STEPS, LightStory
from tests.sim.world import Violation
from tests.support.disks import MemorySegment
from tests.unit.brokerd.replication.group import Controller


@dataclass(frozen=True)
class Mutant:
    """`patches` are (owner, attribute, replacement). A light one is looked for in light stories, `within` that many seeds."""

    name: str
    what: str
    patches: tuple[tuple[Any, str, Any], ...]
    light: bool = True
    within: int = 400
    mood: str = "mixed"
    first: int = 0
    heals: bool | None = None
    steps: int = STEPS
    weights: dict[str, float] = field(default_factory=dict)
    settings: ReplicationSettings = field(default_factory=ReplicationSettings)
    is_quick: bool = True

    def find(self) -> tuple[int, str] | None:
        """The first seed whose story breaks a promise, and which."""
        with self.entered():
            for seed in range(self.first, self.first + self.within):
                try:
                    self._tell(seed)
                except Violation as violation:
                    return seed, str(violation)
        return None

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for owner, attribute, replacement in self.patches:
                stack.enter_context(patch.object(owner, attribute, replacement))
            yield

    def _tell(self, seed: int) -> None:
        if self.light:
            LightStory(
                seed,
                heals=self.heals,
                only_outcomes=True,
                settings=self.settings,
                steps=self.steps,
                weights=self.weights,
            ).run()
        else:
            SimCluster(Story(seed, self.mood, fault_ms=3000), settings=self.settings).run()


# ---- the original's rules


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
    return sorted(each for each in self.registered if self.group.nodes[each].alive)


def _elect_anybody(self: Controller, winner: int) -> None:
    self.members = frozenset()
    _elect(self, winner)


def _by_the_wall_clock(self: WaitingLevel, offset: int, due_ms: int, steady_ms: int, wall_ms: int) -> int:
    return steady_ms + due_ms - wall_ms


_append_due = Deliverer._append


def _progress_first(self: Deliverer, due: Sequence[Any]) -> None:
    offsets = self._uncommitted()
    if offsets:
        self._metadata.commit_now(offsets)
    _append_due(self, due)


LIGHT = (
    Mutant(
        "W4",
        OneSlot.__doc__ or "",
        ((role_machine, "SyncState", OneSlot),),
        within=1000,
    ),
    Mutant("W5", ForgetsUnanswered.__doc__ or "", ((role_machine, "SyncState", ForgetsUnanswered),)),
    Mutant("W6", ChecksThenActs.__doc__ or "", ((role_machine, "SyncState", ChecksThenActs),)),
    Mutant("W7", _advance_alone.__doc__ or "", ((Mastership, "advance", _advance_alone),)),
    Mutant("W8", _position_or_ignore.__doc__ or "", ((Mastership, "_position", _position_or_ignore),)),
    Mutant("W9", _begin_unless_equal.__doc__ or "", ((EpochList, "begin", _begin_unless_equal),), heals=True),
    Mutant(
        "W10",
        _label_with_next.__doc__ or "",
        ((Mastership, "next_transfer", _label_with_next), (Followership, "_epoch_problem", _accept_all)),
        heals=False,  # so that the divergence itself is found, and not only an epoch list that begins too late
        within=6000,
        first=300,
        steps=150,
        weights={"elect": 5, "crash": 3, "start": 8, "deliver_part": 14, "cut": 3, "append": 20},
    ),
    Mutant(
        "W11",
        _observe_in_place.__doc__ or "",
        ((RoleMachine, "observe", _observe_in_place), (EpochList, "begin", _begin_again)),
        heals=True,
    ),
    Mutant("removal too soon", LetsGoTooSoon.__doc__ or "", ((role_machine, "SyncState", LetsGoTooSoon),)),
    Mutant(
        "unclean election",
        _everybody_alive.__doc__ or "",
        ((Controller, "candidates", _everybody_alive), (Controller, "elect", _elect_anybody)),
    ),
    Mutant(
        "acknowledged in memory",
        "The master counts its own bytes before they are on its disk.",
        ((Mastership, "own_position", property(lambda self: self._log.end_offset)),),
    ),
)


# ---- rules that only a whole cluster breaks by


def _at_once(self: Journal, end_offset: int, done: Callable[[PutStatus], None]) -> None:
    done(PutStatus.PUT_OK)


def _whole_log(self: MessageStore, confirm_offset: int) -> Any:
    return self.dispatcher.dispatch(self.commitlog.end_offset)


def _no_sync(self: CommitLog) -> SyncMark:
    return SyncMark(self.end_offset, self._tracker.complete_offset, self.generation)


def _highest_and_one(self: ReplicasState, broker_name: str) -> int:
    group = self.groups.get(broker_name)
    return max(group.replicas, default=0) + 1 if group is not None else 1


_append_to_raft_log = RaftLogFile._append


def _append_without_sync(self: RaftLogFile, *arguments: Any) -> None:
    with patch.object(MemorySegment, "sync", lambda segment: None):
        _append_to_raft_log(self, *arguments)


def _nothing(*_: Any) -> None:
    return None


_decide = ControllerMachine.decide
_apply = ControllerMachine.apply
_REQUESTS: dict[bytes, Any] = {}  # what each entry came of


def _decide_and_tell(self: ControllerMachine, request: Any) -> bytes:
    entry = _decide(self, request)
    _REQUESTS[entry] = request
    return entry


def _decide_again(self: ControllerMachine, data: bytes) -> Any:
    """Who did not decide an entry itself does so when it applies it, by the limits of another version."""
    request = _REQUESTS.get(data)
    if request is None or self._tail is not None:
        return _apply(self, data)
    with patch.object(replicas_rules, "MAX_REPLICAS", 2):
        return _apply(self, _decide(self, request))


def _decide_by_what_is_committed(self: ControllerMachine, request: Any) -> bytes:
    self.forget()
    return _decide(self, request)


FULL = (
    Mutant(
        "weak mode",
        "Acknowledgements mean memory, as they may be told to by a setting.",
        (),
        light=False,
        within=60,
        mood="power",
        settings=ReplicationSettings(ack_after="append"),
    ),
    Mutant(
        "no sync", "The log's sync does nothing.", ((CommitLog, "sync", _no_sync),), light=False, within=20, mood="disk"
    ),
    Mutant(
        "dispatch beyond confirm",
        "Consumers see what no other replica has.",
        ((MessageStore, "dispatch", _whole_log),),
        light=False,
        within=20,
        mood="processes",
    ),
    Mutant(
        "records answered at once",
        "Pops, acks and commits are answered before their records are acknowledged.",
        ((Journal, "when_acknowledged", _at_once),),
        light=False,
        within=60,
        mood="processes",
    ),
    Mutant(
        "an id again",
        "The id of a broker that was cleaned away is given out again.",
        ((ReplicasState, "next_broker_id", _highest_and_one),),
        light=False,
        within=60,
        mood="machines",
        is_quick=False,
    ),
    Mutant(
        "a follower decides again",
        "Entries of the controllers' log are decided once more where they are applied, by a version that has another limit.",
        ((ControllerMachine, "decide", _decide_and_tell), (ControllerMachine, "apply", _decide_again)),
        light=False,
        within=20,
        mood="processes",
    ),
    Mutant(
        "decides by what is committed",
        "A leader among the controllers does not see what it decided before, as long as that is not committed.",
        ((ControllerMachine, "decide", _decide_by_what_is_committed),),
        light=False,
        within=60,
        mood="processes",
    ),
    Mutant(
        "a tail that stays",
        "A leader among the controllers that was replaced goes on to decide by what it had appended.",
        ((ControllerMachine, "forget", _nothing),),
        light=False,
        within=60,
        mood="network",
        is_quick=False,
    ),
    Mutant(
        "raft without sync",
        "A controller votes and acknowledges before its disk has it.",
        ((RaftLogFile, "_append", _append_without_sync),),
        light=False,
        within=60,
        mood="disk",
    ),
    Mutant(
        "trusts a failed sync",
        "A start takes for durable what can be read.",
        ((CommitLog, "write_again", _nothing),),
        light=False,
        within=60,
        mood="disk",
    ),
    Mutant(
        "transactions forgotten",
        "The progress that a start reads from passes over open transactions.",
        ((OpenTransactions, "done_before", property(lambda table: table.next_offset)),),
        light=False,
        within=40,
        mood="processes",
    ),
    Mutant(
        "ends twice",
        "Who ends a transaction does not look whether it is open.",
        ((OpenTransactions, "find", lambda _, half: half),),
        light=False,
        within=20,
        mood="network",
    ),
    Mutant(
        "a clock is believed",
        "Delayed messages are due when their entry says so by the wall clock of the present master.",
        ((WaitingLevel, "release_ms", _by_the_wall_clock),),
        light=False,
        within=30,
        mood="processes",
    ),
    Mutant(
        "progress first",
        "How far a delay level is delivered is in the log before the messages are.",
        ((Deliverer, "_append", _progress_first),),
        light=False,
        within=60,
        mood="power",
        is_quick=False,
    ),
    Mutant(
        "deleted queues come back",
        "Queues that are derived anew keep what deleted topics held.",
        ((DeletedTopics, "_remove_stale_queues", _nothing),),
        light=False,
        within=60,
        mood="machines",
        is_quick=False,
    ),
)
