"""Each request with each refusal, in the order in which they are checked."""

from __future__ import annotations

import pytest

from controllerd.replicas.requests import ElectMaster, Trigger
from controllerd.replicas.state import MAX_EPOCH
from remoting import codes
from tests.unit.controllerd.replicas.builders import (
    NAME,
    Machine,
    alter,
    apply_id,
    clean,
    elect,
    group_of,
    group_of_three,
    register,
    run,
    seen,
)


def test_set_up_is_as_the_builders_say() -> None:
    group = group_of(group_of_three())
    assert (group.master_broker_id, group.master_epoch) == (1, 1)
    assert (group.sync_state_set, group.sync_state_set_epoch) == ((1, 2, 3), 2)
    assert group.replicas[2].ha_address == "127.0.0.1:109022"


# Broker ids


def test_ids_start_at_one_and_follow_one_another() -> None:
    machine = Machine()
    assert machine.state.next_broker_id(NAME) == 1
    assert run(machine, apply_id(2)).code == codes.CONTROLLER_BROKER_ID_INVALID
    assert run(machine, apply_id(1)).code == codes.SUCCESS
    assert machine.state.next_broker_id(NAME) == 2
    assert run(machine, apply_id(3)).code == codes.CONTROLLER_BROKER_ID_INVALID
    assert group_of(machine).replicas[1].address == "127.0.0.1:10901"


def test_the_same_id_and_check_code_may_be_repeated_but_not_with_another_code() -> None:
    machine = Machine()
    run(machine, apply_id(1, "a:1;5"))
    before = group_of(machine)
    assert run(machine, apply_id(1, "a:1;5")).code == codes.SUCCESS
    assert group_of(machine) == before
    assert run(machine, apply_id(1, "a:1;6")).code == codes.CONTROLLER_BROKER_ID_INVALID
    assert group_of(machine) == before


def test_a_broker_name_belongs_to_one_cluster() -> None:
    machine = Machine()
    run(machine, apply_id(1))
    reply = run(machine, apply_id(2, cluster="Other"))
    assert reply.code == codes.CONTROLLER_INVALID_REQUEST
    assert "belongs to cluster DefaultCluster" in str(reply.remark)


# Registration


def test_registration_needs_an_id() -> None:
    machine = Machine()
    assert run(machine, register(1)).code == codes.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    run(machine, apply_id(1))
    assert run(machine, register(2)).code == codes.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED


def test_moving_keeps_id_membership_and_epochs() -> None:
    machine = group_of_three()
    before = group_of(machine)
    assert run(machine, register(2)).records == ()
    assert run(machine, register(2, address="127.0.0.1:7")).code == codes.SUCCESS
    after = group_of(machine)
    assert after.replicas[2].address == "127.0.0.1:7"
    assert after.replicas[2].register_check_code == before.replicas[2].register_check_code
    assert (after.sync_state_set, after.sync_state_set_epoch, after.master_epoch) == ((1, 2, 3), 2, 1)


def test_a_remembered_epoch_raises_the_floor_under_the_next_one() -> None:
    machine = group_of_three()
    run(machine, register(2, known_epoch=41))
    assert group_of(machine).master_epoch == 1
    run(machine, elect(seen(2), trigger=Trigger.CONTROLLER))
    assert (group_of(machine).master_broker_id, group_of(machine).master_epoch) == (2, 42)


# Sync-state set


def test_alter_succeeds_and_raises_the_set_s_epoch_by_one() -> None:
    machine = group_of_three()
    reply = run(machine, alter([2, 1], set_epoch=2))
    assert reply.code == codes.SUCCESS
    assert (group_of(machine).sync_state_set, group_of(machine).sync_state_set_epoch) == ((1, 2), 3)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        # Equal sets come first: it says nothing about who is master.
        (alter([1, 2, 3], master=9, master_epoch=9, set_epoch=9), codes.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED),
        (alter([1, 2], master=2, master_epoch=9, set_epoch=9), codes.CONTROLLER_INVALID_MASTER),
        (alter([1, 2], master_epoch=0, set_epoch=9), codes.CONTROLLER_FENCED_MASTER_EPOCH),
        (alter([1, 2], master_epoch=2, set_epoch=9), codes.CONTROLLER_FENCED_MASTER_EPOCH),
        (alter([1, 2, 9], set_epoch=1, not_alive=(2,)), codes.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH),
        (alter([1, 2, 9], set_epoch=2, not_alive=(2,)), codes.CONTROLLER_INVALID_REPLICAS),
        (alter([2, 3], set_epoch=2, not_alive=(2,)), codes.CONTROLLER_BROKER_NOT_ALIVE),
        (alter([2, 3], set_epoch=2), codes.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED),
        (alter([], set_epoch=2), codes.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED),
    ],
)
def test_alter_is_refused_and_changes_nothing(command: object, code: int) -> None:
    machine = group_of_three()
    before = group_of(machine)
    reply = run(machine, command)  # type: ignore[arg-type]
    assert (reply.code, reply.records) == (code, ())
    assert group_of(machine) is before


