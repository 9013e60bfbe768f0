"""How many copies an acknowledgement means: the whole table, and what holds for any settings and any group."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.replication.required_set.quorum import (
    ALL,
    Kind,
    Quorum,
    decide,
    kind_of,
    overdue,
    patience_ms,
    position_of,
    weaknesses,
)
from brokerd.replication.settings import ReplicationSettings
from brokerd.store.put_status import PutStatus

WEAK = ReplicationSettings(all_ack_in_sync_state_set=False)
ACTING = replace(WEAK, roles="fixed", acting_master=True)
FIXED = replace(WEAK, roles="fixed")
KINDS = {Kind.CONTROLLERS: WEAK, Kind.ACTING_MASTER: ACTING, Kind.FIXED: FIXED}


@st.composite
def some_settings(draw: st.DrawFn) -> ReplicationSettings:
    return replace(
        draw(st.sampled_from(list(KINDS.values()))),
        all_ack_in_sync_state_set=draw(st.booleans()),
        in_sync_replicas=draw(st.integers(1, 5)),
        min_in_sync_replicas=draw(st.integers(1, 5)),
        auto_in_sync_replicas=draw(st.booleans()),
    )


def test_each_kind_of_group_has_its_row() -> None:
    for kind, settings in KINDS.items():
        assert kind_of(settings) is kind


@pytest.mark.parametrize(("members", "minimum"), [*itertools.product(range(1, 6), repeat=2)])
def test_by_default_everybody_must_have_it(members: int, minimum: int) -> None:
    for settings in KINDS.values():
        strong = replace(settings, all_ack_in_sync_state_set=True, min_in_sync_replicas=minimum)
        for near in range(members):
            assert decide(strong, members, near) == Quorum(ALL, refused=members < minimum)


@pytest.mark.parametrize(
    ("wanted", "minimum", "members", "auto"), [*itertools.product(range(1, 5), range(1, 5), range(1, 5), (False, True))]
)
def test_with_controllers_the_number_is_never_lowered(wanted: int, minimum: int, members: int, auto: bool) -> None:
    settings = replace(WEAK, in_sync_replicas=wanted, min_in_sync_replicas=minimum, auto_in_sync_replicas=auto)
    for near in range(5):
        assert decide(settings, members, near) == Quorum(wanted, refused=members < minimum)


@pytest.mark.parametrize(("wanted", "near"), [*itertools.product(range(1, 5), range(5))])
def test_with_fixed_roles_alone_nothing_is_refused(wanted: int, near: int) -> None:
    for minimum, auto in itertools.product(range(1, 5), (False, True)):
        settings = replace(FIXED, in_sync_replicas=wanted, min_in_sync_replicas=minimum, auto_in_sync_replicas=auto)
        assert decide(settings, 1 + near, near) == Quorum(wanted, refused=False)


@pytest.mark.parametrize(
    ("wanted", "minimum", "auto", "near", "expected"),
    [
        pytest.param(2, 1, True, 1, Quorum(2, False), id="two replicas, both there"),
        pytest.param(2, 1, True, 0, Quorum(1, False), id="two replicas, the other one died"),
        pytest.param(2, 1, True, 2, Quorum(2, False), id="three replicas, all there"),
        pytest.param(2, 1, False, 1, Quorum(2, False), id="three replicas, one died"),
        pytest.param(3, 2, True, 0, Quorum(2, True), id="three wanted, two died, two are the least"),
        pytest.param(3, 2, True, 1, Quorum(2, False), id="three wanted, one died, two are the least"),
        pytest.param(2, 1, False, 0, Quorum(2, True), id="without the switch a missing copy means refusal"),
        pytest.param(1, 1, False, 0, Quorum(1, False), id="one copy is the master's"),
    ],
)
def test_a_replica_that_acts_in_its_masters_place_means_downgrade_or_refusal(
    wanted: int, minimum: int, auto: bool, near: int, expected: Quorum
) -> None:
    settings = replace(ACTING, in_sync_replicas=wanted, min_in_sync_replicas=minimum, auto_in_sync_replicas=auto)
    assert decide(settings, 1 + near, near) == expected


@given(some_settings(), st.integers(1, 6), st.integers(0, 5))
def test_no_downgrade_goes_below_the_minimum_and_only_the_acting_kind_has_one(
    settings: ReplicationSettings, members: int, near: int
) -> None:
    quorum = decide(settings, members, near)
    if quorum.needed != ALL:
        assert quorum.needed >= min(settings.in_sync_replicas, settings.min_in_sync_replicas)
    if ALL != quorum.needed < settings.in_sync_replicas:
        assert kind_of(settings) is Kind.ACTING_MASTER
        assert settings.auto_in_sync_replicas
        assert quorum.needed >= settings.min_in_sync_replicas
    if not quorum.refused and kind_of(settings) is Kind.ACTING_MASTER and quorum.needed != ALL:
        assert quorum.needed <= 1 + near, "what is taken can be acknowledged"
    if quorum.needed == ALL and not quorum.refused:
        assert members >= settings.min_in_sync_replicas


@given(some_settings(), st.integers(1, 5), st.integers(0, 5), st.integers(0, 5))
def test_more_replicas_never_mean_refusal_or_fewer_copies(
    settings: ReplicationSettings, members: int, near: int, more: int
) -> None:
    before, after = decide(settings, members, near), decide(settings, members + more, near + more)
    assert before.refused or not after.refused
    assert after.needed >= before.needed


@given(st.integers(1, 5), st.integers(0, 50), st.lists(st.integers(-1, 50), max_size=5))
def test_the_position_is_the_last_that_enough_copies_reach(needed: int, own: int, replicas: list[int]) -> None:
    """Against the slow way to say it."""
    position = position_of(Quorum(needed, False), own, replicas)
    having = [at for at in range(own + 1) if 1 + sum(each >= at for each in replicas) >= needed]
    assert position == (max(having) if having else -1) or (position == -1 and needed > 1 + len(replicas))
    everybody = position_of(Quorum(ALL, False), own, replicas)
    assert everybody == min([own, *replicas])


def test_one_copy_waits_for_nobody() -> None:
    assert position_of(Quorum(1, False), 70, [-1, 3]) == 70
    assert position_of(Quorum(2, False), 70, [-1, 3]) == 3
    assert position_of(Quorum(ALL, False), 70, [-1, 3]) == -1


DISK, REPLICAS = PutStatus.FLUSH_DISK_TIMEOUT, PutStatus.FLUSH_SLAVE_TIMEOUT


@pytest.mark.parametrize(
    ("waited_ms", "flushed", "replicated", "expected"),
    [
        (2999, False, False, None),
        (3000, True, False, REPLICAS),
        (3000, False, False, None),  # the disk has two more seconds, and then both are known
        (3000, False, True, None),
        (4999, False, True, None),
        (5000, False, True, DISK),
        (5000, False, False, REPLICAS),  # the replicas' status is the one that is told when both are late
        (9000, True, True, None),  # acknowledged, and about to be told so
    ],
)
def test_which_time_out_is_told(waited_ms: int, flushed: bool, replicated: bool, expected: PutStatus | None) -> None:
    settings = ReplicationSettings(ack_timeout_ms=3000, flush_timeout_ms=5000)
    assert overdue(settings, waited_ms, flushed=flushed, replicated=replicated) is expected


@given(st.integers(100, 500), st.integers(100, 500), st.integers(0, 1000), st.booleans(), st.booleans())
def test_everybody_who_is_not_acknowledged_is_answered_in_the_end_and_nobody_before_his_time(
    ack_ms: int, flush_ms: int, waited_ms: int, flushed: bool, replicated: bool
) -> None:
    settings = ReplicationSettings(ack_timeout_ms=ack_ms, flush_timeout_ms=flush_ms)
    status = overdue(settings, waited_ms, flushed=flushed, replicated=replicated)
    if waited_ms >= max(ack_ms, flush_ms):
        assert (status is None) == (flushed and replicated)
    if waited_ms < patience_ms(settings):
        assert status is None
    if status is not None:
        later = overdue(settings, waited_ms + 1000, flushed=flushed, replicated=replicated)
        assert later is not None, "whoever is late stays late: the head of the line can be looked at alone"


def test_weak_settings_are_said_and_strong_ones_are_not() -> None:
    assert weaknesses(ReplicationSettings()) == []
    assert len(weaknesses(ReplicationSettings(plain_peers="10.0.0.7"))) == 1
    assert weaknesses(ReplicationSettings(min_in_sync_replicas=2, roles="fixed")) == []
    assert [each.partition("=")[0] for each in weaknesses(replace(WEAK, ack_after="append"))] == [
        "all_ack_in_sync_state_set",
        "ack_after",
    ]
    assert len(weaknesses(replace(ACTING, auto_in_sync_replicas=True))) == 2
