"""How an operation moves on; called by whoever works on it (the worker, or the web process for what it does itself).

Each call stores first and announces afterwards; pages, and whoever waits for the end, then read the row. What is over raises
`lifecycle.WorkOver`.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from remoting.facts.words import Outcome
from webapp import lifecycle
from webapp.lifecycle import State
from webapp.operations.models import Operation


def start(operation_id: UUID | str) -> Operation:
    """Take a queued operation. A repeated delivery of the same task finds it taken and gets WorkOver."""
    return lifecycle.move(Operation, operation_id, State.RUNNING)


def report(operation_id: UUID | str, *, done: int, total: int | None = None, text: str = "", place: Any = None) -> bool:
    """Say how far a running operation is; `place` is where whoever takes it up again goes on. Whether its end was asked for."""
    with lifecycle.changing(Operation, operation_id) as operation:
        operation.progress = {"done": done, "total": total, "text": text[:300]}
        if place is not None:
            operation.progress["place"] = place
    return operation.cancel_requested


def node(operation_id: UUID | str, name: str, outcome: Outcome | str, detail: str = "") -> None:
    """Record what one node made of it, also after its end; a later word about the same node replaces the earlier one."""
    with lifecycle.changing(Operation, operation_id, also_over=True) as operation:
        others = [entry for entry in operation.nodes if entry["node"] != name]
        operation.nodes = [*others, {"node": name, "outcome": str(Outcome(outcome)), "detail": detail[:500]}]


def succeed(operation_id: UUID | str, result: Any = None) -> Operation:
    """The change was made and, where that is possible, read back."""
    return lifecycle.move(Operation, operation_id, State.SUCCEEDED, result=result)


def cancelled(operation_id: UUID | str, result: Any = None) -> Operation:
    """It was ended in the middle because somebody asked for that; `result` says what was made."""
    return lifecycle.move(Operation, operation_id, State.CANCELLED, result=result)


def fail(operation_id: UUID | str, code: str, error: str) -> Operation:
    """It was not made, or its outcome is unknown; `error` says which, and what to do."""
    return lifecycle.move(Operation, operation_id, State.FAILED, error_code=code[:60], error=error[:4000])


def request_cancel(operation_id: UUID | str) -> Operation:
    """Ask for a stop; what nobody has started is over at once."""
    return lifecycle.request_cancel(Operation, operation_id)
