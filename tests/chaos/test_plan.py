"""The faults that a seed draws: the right number of nodes, the right links, the same for the same seed."""

from __future__ import annotations

import random

import pytest

from tests.chaos import plan
from tests.chaos.addresses import CLIENTS, Link, ip_of, node_at
from tests.chaos.plan import CUT, LOSS, SLOW, Faults, Roles
from tests.chaos.scenarios import SCENARIOS, SHORT, chosen

ROLES = Roles(("c0", "c1", "c2"), ("b0", "b1", "b2"), master="b1", leader="c2")
FIVE = Roles(("c0", "c1", "c2", "c3", "c4"), ("b0", "b1", "b2"), master="b1", leader="c2")

DRAWS = [
    value
    for name, value in vars(plan).items()
    if callable(value) and getattr(value, "__annotations__", {}).get("return") == "Faults"
]


def draws(draw, roles: Roles = ROLES, count: int = 50) -> list[Faults]:
    return [draw(random.Random(seed), roles) for seed in range(count)]


@pytest.mark.parametrize("draw", DRAWS, ids=lambda each: each.__name__)
def test_the_same_seed_draws_the_same_faults_and_never_none(draw) -> None:
    assert draws(draw) == draws(draw)
    assert all(faults.count > 0 for faults in draws(draw, FIVE))
    assert all(not set(faults.kills) & set(faults.freezes) for faults in draws(draw))
    assert all(faults.describe() for faults in draws(draw, FIVE))


def test_most_brokers_but_never_all() -> None:
    for faults in draws(plan.crash_brokers):
        assert len(faults.kills) == 2
    assert len({faults.kills for faults in draws(plan.crash_brokers)}) == 3, "every pair is drawn sooner or later"


def test_most_controllers() -> None:
    assert all(len(faults.kills) == 2 for faults in draws(plan.crash_most_controllers))
    assert all(len(faults.kills) == 3 for faults in draws(plan.crash_most_controllers, FIVE))
    assert all(faults.kills == ROLES.controllers for faults in draws(plan.crash_all_controllers))


@pytest.mark.parametrize(
    ("draw", "nodes"),
    [(plan.part_brokers, ROLES.brokers), (plan.part_controllers, ROLES.controllers), (plan.part_all, ROLES.nodes)],
)
def test_a_partition_has_two_sides_that_do_not_hear_one_another(draw, nodes) -> None:
    seen = set()
    for faults in draws(draw):
        assert set(faults.links.values()) == {CUT}
        assert {name for link in faults.links for name in link} == set(nodes)
        assert all(Link(link.target, link.source) in faults.links for link in faults.links), "both directions"
        side = {nodes[0]} | {other for other in nodes if Link(nodes[0], other) not in faults.links}
        assert set(faults.links) == {Link(a, b) for a in nodes for b in nodes if (a in side) != (b in side)}
        seen.add(frozenset(side))
    assert len(seen) > 2


def test_losses_hit_every_link_of_their_nodes() -> None:
    assert len(plan.lose_among_brokers(random.Random(1), ROLES).links) == 6
    assert len(plan.lose_among_all(random.Random(1), ROLES).links) == 30
    assert set(plan.lose_among_all(random.Random(1), ROLES).links.values()) == {LOSS}


def test_one_way_means_one_way() -> None:
    directions = set()
    for faults in draws(plan.part_master_one_way):
        assert not any(Link(link.target, link.source) in faults.links for link in faults.links)
        directions.add(all(link.source == "b1" for link in faults.links))
    assert directions == {True, False}


def test_the_master_s_side_has_one_controller_and_the_clients() -> None:
    for faults in draws(plan.part_master_with_clients):
        here = {CLIENTS, "b1"} | {name for name in ROLES.controllers if Link(name, "b1") not in faults.links}
        assert len(here) == 3
        assert all((link.source in here) != (link.target in here) for link in faults.links)


def test_a_ring_leaves_each_controller_two_neighbours() -> None:
    for faults in draws(plan.ring_of_controllers, FIVE):
        for name in FIVE.controllers:
            assert sum(Link(name, other) not in faults.links for other in FIVE.controllers if other != name) == 2


def test_a_bridge_is_one_controller_that_sees_all() -> None:
    for faults in draws(plan.bridge_of_controllers, FIVE):
        seeing = {
            name: sum(Link(name, other) not in faults.links for other in FIVE.controllers if other != name)
            for name in FIVE.controllers
        }
        assert sorted(seeing.values()) == [2, 2, 2, 2, 4]


def test_a_slow_broker_is_slow_to_everybody() -> None:
    for faults in draws(plan.slow_broker):
        assert len(faults.links) == 10
        assert set(faults.links.values()) == {SLOW}


