"""Work behind the console: the collector, changes to the cluster, Spark reports and their timetable.

`celery -A tasks` finds the app here. It is loaded on demand, because Spark's Python workers import `tasks.spark` and must not
load Celery and Django for it.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "celery":
        from tasks.app import app

        return app
    raise AttributeError(f"module 'tasks' has no attribute {name!r}")
