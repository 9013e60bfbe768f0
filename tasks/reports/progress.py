"""How far a run is: Spark's stages and tasks, rows read inside tasks, and a sentence. Filled by the job and by Spark's progress
handler, read by the watching thread; one lock, no waiting.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

STAGES_SHOWN = 8


class Progress:
    """The counts of one run."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._stages: dict[tuple[str, int], dict[str, Any]] = {}
        self._text = ""
        self._waiting_since_s: float | None = None
        self._summary: list[str] = []
        self._step = ""
        self._rows_total: int | None = None
        self._rows_read: Callable[[], int] | None = None

    def say(self, text: str) -> None:
        """What is being done now, for a person."""
        with self._lock:
            self._text, self._waiting_since_s = text, None

    def wait(self, text: str) -> None:
        """What is waited for now; it is shown with the time since the waiting began, whatever was waited for before."""
        with self._lock:
            if self._waiting_since_s is None:
                self._waiting_since_s = self._now_s()
            self._text = text

    def conclude(self, summary: Sequence[str]) -> None:
        """The job is done: what it says of itself, the most important sentence first."""
        with self._lock:
            self._text, self._summary, self._waiting_since_s = summary[0], list(summary), None

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
            document: dict[str, Any] = {"text": self._shown_text()}
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

    def _shown_text(self) -> str:
        if self._waiting_since_s is None:
            return self._text
        return f"{self._text} ({self._now_s() - self._waiting_since_s:.0f} s so far)"
