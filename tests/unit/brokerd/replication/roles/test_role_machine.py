"""One broker's role, and every switch from one role to another."""

from __future__ import annotations

import pytest

from brokerd.replication.log import LogPosition
from brokerd.replication.roles.effects import (
    Ask,
    CloseConnection,
    Connect,
    Effect,
    FailWaiters,
    PersistEpochs,
    PersistMasterEpoch,
    RequestFlush,
    Role,
    RoleChanged,
    RoleView,
    SettleLog,
)
from brokerd.replication.roles.role_machine import SWITCHES, Event, RoleMachine, Step
from brokerd.replication.settings import ReplicationSettings
from brokerd.replication.wire.frames import Handshake
from tests.unit.brokerd.replication.epochs.test_epochs import epochs, text


def machine(entries: str = "", *, end: int = 0, highest: int = 0, minimum: int = 0, **settings: object) -> RoleMachine:
    made = RoleMachine(ReplicationSettings(**settings), epochs(entries), highest, LogPosition(minimum, end, end), 0, 0)
    made.identify(1)
    return made


def view(master: int | None, epoch: int, members: set[int] | None = None, set_epoch: int = 1) -> RoleView:
    address = f"b{master}" if master else ""
    return RoleView(master, epoch, frozenset(members or ({master} if master else ())), set_epoch, address, address)


def promoted(entries: str = "", *, end: int = 0, epoch: int = 3) -> RoleMachine:
    made = machine(entries, end=end)
    made.observe(view(1, epoch), 0)
    made.log_settled(end, 0)
    made.take_effects()
    return made


def kinds(effects: list[Effect]) -> list[type | Ask]:
    return [effect if isinstance(effect, Ask) else type(effect) for effect in effects]


def test_promotion_settles_the_log_before_the_epoch_begins() -> None:
    made = machine("1@0", end=120)
    made.observe(view(1, 3), 0)
    assert made.role is Role.PROMOTING
    assert not made.mastership
    assert made.take_effects() == [FailWaiters(), PersistMasterEpoch(3), SettleLog()]
    made.log_settled(117, 0)  # three bytes were no whole record
    assert made.take_effects() == [PersistEpochs(((1, 0), (3, 117))), RoleChanged(Role.MASTER, 3)]
    assert (made.role, made.acknowledged_offset, made.confirm_offset) == (Role.MASTER, 117, 117)


def test_an_epoch_that_this_broker_has_served_is_not_served_again() -> None:
    made = machine("1@0 3@100", end=120, highest=3)
    made.observe(view(1, 3), 0)
    assert made.role is Role.FENCED
    assert made.take_effects() == [Ask.ELECTION]
    made.observe(view(1, 4), 0)
    assert made.role is Role.PROMOTING


def test_the_highest_epoch_outlives_the_process_whoever_tells_an_older_one() -> None:
    made = machine("1@0", end=120, highest=9)
    for old in (view(2, 8), view(1, 8)):
        made.observe(old, 0)
        assert (made.role, made.take_effects()) == (Role.FENCED, [])
        assert "has seen 9" in made.stale_view
    made.observe(view(None, 0), 0)
    assert (made.role, made.take_effects()) == (Role.FENCED, [Ask.ELECTION]), "controllers that lost their data"
    made.observe(view(2, 9), 0)
    assert (made.role, made.stale_view) == (Role.REPLICA, "")


def test_demotion_flips_fails_and_closes_before_it_touches_anything() -> None:
    made = promoted("1@0", end=120)
    made.accepted(7, 0)
    made.observe(view(2, 4), 0)
    assert made.take_effects() == [
        FailWaiters(),
        CloseConnection(7, "broker 2 is master of epoch 4"),
        RoleChanged(Role.FENCED, 3),
        PersistMasterEpoch(4),
        RoleChanged(Role.REPLICA, 4),
        Connect("b2", 1),
    ]
    assert made.acknowledged_offset == 0
    with pytest.raises(AssertionError):
        made.appended(200)


