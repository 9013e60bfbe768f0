"""A broker's disk is copied to another machine, and both processes run: one of them has the id, in every epoch and at the end."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from unittest.mock import patch

import pytest

from brokerd.replication.roles.effects import Role
from brokerd.replication.roles.role_machine import RoleMachine
from controllerd.replicas.heartbeat import HeartbeatTable
from tests.sim.broker import SimBroker
from tests.sim.checks import Promises
from tests.sim.clients import TOPIC
from tests.sim.cluster import SimCluster, Story
from tests.sim.world import Violation

CLIENTS = frozenset({"admin", "owner", "transactor", "delayer", "backer", "popper", "ordered"})


class Copied:
    """A group whose second replica runs on a copy of the first one's disk, from when its master dies on."""

    def __init__(self, seed: int, *, counts_lives: bool = False) -> None:
        story = Story(seed, "calm", without_clients=CLIENTS, counts_lives=counts_lives)
        self.cluster = cluster = SimCluster(story)
        self.world = world = cluster.world
        for node in cluster.nodes:
            node.start()
        assert world.run_until(lambda: cluster.master() is not None, 20_000)
        cluster._create()
        cluster._employ()
        assert world.run_until(lambda: cluster.all_in_set() and len(cluster.brokers) == 3, 5_000)
        if counts_lives:
            assert world.run_until(lambda: all(each.table.counts_lives for each in cluster.controllers), 5_000)
            world.run(1_000)
        cluster.injector.later = lambda *_: None
        master = cluster.master()
        assert master is not None
        self.master = master
        self.original, self.copy = [each for each in cluster.brokers if each is not master]
        for each in (self.original, self.copy):
            each.kill()
        world.run(20)
        self.copy.replace()
        for path, file in self.original.disk.files.items():
            self.copy.disk.files[path] = copy.deepcopy(file)
        self.copy.disk._directories |= self.original.disk._directories

    def start_both(self, apart_ms: int) -> None:
        self.original.start()
        self.world.run(apart_ms)
        self.copy.start()
        self.world.run(4_000)

    def restart_controllers(self) -> None:
        """All at once: what they heard of brokers is gone, what they agreed on is not."""
        for each in self.cluster.controllers:
            each.kill()
        for each in self.cluster.controllers:
            each.start()

    def roles(self) -> list[Role]:
        return [each.driver.machine.role for each in (self.original, self.copy)]

    def masters(self) -> list[SimBroker]:
        both = self.original, self.copy
        return [each for each in both if each.is_up and each.driver.machine.role is Role.MASTER]


@contextlib.contextmanager
def ids_of_two() -> Iterator[None]:
    """The story's own promises look a broker up by its id, which two have here."""
    with patch.multiple(Promises, answered=lambda *_: None, became_master=lambda *_: None):
        yield


@pytest.fixture(autouse=True)
def promises() -> Iterator[None]:
    with ids_of_two():
        yield


def most_masters_of_one_epoch(seed: int) -> int:
    """Both start nearly together, and their master dies. Ends when there are two, before readers see what both have written."""
    group, most = Copied(seed), 0
    group.start_both(apart_ms=100)
    group.master.kill()
    for _ in range(300):
        group.world.run(20)
        epochs = [each.driver.machine.master_epoch for each in group.masters()]
        most = max([most, *(epochs.count(each) for each in epochs)])
        if most == 2:
            break
    return most


@pytest.mark.parametrize("seed", range(2))
def test_the_first_process_has_the_id_and_leads_when_the_master_dies(seed: int) -> None:
    group = Copied(seed)
    group.start_both(apart_ms=3_000)
    assert group.roles() == [Role.REPLICA, Role.FENCED]
    assert "two processes have the identity" in group.copy.session.last_error
    group.master.kill()
    group.world.run(4_000)
    assert group.masters() == [group.original]


@pytest.mark.parametrize("seed", range(2))
def test_of_two_that_start_together_none_leads(seed: int) -> None:
    group = Copied(seed)
    group.start_both(apart_ms=0)
    assert group.roles() == [Role.FENCED, Role.FENCED], "nobody knows which of them has what the id acknowledged"
    group.master.kill()
    group.world.run(4_000)
    assert group.masters() == []


@pytest.mark.parametrize("seed", range(2))
def test_of_two_that_start_together_the_one_that_stays_has_the_id(seed: int) -> None:
    group = Copied(seed)
    group.start_both(apart_ms=0)
    group.copy.kill()
    group.world.run(6_000)
    assert group.original.driver.machine.role is Role.REPLICA
    group.master.kill()
    group.world.run(4_000)
    assert group.masters() == [group.original]


