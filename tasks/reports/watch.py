"""The thread beside a running report: tells how far it is, keeps its claim, and sees when it must end.

The job itself blocks inside Spark. Several times a second this thread stores the progress (which announces it), reads whether
somebody asked for the end, and then interrupts the run's Spark jobs by their tag, again and again until the job has noticed: an
interrupt that falls between two jobs hits nothing.

Some calls cannot be interrupted (a query being planned while no broker answers, say). So if the job does not react, the row is
ended without it after a moment; and if it still does not, the process is given up, for a report worker that hangs would keep all
later reports waiting.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from tasks.reports.context import Stop
from tasks.reports.progress import Progress
from tasks.reports.store import Store
from webapp.lifecycle import WorkOver

log = logging.getLogger(__name__)

EVERY_S = 0.25
CLAIM_EVERY_TICKS = 8
END_WITHOUT_JOB_TICKS = 6
GIVE_UP_TICKS = 240


class Watch:
    """Runs from entering to leaving the block."""

    def __init__(
        self,
        store: Store,
        progress: Progress,
        stop: Stop,
        *,
        keep_claim: Callable[[], bool],
        is_worker_stopping: Callable[[], bool],
        give_up: Callable[[], None],
    ) -> None:
        self._store = store
        self._progress = progress
        self._stop = stop
        self._keep_claim = keep_claim
        self._is_worker_stopping = is_worker_stopping
        self._give_up = give_up
        self._stopping_for = 0
        self._interrupt: Callable[[], None] | None = None
        self._spark_problem: Callable[[], str | None] | None = None
        self._ended = threading.Event()
        self._told: dict[str, Any] = {}
        self._thread = threading.Thread(target=self._run, name="report watch", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def use_spark(self, interrupt: Callable[[], None], problem: Callable[[], str | None]) -> None:
        """From now on there are Spark jobs: how to interrupt them, and whom to ask whether Spark is gone."""
        self._interrupt, self._spark_problem = interrupt, problem

    def release_spark(self) -> None:
        """There are none any more."""
        self._interrupt = self._spark_problem = None

    def _run(self) -> None:
        tick = 0
        try:
            while not self._ended.wait(EVERY_S):
                try:
                    self._tick(tick)
                except Exception:  # outermost edge of this thread: a database that is busy must not end the watch
                    log.exception("watching the report failed; trying again")
                tick += 1
        finally:
            self._store.close()

    def _tick(self, tick: int) -> None:
        self._look_for_end()
        if tick % CLAIM_EVERY_TICKS == 0 and not self._keep_claim():
            log.warning("another worker has the claim of this run")
        if self._stop.event.is_set():
            self._insist_on_end()

    def _insist_on_end(self) -> None:
        """The end was asked for: make the job notice, or end without it."""
        self._stopping_for += 1
        if self._stopping_for == END_WITHOUT_JOB_TICKS:
            self._store.end(self._stop)
        if self._stopping_for == GIVE_UP_TICKS:
            log.error("the report does not react to its end; giving up this process")
            self._give_up()
        if self._interrupt is not None:
            self._interrupt()

    def _look_for_end(self) -> None:
        document = self._progress.document()
        try:
            if document != self._told:
                cancel = self._store.publish_progress(document)
                self._told = document
            else:
                cancel = self._store.wants_cancel()
        except WorkOver as error:
            self._stop.ask(str(error))
            return
        if cancel:
            self._stop.ask("cancelled on request")
        elif self._is_worker_stopping():
            self._stop.ask("The appliance was stopped while this report ran; run it again.", failed=True)
        elif self._spark_problem is not None and (problem := self._spark_problem()) is not None:
            self._stop.ask(f"Spark went away while this report ran: {problem}", failed=True)