def test_alter_without_a_group_or_a_master() -> None:
    machine = Machine()
    assert run(machine, alter([1])).code == codes.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
    machine = group_of_three()
    run(machine, elect(trigger=Trigger.CONTROLLER))
    assert run(machine, alter([1], set_epoch=2)).code == codes.CONTROLLER_INVALID_MASTER


# Elections


def test_the_first_master_must_be_registered_alive_and_the_freshest() -> None:
    machine = Machine()
    assert run(machine, elect(seen(1))).code == codes.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    for broker_id in (1, 2, 3):
        run(machine, apply_id(broker_id))
    assert run(machine, elect(seen(9), wanted=9)).code == codes.CONTROLLER_ELECT_MASTER_FAILED
    assert run(machine, elect(wanted=1)).code == codes.CONTROLLER_ELECT_MASTER_FAILED
    assert group_of(machine).master_epoch == 0
    reply = run(machine, elect(seen(1, 3, 10), seen(2, 4, 5), seen(9, 9, 9), wanted=1))
    assert reply.code == codes.SUCCESS
    group = group_of(machine)
    assert (group.master_broker_id, group.sync_state_set, group.sync_state_set_epoch) == (2, (2,), 1)
    assert group.master_epoch == 5, "above every epoch that a replica remembers"


def test_an_election_by_the_controller_writes_nothing_for_a_group_without_a_past() -> None:
    machine = Machine()
    run(machine, apply_id(1))
    reply = run(machine, elect(trigger=Trigger.CONTROLLER))
    assert (reply.code, reply.records) == (codes.CONTROLLER_MASTER_NOT_AVAILABLE, ())


def test_a_living_master_stays() -> None:
    machine = group_of_three()
    reply = run(machine, elect(seen(1, 1, 5), seen(2, 1, 999), wanted=2))
    assert (reply.code, reply.records) == (codes.CONTROLLER_MASTER_STILL_EXIST, ())
    assert reply.group is not None
    assert reply.group.master_broker_id == 1


def test_only_a_live_member_is_elected_and_the_set_becomes_it_alone() -> None:
    machine = group_of_three()
    run(machine, alter([1, 3], set_epoch=2))
    reply = run(machine, elect(seen(2, 1, 999), seen(3, 1, 10), trigger=Trigger.CONTROLLER))
    assert reply.code == codes.SUCCESS
    group = group_of(machine)
    assert (group.master_broker_id, group.master_epoch) == (3, 2)
    assert (group.sync_state_set, group.sync_state_set_epoch) == ((3,), 4)


def test_nobody_electable_is_written_down_once_and_the_set_is_kept() -> None:
    machine = group_of_three()
    run(machine, alter([1], set_epoch=2))
    for _ in range(3):
        reply = run(machine, elect(seen(2), seen(3), trigger=Trigger.CONTROLLER))
        assert reply.code == codes.CONTROLLER_MASTER_NOT_AVAILABLE
    group = group_of(machine)
    assert (group.master_broker_id, group.master_epoch) == (None, 2)
    assert (group.sync_state_set, group.sync_state_set_epoch) == ((1,), 3)
    assert "not in the sync-state set" in str(reply.remark)
    run(machine, elect(seen(1), seen(2), wanted=1))
    assert (group_of(machine).master_broker_id, group_of(machine).master_epoch) == (1, 3)


def test_nobody_electable_for_a_broker_or_a_person_writes_nothing() -> None:
    machine = group_of_three()
    for trigger in (Trigger.BROKER, Trigger.ADMIN):
        reply = run(machine, elect(trigger=trigger, wanted=2))
        assert (reply.code, reply.records) == (codes.CONTROLLER_ELECT_MASTER_FAILED, ())


def test_a_finding_about_an_earlier_master_is_out_of_date() -> None:
    machine = group_of_three()
    run(machine, elect(seen(2), trigger=Trigger.CONTROLLER, seen_epoch=1))
    reply = run(machine, elect(seen(3), trigger=Trigger.CONTROLLER, seen_epoch=1))
    assert (reply.code, reply.records) == (codes.CONTROLLER_MASTER_STILL_EXIST, ())


def test_designation() -> None:
    machine = group_of_three()
    run(machine, alter([1, 2], set_epoch=2))
    everybody = (seen(1, 1, 99), seen(2, 1, 50), seen(3, 1, 99))

    def designate(wanted: int, *observed: object, unclean: bool = False) -> ElectMaster:
        return elect(
            *(observed or everybody),  # type: ignore[arg-type]
            trigger=Trigger.ADMIN,
            wanted=wanted,
            designate=True,
            unclean=unclean,
        )

    assert run(machine, designate(1)).code == codes.CONTROLLER_MASTER_STILL_EXIST
    outside = run(machine, designate(3))
    assert outside.code == codes.CONTROLLER_ELECT_MASTER_FAILED
    assert outside.remark == (
        "nobody can be elected: broker 3: not in the sync-state set: it may lack acknowledged messages"
    )
    assert run(machine, designate(2, seen(1))).code == codes.CONTROLLER_ELECT_MASTER_FAILED
    assert run(machine, designate(7)).remark == "nobody can be elected: broker 7 is not registered"
    assert group_of(machine).master_broker_id == 1
    assert run(machine, designate(2)).code == codes.SUCCESS
    assert group_of(machine).master_broker_id == 2
    assert run(machine, designate(3, unclean=True)).code == codes.SUCCESS
    assert (group_of(machine).master_broker_id, group_of(machine).master_epoch) == (3, 3)


