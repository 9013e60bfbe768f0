"""What a report's job gets: Spark, its parameters, and ways to say how far it is. And the words for how a run may end early.

A job calls `check` between steps and `collect` for each Spark action; both raise RunCancelled once somebody asked for the end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks.reports.progress import Progress
from tasks.spark.retrying import again_if_worker_lost
from webapp.reports.catalogue import Row


class RunCancelled(Exception):
    """Somebody asked for the end of the run; `reason` is for the person who reads its page."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class ReportFailed(Exception):
    """The job cannot give a result; the text says why and what to do."""


@dataclass(slots=True)
class Stop:
    """A request to end the run, set by whoever watches it and seen by the job."""

    reason: str = ""
    failed: bool = False
    event: threading.Event = field(default_factory=threading.Event)

    def ask(self, reason: str, *, failed: bool = False) -> None:
        """Ask; the first reason counts."""
        if not self.event.is_set():
            self.reason, self.failed = reason, failed
            self.event.set()

    def check(self) -> None:
        """Raise what the request means, if there is one."""
        if self.event.is_set():
            if self.failed:
                raise ReportFailed(self.reason)
            raise RunCancelled(self.reason)


@dataclass(frozen=True, slots=True)
class Context:
    """One run at work."""

    run_id: str
    parameters: Mapping[str, Any]
    as_of_ms: int
    """What it looks back from: when a schedule's run was due, however late it starts; when another one was started."""
    controllers: Sequence[str]
    spark: Any
    tag: str
    """Every Spark action carries it, and nothing else does: whoever interrupts the tag must not hit the cleaning up."""
    progress: Progress
    stop: Stop
    result_path: Path
    publish: Callable[[Iterable[Row]], None]
    """Show these rows now; they may be replaced later."""

    def check(self) -> None:
        """Between steps: go on, or end."""
        self.stop.check()

    def collect(self, frame: Any) -> list[dict[str, Any]]:
        """Run a Spark action and return its rows. An interrupted one ends as what interrupted it.

        An action only reads: one whose Python worker was killed before there were tasks is done again.
        """
        from pyspark.errors import PySparkException

        self.stop.check()
        self.spark.addTag(self.tag)
        try:
            rows: list[dict[str, Any]] = again_if_worker_lost(lambda: self._rows(frame))
        except PySparkException:
            self.stop.check()
            raise
        finally:
            self.spark.removeTag(self.tag)
        self.stop.check()
        return rows

    def _rows(self, frame: Any) -> list[dict[str, Any]]:
        self.stop.check()
        rows: list[dict[str, Any]] = frame.toArrow().to_pylist()
        return rows


@dataclass(frozen=True, slots=True)
class Result:
    """How a run that went well ends: its final rows, and what it says of itself, in sentences of which there is at least one."""

    rows: Sequence[Row]
    summary: Sequence[str]
