"""How the suite is spread over processes (`pytest -n`): all workers share what is self-contained, then one does the rest alone.

A file is the unit of the first part: its tests run in one worker and in their order, and share its fixtures. When no file is
left, the workers but one end. The one that stays then has the machine for itself, for the tests that start daemons or measure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import groupby

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScheduling
from xdist.workermanage import WorkerController


class TogetherThenAlone(LoadScheduling):
    """A schedule of xdist; `is_alone` tells by its id whether a test wants the machine for itself."""

    def __init__(self, config: pytest.Config, log: Producer | None, is_alone: Callable[[str], bool]) -> None:
        super().__init__(config, log)
        self._is_alone = is_alone
        self._files: deque[list[int]] = deque()
        self._alone: list[int] = []

    @property
    def tests_finished(self) -> bool:
        """Whether every test is with a worker, and none has more to do than its last."""
        return super().tests_finished and not self._files and not self._alone

    @property
    def has_pending(self) -> bool:
        """Whether any test is still to be run."""
        return super().has_pending or bool(self._files) or bool(self._alone)

    def schedule(self) -> None:
        """Begin, or go on with a worker that took the place of a dead one."""
        if self.collection is None:
            if not self._check_nodes_have_same_collection():
                return
            self.collection = next(iter(self.node2collection.values()))
            self._put_back(range(len(self.collection)))
        for node in self.nodes:
            self.check_schedule(node)

    def check_schedule(self, node: WorkerController, duration: float = 0) -> None:
        """Give the worker more, or let it end; a worker runs a test only when it knows the next one or that there is none."""
        if node.shutting_down:
            return
        while self._files and self._has_little(node):
            self._give(node, self._files.popleft())
        if not self._has_little(node):
            return
        if self._alone:
            if any(not other.shutting_down for other in self.nodes if other is not node):
                node.shutdown()
            elif len(self.nodes) == 1:
                alone, self._alone = self._alone, []
                self._give(node, alone)
        if not self._alone and self._has_little(node):
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

    def _give(self, node: WorkerController, tests: list[int]) -> None:
        self.node2pending[node].extend(tests)
        node.send_runtest_some(tests)

    def _put_back(self, tests: Sequence[int]) -> None:
        assert self.collection is not None or not tests
        ids = self.collection or []
        self._alone += [test for test in tests if self._is_alone(ids[test])]
        together = [test for test in tests if not self._is_alone(ids[test])]
        self._files.extend(list(group) for _, group in groupby(together, lambda test: ids[test].partition("::")[0]))
