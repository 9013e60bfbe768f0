"""The scripts about disks: bytes that change under running daemons, and disks that refuse at a certain place.

Like `scripts`, each notes as evidence that what it is about really happened.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from remoting import exit_codes
from remoting.errors import LogboomError
from remoting.record.codec import Record, body_is_intact
from tests.chaos import plan
from tests.chaos.addresses import broker_address
from tests.chaos.asking import elect, state_of
from tests.chaos.clients import QUEUES, TOPIC
from tests.chaos.history import body_of, name_in
from tests.chaos.injection import Injection
from tests.chaos.readback import read_queue
from tests.chaos.scrapes import scrape
from tests.chaos.stage import REJOIN_LIMIT_S, Stage
from tests.support.cluster import comes_true

_PAUSE_S: Final = 0.4
_CHANGES_BETWEEN_READS: Final = 8
_FILES_BEHIND: Final = 4
_BEHIND_LIMIT_S: Final = 60.0
_GIVE_WAY_LIMIT_S: Final = 10.0
_ROLL_LIMIT_S: Final = 60.0
_END_LIMIT_S: Final = 30.0
_DECIDED_LIMIT_S: Final = 30.0
_REPAIRS: Final = (
    "logboom_scrub_repaired_ranges_total",
    "logboom_scrub_repaired_units_total",
    "logboom_scrub_index_repairs_total",
)


@dataclass
class ColdReads:
    """What a consumer saw that reads everything again from its begin, while bytes change under its broker."""

    read: int = 0
    refused: int = 0
    damaged: list[str] = field(default_factory=list)

    def go_over(self, stage: Stage) -> None:
        """All queues of the topic, from the master."""
        master = broker_address(stage.cluster.master_name())
        for queue_id in range(QUEUES):
            try:
                found = read_queue(master, TOPIC, queue_id)
            except LogboomError:
                self.refused += 1  # what is damaged is not given out before it is repaired
                continue
            self.read += len(found)
            self.damaged += [
                f"{queue_id}:{at}" for at, each in enumerate(found) if not _is_sound(each) or each.queue_offset != at
            ]


def _is_sound(record: Record) -> bool:
    name = name_in(record.body)
    return body_is_intact(record) and record.body == body_of(name) and record.property_map().get("UNIQ_KEY") == name


def change_under_running_brokers(stage: Stage, name: str) -> None:
    """R3. Again and again a byte changes in a file of a running broker; who reads everything gets nothing else than was sent."""
    roles = stage.roles()
    faults = plan.rot_of_running_brokers(stage.rng, roles)
    cold = ColdReads()
    before = _repairs(stage)
    with stage.window(name, faults, master=roles.master) as window:
        injection = Injection(stage.cluster, faults, window)
        injection.inject()
        deadline_s = time.monotonic() + stage.fault_s
        number = 0
        while time.monotonic() < deadline_s:
            stage.hold(_PAUSE_S)
            victim = stage.rng.choice(roles.brokers)
            injection.change(victim, stage.rng.choice(plan.OF_A_RUNNING_BROKER), stage.cluster.confirmed(victim))
            number += 1
            if number % _CHANGES_BETWEEN_READS == 0:
                cold.go_over(stage)
        injection.verify()
        window.note(
            f"{cold.read} messages were read again meanwhile, {len(cold.damaged)} of them damaged "
            f"{cold.damaged[:3]}; {cold.refused} reads were refused",
            cold.read > 0 and not cold.damaged,
        )
    stage.measure(window, faults, roles)
    stage.settle()
    injection.await_repair()
    changed = Counter(each.kind for found in injection.changes.values() for each in found)
    needed = {
        metric for kind, metric in zip((plan.LOG, plan.QUEUE, plan.INDEX), _REPAIRS, strict=True) if changed[kind]
    }
    comes_true(lambda: all((_repairs(stage) - before)[each] for each in needed), REJOIN_LIMIT_S)
    counted = _repairs(stage) - before
    told = ", ".join(f"{each} +{counted[each]}" for each in _REPAIRS)
    window.note(f"the brokers' metrics say: {told}", all(counted[each] for each in needed))


def _repairs(stage: Stage) -> Counter[str]:
    """What the scrubbers of all brokers have repaired, as their metrics tell."""
    total: Counter[str] = Counter()
    for name in stage.cluster.broker_names:
        found = scrape(stage.network.namespace(name))
        total.update({each: int(found[each]) for each in _REPAIRS})
    return total


def refuse_rotten_epochs(stage: Stage, name: str) -> None:
    """R4. A byte of a stopped replica's epochs changes. It must not start with them, and says what to do; somebody does that."""
    roles = stage.roles()
    faults = plan.rot_of_the_epochs(stage.rng, roles)
    (victim,) = faults.kills
    daemon = stage.cluster.daemons[victim]
    directory = stage.cluster.data_directories[victim]
    with stage.window(name, faults, master=roles.master) as window:
        injection = Injection(stage.cluster, faults, window)
        injection.inject()
        stage.hold(stage.fault_s / 2)
        injection.verify()
        daemon.start()
        code = daemon.await_exit(_END_LIMIT_S)
        last = daemon.log_text().strip().splitlines()[-1:]
        window.note(f"{victim} did not start ({code}): {last}", code == exit_codes.FAILED)
        directory.rename(directory.with_name(f"{victim}-rotten"))
        stage.mark(f"{victim}'s data directory moved away")
        daemon.start()
        stage.hold(stage.fault_s / 2)
    stage.measure(window, faults, roles)
    stage.settle()


