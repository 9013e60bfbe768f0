"""What a change of role means, for every pair of roles: the table, and that the core carries it out in its order."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from brokerd.composition.residents import Residents
from brokerd.composition.role_changes import ROLE_CHANGES, Step
from brokerd.replication.roles.effects import Role
from brokerd.store.store import MessageStore
from tests.support.alone import AloneBroker
from tests.support.disks import MemoryDisk
from tests.support.turns import Turns
from tests.unit.brokerd.store.stores import SETTINGS, STORE_HOST

PAIRS = list(itertools.product(Role, Role))


def test_every_pair_stands_in_the_table() -> None:
    assert set(ROLE_CHANGES) == set(PAIRS)


@pytest.mark.parametrize(("before", "after"), PAIRS, ids=[f"{a.value}-{b.value}" for a, b in PAIRS])
def test_only_a_master_leads_and_whoever_was_one_reads_its_log_again(before: Role, after: Role) -> None:
    steps = list(ROLE_CHANGES[before, after])
    if before is Role.MASTER:
        assert steps[:3] == [Step.REFUSE_APPENDS, Step.STEP_DOWN, Step.REBUILD]
        del steps[:3]
    if after is Role.MASTER:
        assert steps == [Step.CATCH_UP, Step.TAKE_APPENDS, Step.LEAD]
        steps.clear()
    assert not steps


@pytest.mark.parametrize(("before", "after"), PAIRS, ids=[f"{a.value}-{b.value}" for a, b in PAIRS])
def test_the_core_takes_the_steps_with_all_residents_in_their_order(
    before: Role, after: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = AloneBroker(MemoryDisk(), Turns(), SETTINGS, STORE_HOST)
    broker.replica.become(before)
    broker.turns.run(10)
    taken: list[tuple[str, str]] = []
    stands = {step: step.name.lower() for step in (Step.CATCH_UP, Step.LEAD, Step.STEP_DOWN, Step.REBUILD)}

    def watched(owner: object, method: str, name: str) -> None:
        original: Callable[..., None] = getattr(owner, method)

        def call(*given: object) -> None:
            taken.append((method if name != "store" else f"{method} {given[0]}", name))
            original(*given)

        monkeypatch.setattr(owner, method, call)

    for name in Residents._fields:
        for method in stands.values():
            watched(getattr(broker.core, name), method, name)
    store: MessageStore = broker.core.store
    watched(store, "set_appendable", "store")
    broker.replica.become(after, 2)

    expected: list[tuple[str, str]] = []
    for step in ROLE_CHANGES[before, after]:
        if step in stands:
            names = reversed(Residents._fields) if step is Step.STEP_DOWN else Residents._fields
            expected += [(stands[step], name) for name in names]
        else:
            expected.append((f"set_appendable {step is Step.TAKE_APPENDS}", "store"))
    assert taken == expected
    assert store.is_appendable == (after is Role.MASTER)
