"""How the suite is spread over processes (`pytest -n`): which worker runs what, and when.

Three kinds of tests. What is self-contained is shared by all workers. Tests that start daemons mostly wait for them, so they run
from the start beside the self-contained ones, but only a few at a time: two workers of three or four do so, and one of two. What
judges by the clock, or loads the machine itself, runs at the end in the one worker that stays when all others have ended.

A bundle is the unit: its tests run in one worker and in their order, and share its fixtures. Of two workers one takes the bundles
with daemons and the other what is self-contained; who has none of his own left helps the other one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from itertools import groupby
from typing import NamedTuple

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScheduling
from xdist.workermanage import WorkerController


class Kind(Enum):
    """What a test needs of the machine."""

    SELF_CONTAINED = "self-contained"
    DAEMONS = "daemons"
    ALONE = "alone"


class Share(NamedTuple):
    """Where a test belongs; those with the same bundle run in one worker, if they stand together in the suite's order."""

    kind: Kind
    bundle: str


class Shares(LoadScheduling):
    """A schedule of xdist; `share_of` tells by a test's id where it belongs."""

    def __init__(self, config: pytest.Config, log: Producer | None, share_of: Callable[[str], Share]) -> None:
        super().__init__(config, log)
        self._share_of = share_of
        self._shares: list[Share] = []  # of the collection's tests
        self._waiting: dict[Kind, deque[list[int]]] = {kind: deque() for kind in Kind}

    @property
    def tests_finished(self) -> bool:
        """Whether every test is with a worker, and none has more to do than its last."""
        return super().tests_finished and not any(self._waiting.values())

    @property
    def has_pending(self) -> bool:
        """Whether any test is still to be run."""
        return super().has_pending or any(self._waiting.values())

    def schedule(self) -> None:
        """Begin, or go on with a worker that took the place of a dead one."""
        if self.collection is None:
            if not self._check_nodes_have_same_collection():
                return
            self.collection = next(iter(self.node2collection.values()))
            self._shares = [self._share_of(test) for test in self.collection]
            self._put_back(range(len(self.collection)))
        for node in self.nodes:
            self.check_schedule(node)

    def check_schedule(self, node: WorkerController, duration: float = 0) -> None:
        """Give the worker more, or let it end; a worker runs a test only when it knows the next one or that there is none."""
        if node.shutting_down:
            return
        while self._has_little(node) and (bundle := self._next_bundle(node)):
            self.node2pending[node].extend(bundle)
            node.send_runtest_some(bundle)
        if self._has_little(node) and not self._stays_for_the_end(node):
            node.shutdown()

    def remove_node(self, node: WorkerController) -> str | None:
        """Forget a worker; return the test that it died of, if it died, and let others do what it had before it."""
        pending = self.node2pending.pop(node)
        crashed = self.collection[pending.pop(0)] if self.collection is not None and pending else None
        self._put_back(pending)
        for other in self.nodes:
            self.check_schedule(other)
        return crashed

    def mark_test_pending(self, item: str) -> None:
        """Run a test once more."""
        assert self.collection is not None
        self._put_back([self.collection.index(item)])
        for node in self.nodes:
            self.check_schedule(node)

    def _has_little(self, node: WorkerController) -> bool:
        return len(self.node2pending[node]) < 2

    def _next_bundle(self, node: WorkerController) -> list[int]:
        """What the worker is to do next: daemons when it is its turn, else what is self-contained; in the end what runs alone."""
        kinds = [Kind.SELF_CONTAINED]
        if self.numnodes == 1:
            kinds.append(Kind.DAEMONS)  # what is fast tells first
        elif (
            not self._waiting[Kind.SELF_CONTAINED] or self._workers_with_daemons(besides=node) < 2 * self.numnodes // 3
        ):
            kinds.insert(0, Kind.DAEMONS)
        if self.nodes == [node]:
            kinds.append(Kind.ALONE)
        return next((self._waiting[kind].popleft() for kind in kinds if self._waiting[kind]), [])

    def _workers_with_daemons(self, *, besides: WorkerController) -> int:
        others = (pending for node, pending in self.node2pending.items() if node is not besides)
        return sum(any(self._shares[test].kind is Kind.DAEMONS for test in pending) for pending in others)

    def _stays_for_the_end(self, node: WorkerController) -> bool:
        """Whether it waits for the others, which are ending, to be alone then."""
        return bool(self._waiting[Kind.ALONE]) and all(other.shutting_down for other in self.nodes if other is not node)

    def _put_back(self, tests: Iterable[int]) -> None:
        for share, bundle in groupby(tests, lambda test: self._shares[test]):
            self._waiting[share.kind].append(list(bundle))