def test_unclean_election_prefers_members_and_takes_others_only_when_switched_on() -> None:
    machine = group_of_three()
    run(machine, alter([1, 2], set_epoch=2))
    command = elect(seen(2, 1, 1), seen(3, 1, 99), trigger=Trigger.CONTROLLER, unclean=True)
    assert run(machine, command).group.master_broker_id == 2  # type: ignore[union-attr]
    reply = run(machine, elect(seen(3, 1, 99), trigger=Trigger.CONTROLLER, unclean=True))
    assert reply.group is not None
    assert reply.group.master_broker_id == 3


def test_a_restarted_master_gets_a_new_epoch_or_gives_way() -> None:
    machine = Machine()
    for broker_id in (1, 2):
        run(machine, apply_id(broker_id))
    run(machine, elect(seen(1, incarnation=111), wanted=1))
    assert group_of(machine).master_incarnation == 111
    assert run(machine, elect(seen(1, incarnation=111), wanted=1)).code == codes.CONTROLLER_MASTER_STILL_EXIST
    epoch = group_of(machine).master_epoch
    assert run(machine, elect(seen(1, incarnation=77), wanted=1)).code == codes.SUCCESS
    assert (group_of(machine).master_broker_id, group_of(machine).master_epoch) == (1, epoch + 1)
    run(machine, alter([1, 2], master_epoch=epoch + 1, set_epoch=2))
    run(machine, elect(seen(1, 2, 40, incarnation=5), seen(2, 2, 60, incarnation=6), wanted=1))
    assert group_of(machine).master_broker_id == 2, "the restarted one came back with less than another member has"


def test_learners_are_never_elected() -> None:
    machine = Machine()
    run(machine, apply_id(1))
    reply = run(machine, elect(seen(1, is_learner=True), wanted=1))
    assert reply.code == codes.CONTROLLER_ELECT_MASTER_FAILED
    assert "a learner" in str(reply.remark)


def test_no_epoch_is_left_above_an_absurd_claim() -> None:
    machine = group_of_three()
    reply = run(machine, elect(seen(2, MAX_EPOCH), trigger=Trigger.CONTROLLER))
    assert (reply.code, reply.records) == (codes.CONTROLLER_ELECT_MASTER_FAILED, ())


# Cleaning


def test_cleaning_is_refused_for_living_brokers_and_masters_unless_told_otherwise() -> None:
    machine = group_of_three()
    invalid = codes.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
    assert run(machine, clean(None)).code == invalid
    assert run(machine, clean([2], alive=(2, 3))).code == invalid
    assert run(machine, clean([1], name="broker-z")).code == invalid
    assert run(machine, clean([3], alive=(2,))).code == codes.SUCCESS
    group = group_of(machine)
    assert (sorted(group.replicas), group.sync_state_set, group.sync_state_set_epoch) == ([1, 2], (1, 2), 3)


def test_cleaning_the_master_ends_its_epoch() -> None:
    machine = group_of_three()
    assert run(machine, clean([1], living=True, alive=(1,))).code == codes.SUCCESS
    group = group_of(machine)
    assert (group.master_broker_id, group.master_epoch, group.sync_state_set) == (None, 2, (2, 3))


@pytest.mark.parametrize("how", [clean(None, living=True), clean([1, 2, 3], living=True)])
def test_no_epoch_and_no_id_comes_back_after_cleaning_a_group(how: object) -> None:
    machine = group_of_three()
    run(machine, register(2, known_epoch=30))
    run(machine, how)  # type: ignore[arg-type]
    assert NAME not in machine.state.groups
    assert machine.state.next_broker_id(NAME) == 4
    assert run(machine, register(2)).code == codes.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    assert run(machine, apply_id(1)).code == codes.CONTROLLER_BROKER_ID_INVALID
    run(machine, apply_id(4))
    run(machine, elect(seen(4, -1, 0), wanted=4))
    group = group_of(machine)
    assert group.master_epoch > 30
    assert group.sync_state_set_epoch > 2


def test_a_set_emptied_by_cleaning_elects_nobody_without_unclean() -> None:
    machine = group_of_three()
    run(machine, alter([1, 2], set_epoch=2))
    run(machine, clean([1, 2], living=True))
    assert run(machine, elect(seen(3), wanted=3)).code == codes.CONTROLLER_ELECT_MASTER_FAILED
    assert run(machine, elect(seen(3), wanted=3, unclean=True)).code == codes.SUCCESS
