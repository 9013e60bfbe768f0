"""The scenarios: what each injects, and what users may expect while it lasts."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.chaos import disk_scripts, plan, rot, scripts
from tests.chaos.plan import Faults, Roles
from tests.chaos.stage import Stage

Draw = Callable[[random.Random, Roles], Faults]
Play = Callable[[Stage, str], None]

# Where every send waits in vain until its time-out, few can be tried.
LEAST_OPERATIONS: Final = 20
LEAST_OPERATIONS_IN_VAIN: Final = 8

# What a steady group may do in a second of a bad network: each change of the set or the master costs a moment without sends.
MOST_CHANGES_PER_S: Final = 1.5


@dataclass(frozen=True)
class Scenario:
    """One row of the matrix. `play` does one round.

    recovers: sends are acknowledged again while the fault lasts, within the limit of its kind.
    untouched: no send fails and no master changes, during the fault and after it.
    refuses: nothing may be acknowledged while the fault lasts.
    steadies: a bad network may move members and masters about, but not without end.
    """

    id: str
    title: str
    play: Play
    recovers: bool = True
    untouched: bool = False
    refuses: bool = False
    steadies: bool = False
    controllers: int = 3
    learners: int = 0
    small_disk: bool = False
    small_files: bool = False
    clocks: bool = False
    disk_faults: bool = False
    settings: tuple[str, ...] = ()

    @property
    def preloads(self) -> bool:
        """Whether a library must be put before the daemons' own."""
        return self.clocks or self.disk_faults


def inject(draw: Draw, *, recovers: bool = True) -> Play:
    """A round of one fault, drawn by the seed."""

    def play(stage: Stage, name: str) -> None:
        stage.inject(name, draw(stage.rng, stage.roles()), recovers=recovers)

    return play


def _one(
    id: str, title: str, draw: Draw, *, recovers: bool = True, untouched: bool = False, **more: object
) -> Scenario:
    return Scenario(id, title, inject(draw, recovers=recovers), recovers, untouched, **more)  # type: ignore[arg-type]


def _rotting(id: str, title: str, play: Play, *, untouched: bool = False) -> Scenario:
    return Scenario(id, title, play, untouched=untouched, small_files=True, settings=rot.SETTINGS)


def _failing(id: str, title: str, play: Play, *, recovers: bool = True, untouched: bool = False) -> Scenario:
    return Scenario(id, title, play, recovers, untouched, small_files=True, disk_faults=True)


SCENARIOS: Final = (
    _one("C1", "kill most brokers", plan.crash_brokers),
    _one("C2a", "kill most controllers", plan.crash_most_controllers, untouched=True),
    _one("C2b", "kill all controllers", plan.crash_all_controllers, untouched=True),
    _one("C3", "kill most brokers and most controllers", plan.crash_both, recovers=False),
    _one("F1", "freeze most brokers", plan.freeze_brokers),
    _one("F2a", "freeze most controllers", plan.freeze_most_controllers, untouched=True),
    _one("F2b", "freeze all controllers", plan.freeze_all_controllers, untouched=True),
    _one("F3", "freeze most brokers and most controllers", plan.freeze_both, recovers=False),
    _one("L1", "80 % loss among brokers", plan.lose_among_brokers, recovers=False, steadies=True),
    _one("L2", "80 % loss among controllers", plan.lose_among_controllers, untouched=True, steadies=True),
    _one("L3", "80 % loss among all daemons", plan.lose_among_all, recovers=False, steadies=True),
    _one("P1", "partition of the brokers", plan.part_brokers),
    _one("P2", "partition of the controllers", plan.part_controllers, untouched=True),
    _one("P3", "partition of all daemons", plan.part_all),
    _one("M1", "kill the master", plan.kill_master),
    _one("M2", "freeze the master", plan.freeze_master),
    _one("M3", "isolate the master", plan.part_master),
    _one("M4", "freeze a replica", plan.freeze_replica),
    _one("X1", "one-way partition of the master", plan.part_master_one_way),
    _one(
        "X2", "master, a controller and clients isolated", plan.part_master_with_clients, recovers=False, refuses=True
    ),
    Scenario("X3", "kill the master amid a proposal, answer lost", scripts.kill_in_the_middle_of_a_proposal, False),
    Scenario("X4", "two switches without writes, then divergence", scripts.switch_twice_without_writes),
    Scenario("X5", "restart master and leader together", scripts.restart_master_and_leader_together, False),
    Scenario("X6", "kill a replica that has just cut its log", scripts.kill_after_truncation, False),
    Scenario("X7", "freeze the master with queued sends", scripts.freeze_with_queued_sends),
    _one("X8", "clocks jump an hour on every role", plan.jump_clocks, untouched=True, clocks=True),
    Scenario(
        "X9", "the master's disk is full", scripts.fill_the_masters_disk, False, small_disk=True, small_files=True
    ),
    _one("X10", "name servers out of reach while the master dies", plan.kill_master_unseen),
    _one("X11", "a broker's links are 2 s late", plan.slow_broker, recovers=False, steadies=True),
    Scenario("X12", "rolling restart", scripts.restart_everybody_in_turn),
    Scenario("X13", "designated elections", scripts.elect_again_and_again),
    Scenario("X14", "kill the master beside a learner", scripts.kill_beside_a_learner, learners=1),
    _one("X15a", "five controllers in a ring", plan.ring_of_controllers, untouched=True, controllers=5),
    _one("X15b", "five controllers over a bridge", plan.bridge_of_controllers, untouched=True, controllers=5),
    _rotting("R1", "bytes change on a stopped replica's disk", inject(plan.rot_of_a_stopped_replica)),
    _rotting("R2", "kill the master, bytes change on its disk", inject(plan.rot_of_the_killed_master)),
    _rotting("R3", "bytes change under all running brokers", disk_scripts.change_under_running_brokers, untouched=True),
    _rotting("R4", "a replica's epochs rot: it refuses, and is copied anew", disk_scripts.refuse_rotten_epochs),
    _one("R5", "a stopped controller's Raft log rots", plan.rot_of_a_stopped_controller, untouched=True),
    Scenario("R6", "the leader's Raft log rots under it", disk_scripts.change_under_the_running_leader, untouched=True),
    _failing("D1", "short reads and writes on every disk, and elections", disk_scripts.transfer_by_halves),
    _failing("D2", "EIO when the master writes or syncs its log", inject(plan.failing_master)),
    _failing("D3", "EIO when a replica writes or syncs its log", inject(plan.failing_replica)),
    _failing("D4", "EIO when the leader writes or syncs an election", disk_scripts.fail_the_leaders_disk),
    _failing("D5", "EIO when the master reads what a replica needs", disk_scripts.fail_what_only_a_replica_reads),
    _failing("D6", "no room for the next file, and elections", disk_scripts.refuse_the_next_file, recovers=False),
    _failing("D7", "the master's disk ends no sync", inject(plan.standing_master)),
)

SHORT: Final = ("M1", "M2", "M3", "C2b")


def chosen(only: str) -> list[Scenario]:
    """The scenarios that a list of ids names; `short` stands for the few of every test run, nothing for all.

    Raises ValueError with the known ids for an unknown one.
    """
    known = {each.id: each for each in SCENARIOS}
    names = [name for part in only.replace(",", " ").split() for name in (SHORT if part == "short" else (part,))]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(
            f"no scenario {', '.join(unknown)}; there are {', '.join(known)}, and short for {', '.join(SHORT)}"
        )
    return [known[name] for name in dict.fromkeys(names)] if names else list(SCENARIOS)