@pytest.mark.parametrize("seed", range(2))
def test_what_a_copy_acknowledged_alone_is_not_given_up_for_the_process_that_waited(seed: int) -> None:
    """The copy is there first, leads alone, and stops. The other process has the id then, and a shorter log."""
    group = Copied(seed)
    group.copy.start()
    group.world.run(3_000)
    group.original.start()
    group.world.run(1_000)
    group.master.kill()
    group.world.run(4_000)
    assert group.masters() == [group.copy]
    end = group.copy.core.store.max_offset(TOPIC, 0)
    group.copy.kill()
    group.world.run(6_000)
    assert group.masters() == [], "the copy's disk has what was acknowledged"
    group.original.kill()
    group.copy.start()
    group.world.run(6_000)
    assert group.masters() == [group.copy]
    assert group.copy.core.store.max_offset(TOPIC, 0) >= end


def last_member_is_a_copy(seed: int, *, counts_lives: bool) -> tuple[Copied, int]:
    """The copy alone has the id, leads alone and stops, and the controllers are started again: the group, and the copy's end."""
    group = Copied(seed, counts_lives=counts_lives)
    group.copy.start()
    group.world.run(4_000)
    group.master.kill()
    group.world.run(4_000)
    assert group.masters() == [group.copy]
    end = group.copy.core.store.max_offset(TOPIC, 0)
    group.copy.kill()
    group.restart_controllers()
    group.original.start()
    group.world.run(8_000)
    assert group.masters() == [], "the copy's disk has what was acknowledged"
    return group, end


@pytest.mark.parametrize("seed", range(2))
def test_what_a_copy_acknowledged_alone_is_not_given_up_by_controllers_that_were_started_again(seed: int) -> None:
    group, end = last_member_is_a_copy(seed, counts_lives=True)
    group.original.kill()
    group.copy.start()
    group.world.run(6_000)
    assert group.masters() == [group.copy]
    assert group.copy.core.store.max_offset(TOPIC, 0) >= end


def test_the_story_finds_what_controllers_lose_that_do_not_count_lives() -> None:
    with pytest.raises(Violation, match=r"b1 shows .* seen was"):  # before anybody asks who leads
        last_member_is_a_copy(0, counts_lives=False)


@pytest.mark.parametrize("seed", range(2))
def test_who_ran_elsewhere_does_not_lead_before_the_members_that_have_it_all_are_there(seed: int) -> None:
    """The copy is a member and acknowledges; the other process is started when nobody else is there, the master comes later."""
    group = Copied(seed, counts_lives=True)
    group.copy.start()
    group.world.run(4_000)
    end = group.master.core.store.max_offset(TOPIC, 0)
    group.copy.kill()
    group.master.kill()
    group.restart_controllers()
    group.original.start()
    group.world.run(6_000)
    assert group.masters() == []
    group.master.start()
    group.world.run(6_000)
    assert group.master.driver.machine.role is Role.MASTER
    assert group.original.driver.machine.role is Role.REPLICA, "it copies what it lacks"
    assert group.original.core.store.max_offset(TOPIC, 0) >= end
    group.world.run(4_000)
    group.master.kill()
    group.world.run(4_000)
    assert group.masters() == [group.original], "it left the set and came back: it is the member now"


@pytest.mark.parametrize("seed", range(2))
def test_every_next_life_on_a_directory_is_the_member(seed: int) -> None:
    """Also when all of them are killed time and again, some of them before they are told that they are registered."""
    group = Copied(seed, counts_lives=True)
    group.original.start()
    group.world.run(4_000)
    both = group.master, group.original
    for pause_ms in (0, 5, 20, 60, 150, 400, 1000):
        for each in both:
            each.kill()
        group.restart_controllers()
        for each in both:
            each.start()
        group.world.run(pause_ms)
    group.world.run(6_000)
    assert sorted(each.driver.machine.role.name for each in both) == ["MASTER", "REPLICA"]


@pytest.mark.parametrize("seed", range(2))
def test_nobody_is_a_member_while_another_process_claims_its_id_as_well(seed: int) -> None:
    """Both speak to controllers that were all started again, and the master, elected anew, has one of them that keeps up."""
    group = Copied(seed, counts_lives=True)
    group.original.start()
    group.world.run(4_000)
    group.copy.start()
    group.world.run(1_000)
    end = group.master.core.store.max_offset(TOPIC, 0)
    group.master.kill()
    group.restart_controllers()
    group.master.start()
    group.world.run(8_000)
    master_id = group.master.driver.machine.broker_id
    assert group.original.core.store.max_offset(TOPIC, 0) > end, "it is sent the log"
    assert group.roles() == [Role.REPLICA, Role.FENCED]
    assert list(group.cluster.members) == [master_id], "whoever is heard next would be counted as the member"
    group.copy.kill()
    group.world.run(8_000)
    state = group.cluster.truth.group
    assert state is not None
    assert len(state.sync_state_set) == 2
    assert state.lives.keys() == set(state.sync_state_set)


def test_the_story_finds_two_masters_of_one_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """With neither rule: each process is taken for the other one's next life, and takes up what the other one was elected for."""
    monkeypatch.setattr(HeartbeatTable, "_has_other", lambda self, known, incarnation, now_ms: False)
    monkeypatch.setattr(RoleMachine, "_names_twin", lambda self, view: False)
    assert any(most_masters_of_one_epoch(seed) == 2 for seed in range(4))