def test_clocks_jump_on_every_role() -> None:
    for faults in draws(plan.jump_clocks):
        assert {"b1", "c2"} < set(faults.clocks_s)
        assert len(faults.clocks_s) == 4
        assert set(map(abs, faults.clocks_s.values())) == {3600}


def test_what_is_silent_to_other_daemons() -> None:
    assert Faults(freezes=("b1",)).silences("b1")
    assert not Faults(kills=("b1",)).silences("b1")
    assert Faults(links={Link("b0", "b1"): CUT}).silences("b1")
    assert not Faults(links={Link("b1", CLIENTS): CUT}).silences("b1")


@pytest.mark.parametrize("draw", [plan.rot_of_a_stopped_replica, plan.rot_of_the_killed_master, plan.rot_of_the_epochs])
def test_bytes_of_one_stopped_broker_change(draw) -> None:
    for faults in draws(draw):
        assert tuple(faults.rots) == faults.kills
        assert len(faults.kills) == 1
        assert set(faults.kills) < set(ROLES.brokers)
        assert (faults.kills == (ROLES.master,)) == (draw is plan.rot_of_the_killed_master)


def test_a_minority_of_the_controllers_rots() -> None:
    victims = {faults.kills for faults in draws(plan.rot_of_a_stopped_controller)}
    assert victims == {("c0",), ("c1",), ("c2",)}
    assert all(list(faults.rots) == ["c2"] and not faults.kills for faults in draws(plan.rot_of_the_running_leader))


def test_all_files_of_running_brokers_rot_and_those_of_stopped_ones_too() -> None:
    faults = plan.rot_of_running_brokers(random.Random(1), ROLES)
    assert tuple(faults.rots) == ROLES.brokers
    for kinds in (plan.OF_A_RUNNING_BROKER, plan.OF_A_STOPPED_BROKER):
        assert {plan.LOG, plan.QUEUE, plan.CHECKS, plan.INDEX, plan.CHECKPOINT} <= set(kinds)


def test_disks_that_fail_are_those_of_their_roles() -> None:
    assert all(set(faults.disks) == set(ROLES.nodes) for faults in draws(plan.short_transfers))
    assert {rule.every for faults in draws(plan.short_transfers) for rule in faults.disks.values()} == {2, 3}
    for draw, names in (
        (plan.failing_master, {"b1"}),
        (plan.failing_replica, {"b0", "b2"}),
        (plan.failing_leader, {"c2"}),
    ):
        found = [item for faults in draws(draw) for item in faults.disks.items()]
        assert {name for name, _ in found} == names
        assert {rule.calls for _, rule in found} == {("write",), ("sync",)}
        assert {rule.error for _, rule in found} == {"EIO"}
        lasting = {rule.calls for _, rule in found if not rule.ends}
        assert lasting == ({("write",)} if draw is plan.failing_leader else set())
    for draw, calls, error in (
        (plan.unreadable_master, ("read",), "EIO"),
        (plan.no_room_for_the_next_file, ("grow",), "ENOSPC"),
    ):
        (rule,) = draw(random.Random(1), ROLES).disks.values()
        assert (rule.part, rule.calls, rule.error, rule.every, rule.ends) == ("/commitlog/", calls, error, 1, False)
    (rule,) = plan.standing_master(random.Random(1), ROLES).disks.values()
    assert (rule.calls, rule.stands, rule.ends) == (("sync",), True, False)
    assert str(rule) == "each sync on / does not end"


def test_the_matrix_is_complete() -> None:
    ids = [each.id for each in SCENARIOS]
    assert len(ids) == len(set(ids))
    published = {"C1", "C2a", "C2b", "C3", "F1", "F2a", "F2b", "F3", "L1", "L2", "L3", "P1", "P2", "P3"}
    ours = {f"X{n}" for n in range(1, 15)} | {"X15a", "X15b"}
    disks = {f"{letter}{n}" for letter in "RD" for n in range(1, 7)} | {"D7"}
    assert published | ours | disks | {"M1", "M2", "M3", "M4"} == set(ids)


def test_scenarios_are_chosen_by_their_ids() -> None:
    assert len(chosen("")) == len(SCENARIOS)
    assert [each.id for each in chosen("X3, C1 C1")] == ["X3", "C1"]
    assert [each.id for each in chosen("short")] == list(SHORT)
    with pytest.raises(ValueError, match="no scenario X99"):
        chosen("X99")


def test_an_address_leads_back_to_its_node() -> None:
    assert node_at(f"{ip_of('b2')}:10911") == "b2"
    assert node_at(ip_of(CLIENTS)) == CLIENTS
    with pytest.raises(KeyError):
        node_at("127.0.0.1:1")
