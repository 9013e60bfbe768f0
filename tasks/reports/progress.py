"""How far a run is: Spark's stages and tasks, rows read inside tasks, and a sentence. Filled by the job and by Spark's progress
handler, read by the watching thread; one lock, no waiting.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

STAGES_SHOWN = 8


class Progress:
    """The counts of one run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stages: dict[tuple[str, int], dict[str, Any]] = {}
        self._text = ""
        self._summary: list[str] = []
        self._step = ""
        self._rows_total: int | None = None
        self._rows_read: Callable[[], int] | None = None

    def say(self, text: str) -> None:
        """What is being done now, for a person."""
        with self._lock:
            self._text = text

    def conclude(self, summary: Sequence[str]) -> None:
        """The job is done: what it says of itself, the most important sentence first."""
        with self._lock:
            self._text, self._summary = summary[0], list(summary)

    def enter(self, step: str) -> None:
        """The name under which the stages that come now are shown."""
        with self._lock:
            self._step = step

    def expect_rows(self, total: int, read: Callable[[], int]) -> None:
        """How many rows there will be to read, and whom to ask how many were."""
        with self._lock:
            self._rows_total, self._rows_read = total, read

    def stages_changed(self, operation_id: str, stages: Iterable[Any], inflight_tasks: int, done: bool) -> None:
        """Spark's word about one operation: each stage with its tasks. The same word may come twice."""
        with self._lock:
            for stage in stages:
                key = (operation_id, stage.stage_id)
                known = self._stages.setdefault(key, {"id": len(self._stages), "name": self._step})
                known["done"] = int(stage.num_completed_tasks)
                known["total"] = int(stage.num_tasks)
                known["running"] = not (stage.done or done)
                if done:
                    # what Spark found unnecessary in the end (skipped stages, merged tasks) is not waited for
                    known["total"] = known["done"]

    def document(self) -> dict[str, Any]:
        """As the run's row stores it; what is not known is absent."""
        with self._lock:
            stages = [stage for stage in self._stages.values() if stage["total"]]
            document: dict[str, Any] = {"text": self._text}
            if self._summary:
                document["summary"] = self._summary
            if stages:
                document["stages"] = [dict(stage) for stage in stages[-STAGES_SHOWN:]]
                document["tasks_done"] = sum(stage["done"] for stage in stages)
                document["tasks_total"] = sum(stage["total"] for stage in stages)
            if self._rows_read is not None and self._rows_total is not None:
                document["rows_read"] = min(self._rows_read(), self._rows_total)
                document["rows_total"] = self._rows_total
            return document
