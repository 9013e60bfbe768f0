"""A planned switch over a whole group in one process: nothing of the log's end is cut, whether it was acknowledged or not."""

from __future__ import annotations

import pytest

from brokerd.store.put_status import PutStatus
from tests.unit.brokerd.replication.group import Group
from tests.unit.brokerd.replication.roles.test_driver import healthy


class Told:
    """What the master said of the hand-over."""

    def __init__(self) -> None:
        self.answers: list[tuple[str, int]] = []

    def __call__(self, reason: str, end_offset: int) -> None:
        self.answers.append((reason, end_offset))


def ask(
    group: Group, successor: int = 2, *, epoch: int | None = None, wait_ms: int = 1000, hold_ms: int = 2000
) -> Told:
    told = Told()
    master_epoch = group[1].machine.master_epoch if epoch is None else epoch
    group[1].driver.hand_over(successor, master_epoch, wait_ms, hold_ms, told, group.now_ms)
    return told


def test_what_nobody_had_acknowledged_yet_is_on_the_new_master_too() -> None:
    group = healthy()
    for _ in range(5):
        group.append(group[1])
    told = ask(group)
    assert not group[1].driver.accepts_messages
    assert told.answers == [], "the successor has nothing of it yet"
    group.settle(2)
    end = group[1].log.end_offset
    assert told.answers == [("", end)]
    assert group.outcomes[-5:] == [PutStatus.PUT_OK] * 5
    before = group[1].log.records()
    group.controller.elect(2)
    group.push_all()
    group.settle(20)
    assert group[2].is_master
    assert group[2].log.records() == before
    assert group[1].log.records() == before, "nothing was cut from the old master"
    assert PutStatus.SERVICE_NOT_AVAILABLE not in group.outcomes


@pytest.mark.parametrize("copies", [1, 2])
def test_what_one_or_two_acknowledged_is_with_the_successor(copies: int) -> None:
    """Where not all members are asked for: a master that lives, and is full, or is to be replaced as planned, loses nothing."""
    group = healthy(all_ack_in_sync_state_set=False, in_sync_replicas=copies)
    for _ in range(5):
        group.append(group[1])
    told = ask(group)
    group.settle(8)
    assert told.answers == [("", group[1].log.end_offset)]
    assert group.outcomes[-5:] == [PutStatus.PUT_OK] * 5
    before = group[1].log.records()
    group.controller.elect(2)
    group.push_all()
    group.settle(20)
    assert group[2].log.records() == before == group[1].log.records()


def test_what_is_to_be_recorded_is_so_before_nothing_is_taken_and_goes_along() -> None:
    group = healthy()
    recorded: list[bool] = []

    def record() -> None:
        recorded.append(group[1].driver.accepts_messages)
        group.append(group[1])

    group[1].driver.hand_over_listeners.append(record)
    end = group[1].log.end_offset
    ask(group, epoch=0)
    assert not recorded, "it is not this master's epoch"
    told = ask(group)
    ask(group, 3)
    assert recorded == [True], "once, as the second time nothing is taken"
    assert group[1].log.end_offset > end
    group.settle(2)
    assert told.answers == [("another switch was asked for", group[1].log.end_offset)]


def test_without_a_hand_over_the_same_switch_cuts_the_end() -> None:
    group = healthy()
    before = group[1].log.records()
    for _ in range(5):
        group.append(group[1])
    group.controller.elect(2)
    group.push_all()
    group.settle(20)
    assert group[2].is_master
    assert group[1].log.records() == before
    assert group.outcomes[-5:] == [PutStatus.SERVICE_NOT_AVAILABLE] * 5


def test_a_third_member_that_hangs_does_not_hold_the_switch_up_for_long() -> None:
    group = healthy(not_caught_up_ms=100_000)
    group[3].log.request_flush = lambda: None
    group.append(group[1])
    told = ask(group)
    group.settle(3)
    assert told.answers == [], "senders get a moment to be answered"
    group.settle(5)
    assert told.answers == [("", group[1].log.end_offset)]


def test_a_successor_that_lags_is_refused_and_the_master_goes_on() -> None:
    group = healthy(not_caught_up_ms=100_000)
    group[2].log.request_flush = lambda: None
    group.append(group[1])
    told = ask(group, wait_ms=500)
    group.settle(9)
    assert told.answers == []
    group.settle(2)
    [(reason, _)] = told.answers
    assert reason.startswith("broker 2 still lacks ")
    assert group[1].driver.accepts_messages


def test_who_is_not_in_sync_cannot_take_over() -> None:
    group = healthy()
    [(reason, _)] = ask(group, successor=4).answers
    assert reason == "broker 4 is not in sync with this master"
    assert group[1].driver.accepts_messages
    for wire in [each for each in group.wires.values() if each.replica is group[2]]:
        group.cut(wire)
    [(reason, _)] = ask(group).answers
    assert reason == "broker 2 is not in sync with this master"


def test_only_the_master_of_that_epoch_hands_over() -> None:
    group = healthy()
    assert ask(group, epoch=7).answers == [("this broker is not the master of epoch 7", 0)]
    told = Told()
    group[2].driver.hand_over(3, 1, 1000, 1000, told, group.now_ms)
    assert told.answers == [("this broker is not the master of epoch 1", 0)]


def test_when_nobody_decides_the_master_goes_on_after_the_hold() -> None:
    group = healthy()
    told = ask(group, hold_ms=300)
    assert told.answers == [("", group[1].log.end_offset)]
    group.settle(5)
    assert not group[1].driver.accepts_messages
    group.settle(2)
    assert group[1].driver.accepts_messages
    group.append(group[1])
    group.settle(5)
    assert group.outcomes[-1] is PutStatus.PUT_OK


def test_another_request_ends_the_first_and_a_lost_role_ends_any() -> None:
    group = healthy(not_caught_up_ms=100_000)
    group[2].log.request_flush = group[3].log.request_flush = lambda: None
    group.append(group[1])
    first, second = ask(group, successor=2), ask(group, successor=3)
    assert first.answers == [("another switch was asked for", group[1].log.end_offset)]
    group.controller.elect(3)
    group.push_all()
    assert [reason for reason, _ in second.answers] == ["this broker is not the master any more"]
    assert len(first.answers) == 1


def test_an_absurd_wait_is_bounded() -> None:
    group = healthy()
    told = ask(group, hold_ms=10**12)
    assert len(told.answers) == 1
    group.settle(10_000 // 50 + 2)
    assert group[1].driver.accepts_messages
