"""What a change of role means, for every pair of roles: only a master leads, and whoever was one reads its log again."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from brokerd.composition.residents import Residents
from brokerd.replication.roles.effects import Role
from brokerd.store.store import MessageStore
from tests.support.alone import AloneBroker
from tests.support.disks import MemoryDisk
from tests.support.turns import Turns
from tests.unit.brokerd.store.stores import SETTINGS, STORE_HOST

PAIRS = list(itertools.product(Role, Role))


@pytest.mark.parametrize(("before", "after"), PAIRS, ids=[f"{a.value}-{b.value}" for a, b in PAIRS])
def test_the_core_takes_the_steps_with_all_residents_in_their_order(
    before: Role, after: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = AloneBroker(MemoryDisk(), Turns(), SETTINGS, STORE_HOST)
    broker.replica.become(before)
    broker.turns.run(10)
    taken: list[tuple[str, str]] = []

    def watched(owner: object, method: str, name: str) -> None:
        original: Callable[..., None] = getattr(owner, method)

        def call(*given: object) -> None:
            taken.append((method if name != "store" else f"{method} {given[0]}", name))
            original(*given)

        monkeypatch.setattr(owner, method, call)

    for name in Residents._fields:
        for method in ("catch_up", "lead", "step_down", "rebuild"):
            watched(getattr(broker.core, name), method, name)
    store: MessageStore = broker.core.store
    watched(store, "set_appendable", "store")
    watched(store, "begin_queues", "queues")
    broker.replica.become(after, 2)

    names = Residents._fields
    expected: list[tuple[str, str]] = []
    if before is Role.MASTER:
        expected.append(("set_appendable False", "store"))
        expected += [("step_down", name) for name in reversed(names)]
        expected += [("rebuild", name) for name in names]
    if after is Role.MASTER:
        expected.append(("begin_queues", "queues"))  # before anybody reads what is not dispatched
        expected += [("catch_up", name) for name in names]
        expected.append(("set_appendable True", "store"))
        expected += [("lead", name) for name in names]
    assert taken == expected
    assert (store.refusal is None) == (after is Role.MASTER)
