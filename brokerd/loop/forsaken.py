"""Threads for calls that may never end, such as those to a directory of a machine that is away: who stops waits for none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any, TypeVar

_T = TypeVar("_T")


class ForsakenThreads(Executor):
    """So many at most, begun when they are needed. A process that ends takes them along, whatever they are in: those of
    `ThreadPoolExecutor` it would wait for."""

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self._lock = threading.Lock()
        self._begun = 0
        self._unfinished = 0  # calls

    def submit(self, work: Callable[..., _T], /, *arguments: Any, **named: Any) -> Future[_T]:
        """Have one of them do it."""
        future: Future[_T] = Future()
        with self._lock:
            self._unfinished += 1
            if self._begun < min(self._unfinished, self._count):
                threading.Thread(target=self._work, name=f"{self._name}_{self._begun}", daemon=True).start()
                self._begun += 1
        self._calls.put((future, lambda: work(*arguments, **named)))
        return future

    def _work(self) -> None:
        while True:
            self._do(*self._calls.get())

    def _do(self, future: Future[Any], call: Callable[[], Any]) -> None:
        """Of which nothing is kept when it is done."""
        result, error = None, None
        if is_wanted := future.set_running_or_notify_cancel():
            try:
                result = call()
            except BaseException as raised:  # noqa: BLE001 (it is raised where the call is awaited)
                error = raised
        with self._lock:  # before anybody hears of it: he may have another one, for which this thread is there
            self._unfinished -= 1
        if error is not None:
            future.set_exception(error)
            del error, future  # which know each other
        elif is_wanted:
            future.set_result(result)