def test_a_new_epoch_of_the_same_master_starts_everything_anew() -> None:
    made = promoted("1@0", end=120)
    made.accepted(7, 0)
    made.handshake(7, Handshake(1), 0)
    made.appended(150)
    made.observe(view(1, 5), 0)
    effects = made.take_effects()
    assert kinds(effects)[-2:] == [PersistMasterEpoch, SettleLog]
    assert any(isinstance(effect, CloseConnection) and effect.connection == 7 for effect in effects)
    made.log_settled(150, 0)
    assert text(made.epochs) == "1@0 3@120 5@150"


def test_two_switches_without_writes_leave_one_epoch() -> None:
    made = promoted("1@0", end=120, epoch=3)
    made.observe(view(2, 4), 0)
    made.observe(view(1, 5), 0)
    made.log_settled(120, 0)
    assert text(made.epochs) == "1@0 5@120", "epoch 3 got no byte here: what comes next is epoch 5's"


def test_no_master_known_means_no_role_and_a_wish() -> None:
    made = promoted("1@0", end=120)
    made.observe(view(None, 4), 0)
    assert made.role is Role.FENCED
    assert kinds(made.take_effects()) == [FailWaiters, RoleChanged, PersistMasterEpoch, Ask.ELECTION]
    made.observe(view(None, 4), 0)
    assert made.take_effects() == [Ask.ELECTION]
    made.observe(view(1, 4), 0)
    assert made.role is Role.FENCED, "an epoch without a master gets none later"


def test_a_learner_wishes_nothing() -> None:
    made = machine(learner=True)
    made.observe(view(None, 0), 0)
    assert made.take_effects() == []


def test_the_same_master_again_changes_nothing_but_the_set() -> None:
    made = machine("1@0", end=120)
    made.observe(view(2, 4, {2}), 0)
    made.take_effects()
    made.observe(view(2, 4, {1, 2}, 2), 0)
    assert made.take_effects() == []
    assert made.followership is not None
    assert made.followership.in_set
    made.observe(view(3, 4), 0)  # an epoch has one master for ever
    assert made.followership.master_id == 2


def test_a_replica_follows_the_next_master_on_a_new_connection() -> None:
    made = machine("1@0", end=120)
    made.observe(view(2, 4), 0)
    first = next(effect for effect in made.take_effects() if isinstance(effect, Connect))
    made.connected(first.attempt, 5, 0)
    made.take_effects()
    made.observe(view(3, 5), 0)
    effects = made.take_effects()
    assert CloseConnection(5, "broker 3 is master of epoch 5") in effects
    assert effects[-1] == Connect("b3", 1)
    made.connected(99, 6, 0)
    assert CloseConnection(6, "no longer wanted") in made.take_effects()


def test_the_listener_refuses_everybody_unless_master() -> None:
    made = machine("1@0", end=120)
    made.accepted(7, 0)
    assert made.take_effects() == [CloseConnection(7, "this broker is not the master")]
    made.observe(view(1, 3), 0)
    made.take_effects()
    made.accepted(8, 0)
    assert made.take_effects() == [CloseConnection(8, "this broker is not the master")], "nor while it is promoted"


def test_data_without_epochs_gets_number_0_when_its_holder_is_elected() -> None:
    made = machine("", end=120, minimum=64)
    made.observe(view(1, 1), 0)
    made.log_settled(120, 0)
    assert text(made.epochs) == "0@64 1@120"
    empty = machine()
    empty.observe(view(1, 1), 0)
    empty.log_settled(0, 0)
    assert text(empty.epochs) == "1@0"


def test_epochs_beyond_the_recovered_log_are_forgotten() -> None:
    made = machine("1@0 3@100 4@130", end=120)
    assert made.take_effects() == [PersistEpochs(((1, 0), (3, 100)))]


def test_retention_takes_old_epochs_along() -> None:
    made = promoted("1@0 2@50", end=120)
    made.prefix_removed(64)
    assert made.take_effects() == [PersistEpochs(((2, 50), (3, 120)))]
    made.prefix_removed(80)
    assert made.take_effects() == []


def test_a_process_that_stood_still_asks_what_became_of_the_group() -> None:
    made = promoted(end=120)
    made.tick(50, 50)
    made.take_effects()
    made.tick(14_050, 50)
    assert Ask.SYNC in made.take_effects()