def change_under_the_running_leader(stage: Stage, name: str) -> None:
    """R6. A byte changes in the leading controller's Raft log. It does not read it again; its next start does, and refuses."""
    roles = stage.roles()
    faults = plan.rot_of_the_running_leader(stage.rng, roles)
    leader = stage.cluster.daemons[roles.leader]
    with stage.window(name, faults, leader=roles.leader) as window:
        injection = Injection(stage.cluster, faults, window)
        injection.inject()
        stage.hold(stage.fault_s / 2)
        injection.verify()
        leader.kill()
        if not any(each.is_there for each in injection.changes[roles.leader]):
            injection.change(roles.leader, plan.RAFT, 0)  # the log was written anew since
        left = [str(each) for each in injection.changes[roles.leader] if each.is_there]
        window.note(f"{roles.leader} was killed, and its log is damaged: {left}", leader.is_gone and bool(left))
        stage.hold(stage.fault_s / 2)
    stage.measure(window, plan.Faults(kills=(roles.leader,)), roles)
    leader.start()
    stage.settle()
    injection.await_repair()


def transfer_by_halves(stage: Stage, name: str) -> None:
    """D1. Reads and writes transfer less than was asked for, again and again. Elections make controllers write, too."""
    roles = stage.roles()
    faults = plan.short_transfers(stage.rng, roles)
    with stage.window(name, faults, master=roles.master, elected=list(roles.replicas)) as window:
        injection = Injection(stage.cluster, faults, window)
        injection.inject()
        for successor in roles.replicas:
            stage.hold(stage.fault_s / 3)
            elect(stage, successor)
            stage.cluster.wait_in_sync(stage.cluster.replica_count, REJOIN_LIMIT_S)
        stage.hold(stage.fault_s / 3)
        injection.verify()
    stage.measure(window, faults, roles)
    injection.heal()
    stage.settle()


def fail_the_leaders_disk(stage: Stage, name: str) -> None:
    """D4. The leading controller cannot write, or not sync, what it is asked to decide; another one decides that."""
    roles = stage.roles()
    faults = plan.failing_leader(stage.rng, roles)
    successor = stage.rng.choice(roles.replicas)

    def is_elected() -> bool:
        elect(stage, successor)
        return True

    with stage.window(name, faults, leader=roles.leader, elected=successor) as window:
        injection = Injection(stage.cluster, faults, window)
        injection.inject()
        decided = comes_true(is_elected, _DECIDED_LIMIT_S)
        stage.hold(stage.fault_s)
        injection.verify()
        window.note(
            f"{successor} was elected by another controller", decided and stage.cluster.leader_name() != roles.leader
        )
    stage.measure(window, None, roles)
    injection.heal()
    stage.settle()


def fail_what_only_a_replica_reads(stage: Stage, name: str) -> None:
    """D5. A replica was away for some files; the master's disk does not give them. The master goes on; the replica waits."""
    roles = stage.roles()
    faults = plan.unreadable_master(stage.rng, roles)
    victim = stage.rng.choice(roles.replicas)
    master = stage.cluster.daemons[roles.master]
    with stage.window(name, faults, master=roles.master, away=victim) as window:
        stage.cluster.daemons[victim].kill()
        missing = _FILES_BEHIND * stage.cluster.segment_bytes
        began = state_of(stage, roles.master)["endOffset"]
        grown = comes_true(lambda: state_of(stage, roles.master)["endOffset"] > began + missing, _BEHIND_LIMIT_S)
        window.note(f"{victim} lacks {missing} bytes and more", grown)
        injection = Injection(stage.cluster, faults, window)
        injection.inject()
        stage.cluster.daemons[victim].start()
        stage.hold(stage.fault_s)
        injection.verify()
        waits = "a replica is not sent the log from" in master.log_text()
        window.note(f"{roles.master} said that {victim} has to wait", waits)
        window.note(f"{roles.master} is still the master", stage.cluster.master_name() == roles.master)
    stage.measure(window, None, roles)
    injection.heal()
    stage.settle()


def refuse_the_next_file(stage: Stage, name: str) -> None:
    """D6. The master's log comes to the end of a file, and there is no room for the next one: it gives way by itself. When
    there is room again, it is elected again."""
    roles = stage.roles()
    faults = plan.no_room_for_the_next_file(stage.rng, roles)
    starved = roles.master
    with stage.window(name, faults, master=starved) as window:
        injection = Injection(stage.cluster, faults, window)
        injection.inject()

        def is_at_the_end() -> bool:
            return bool(state_of(stage, starved)["endOffset"] % stage.cluster.segment_bytes == 0)

        rolled = comes_true(is_at_the_end, _ROLL_LIMIT_S)
        end = state_of(stage, starved)["endOffset"]
        window.note(f"{starved}'s log ends where a file does, at {end}", rolled)
        gave_way = comes_true(lambda: stage.cluster.master_name() != starved, _GIVE_WAY_LIMIT_S)
        successor = stage.cluster.master_name()
        window.note(f"{successor} leads, as {starved} has no room", gave_way)
        stage.hold(stage.fault_s)
        injection.verify()
    stage.measure(window, None, roles)
    injection.heal()
    stage.cluster.wait_in_sync(stage.cluster.replica_count, REJOIN_LIMIT_S)
    elect(stage, starved)
    window.note(f"{starved} leads again with room", stage.cluster.master_name() == starved)
    stage.settle()