def test_the_confirm_offset_survives_a_switch_of_roles() -> None:
    made = promoted("1@0", end=120)
    made.observe(view(2, 4), 0)
    assert made.confirm_offset == 120
    made.observe(view(None, 5), 0)
    assert made.confirm_offset == 120


def test_a_failure_ends_every_role_for_good() -> None:
    made = promoted(end=120)
    made.fail("the disk broke", 0)
    assert kinds(made.take_effects()) == [FailWaiters, RoleChanged]
    made.observe(view(1, 9), 0)
    made.observe(view(2, 10), 0)
    assert (made.role, made.take_effects()) == (Role.FENCED, [])


def test_answers_and_frames_for_a_role_that_ended_are_nothing() -> None:
    made = machine("1@0", end=120)
    made.observe(view(2, 4), 0)
    made.take_effects()
    made.proposal_accepted(1, {1, 2}, 9, 0)
    made.proposal_failed(1, 2001, 0)
    made.proposal_failed(1, None, 0)
    made.acked(3, 120, 0)
    made.handshake(3, Handshake(2), 0)
    made.log_settled(120, 0)
    assert made.take_effects() == []
    assert made.role is Role.REPLICA


def in_role(role: Role) -> RoleMachine:
    """A broker of this role that has seen epoch 3, and the views of it."""
    made = machine("1@0", end=100)
    if role is Role.FENCED:
        made.observe(view(None, 3), 0)
    elif role is Role.REPLICA:
        made.observe(view(2, 3), 0)
    else:
        made.observe(view(1, 3), 0)
        if role is Role.MASTER:
            made.log_settled(100, 0)
    made.take_effects()
    assert made.role is role
    return made


NEXT_VIEW = {
    Event.MASTER_LOST: view(None, 4),
    Event.OTHER_ELECTED: view(2, 4),
    Event.ELECTED: view(1, 4),
    Event.SERVED_BEFORE: view(1, 3),
}
# What a step leaves in the outbox of a broker that has nobody connected and no master's address that anybody answers at.
EFFECTS = {
    Step.FAIL_WAITERS: [FailWaiters],
    Step.CLOSE_CONNECTIONS: [],
    Step.TELL_FENCED: [RoleChanged],
    Step.TELL_ROLE: [RoleChanged],
    Step.SETTLE_LOG: [SettleLog],
    Step.BEGIN_EPOCH: [PersistEpochs],
    Step.FOLLOW: [Connect],
    Step.FOLLOW_CLASSIC: [],
    Step.ASK_ELECTION: [Ask.ELECTION],
    Step.ASK_SYNC: [Ask.SYNC],
}


@pytest.mark.parametrize("event", Event, ids=lambda event: event.name.lower())
@pytest.mark.parametrize("role", Role, ids=lambda role: role.value)
def test_a_role_changes_as_the_table_says_and_not_otherwise(role: Role, event: Event) -> None:
    made = in_role(role)
    made.view = NEXT_VIEW.get(event, made.view)
    switch = SWITCHES.get((role, event))
    if switch is None:
        with pytest.raises(AssertionError, match="cannot happen"):
            made._switch(event, 0)
        assert (made.role, made.take_effects()) == (role, [])
        return
    made._switch(event, 0)
    assert made.role is switch.to
    assert (made.mastership is not None) == (switch.to is Role.MASTER)
    assert (made.followership is not None) == (switch.to is Role.REPLICA)
    persisted = [PersistMasterEpoch] if event in NEXT_VIEW and event is not Event.SERVED_BEFORE else []
    expected = [kind for step in switch.steps for kind in (persisted if step is Step.PERSIST_EPOCH else EFFECTS[step])]
    assert kinds(made.take_effects()) == expected


def test_what_cannot_happen_in_a_role_is_not_taken_for_a_mistake_when_others_say_it() -> None:
    for role in Role:
        made = in_role(role)
        before = made.role
        if role is not Role.MASTER:
            made.saw_newer_epoch(7, 9, 0)
        if role is not Role.PROMOTING:
            made.log_settled(100, 0)
        made.observe(view(2, 2), 0)  # an older epoch
        assert made.role is before


def test_a_switch_that_breaks_half_way_leaves_the_broker_fenced_and_does_nothing_more() -> None:
    made = in_role(Role.MASTER)
    made.accepted(7, 0)
    made.view = view(2, 2)  # no controller gets that far
    with pytest.raises(AssertionError, match="fell from 3 to 2"):
        made._switch(Event.OTHER_ELECTED, 0)
    made.fail("an invariant broke", 0)
    assert made.role is Role.FENCED
    assert kinds(made.take_effects()) == [FailWaiters, CloseConnection, RoleChanged, FailWaiters]


# A disk that stands still


def standing(role: Role, *, until_ms: int = 2000) -> RoleMachine:
    """A broker in the role, whose log has ten bytes that do not become durable."""
    made = in_role(role)
    made.log.end_offset += 10
    for now_ms in range(50, until_ms + 1, 50):
        made.tick(now_ms, 50)
    assert made.disk.stands
    made.take_effects()
    return made


def go_on(made: RoleMachine, now_ms: int) -> None:
    made.flushed(made.log.end_offset, now_ms)


@pytest.mark.parametrize("role", [Role.MASTER, Role.REPLICA], ids=lambda role: role.value)
def test_while_the_disk_stands_a_newer_view_ends_the_role_and_writes_nothing(role: Role) -> None:
    made = standing(role)
    made.observe(view(3, 4), 2000)
    assert made.role is Role.FENCED
    assert made.acknowledged_offset == 0
    effects = made.take_effects()
    assert kinds(effects)[:1] == [FailWaiters]
    assert RoleChanged(Role.FENCED, 3) in effects
    assert not {PersistMasterEpoch, PersistEpochs, SettleLog} & {type(each) for each in effects}
    assert made.view == view(3, 4), "clients are told who leads"
    for now_ms in range(2050, 5000, 50):
        made.tick(now_ms, 50)
    assert made.take_effects() == [], "a broker without a role has nothing to do meanwhile"
    go_on(made, 5000)
    assert made.role is Role.REPLICA
    assert made.take_effects() == [FailWaiters(), PersistMasterEpoch(4), RoleChanged(Role.REPLICA, 4), Connect("b3", 1)]


def test_the_newest_of_the_views_is_carried_out_when_the_disk_goes_on() -> None:
    made = standing(Role.MASTER)
    for each in (view(2, 4), view(1, 6), view(3, 5), view(1, 3), view(2, 2)):
        made.observe(each, 2000)
    made.take_effects()
    go_on(made, 2100)
    assert made.role is Role.PROMOTING
    assert made.take_effects() == [FailWaiters(), PersistMasterEpoch(6), SettleLog()]


def test_a_disk_that_went_on_by_itself_is_noticed_by_the_next_look() -> None:
    made = standing(Role.MASTER)
    made.observe(view(None, 4), 2000)
    made.log.flushed_offset = made.log.end_offset
    made.tick(2050, 50)
    assert kinds(made.take_effects())[-2:] == [PersistMasterEpoch, Ask.ELECTION]


def test_a_master_whose_disk_stands_goes_on_as_long_as_nobody_else_is_elected() -> None:
    made = standing(Role.MASTER)
    made.observe(view(1, 3, {1, 2}, 7), 2000)
    assert made.role is Role.MASTER
    go_on(made, 2100)
    assert made.role is Role.MASTER


def test_before_a_disk_is_blamed_a_sync_is_asked_for() -> None:
    made = in_role(Role.MASTER)
    made.log.end_offset += 10
    asked_ms = [
        now_ms
        for now_ms in range(50, 2001, 50)
        if made.tick(now_ms, 50) is None and RequestFlush() in made.take_effects()
    ]
    assert len(asked_ms) == 1
    assert asked_ms[0] < made.settings.disk_stands_ms


def test_who_acknowledges_from_memory_blames_no_disk() -> None:
    made = machine("1@0 3@100", end=100, ack_after="append")
    made.observe(view(1, 4), 0)
    made.log_settled(100, 0)
    made.appended(110)
    for now_ms in range(50, 5001, 50):
        made.tick(now_ms, 50)
    assert not made.disk.stands
