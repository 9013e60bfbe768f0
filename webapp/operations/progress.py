"""How an operation moves on; called by whoever works on it (the worker, or the web process for what it does itself).

Each call stores first and announces afterwards to the channels group `operations` with
`{"type": "operation.changed", "id": str, "state": str}`; pages then read the row.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from webapp.announce import announce_after_commit
from webapp.operations.models import NodeOutcome, Operation

GROUP = "operations"

State = Operation.State


class OperationFinished(Exception):
    """The operation is already over: the caller should not work on it (again)."""


def start(operation_id: UUID | str) -> Operation:
    """Take a queued operation. A repeated delivery of the same task finds it taken and gets OperationFinished."""
    return _move(operation_id, State.RUNNING, started_at=timezone.now())


def report(operation_id: UUID | str, *, done: int, total: int | None = None, text: str = "") -> Operation:
    """Say how far a running operation is."""
    with transaction.atomic():
        operation = _lock(operation_id)
        if operation.finished:
            raise OperationFinished(f"operation {operation_id} is {operation.state}")
        operation.progress = {"done": done, "total": total, "text": text[:300]}
        operation.save(update_fields=["progress"])
        _announce(operation)
    return operation


def node(operation_id: UUID | str, name: str, outcome: NodeOutcome | str, detail: str = "") -> Operation:
    """Record what one node made of it; a later word about the same node replaces the earlier one."""
    with transaction.atomic():
        operation = _lock(operation_id)
        others = [entry for entry in operation.nodes if entry["node"] != name]
        operation.nodes = [*others, {"node": name, "outcome": str(NodeOutcome(outcome)), "detail": detail[:500]}]
        operation.save(update_fields=["nodes"])
        _announce(operation)
    return operation


def succeed(operation_id: UUID | str, result: Any = None) -> Operation:
    """The change was made and, where that is possible, read back."""
    return _move(operation_id, State.SUCCEEDED, result=result, finished_at=timezone.now())


def fail(operation_id: UUID | str, code: str, error: str) -> Operation:
    """It was not made, or its outcome is unknown; `error` says which, and what to do."""
    return _move(operation_id, State.FAILED, error_code=code[:60], error=error[:4000], finished_at=timezone.now())


def cancelled(operation_id: UUID | str) -> Operation:
    """It was stopped on request."""
    return _move(operation_id, State.CANCELLED, finished_at=timezone.now())


def request_cancel(operation_id: UUID | str) -> Operation:
    """Ask for a stop; what nobody has started is over at once."""
    with transaction.atomic():
        operation = _lock(operation_id)
        if operation.finished:
            raise OperationFinished(f"operation {operation_id} is {operation.state}")
        operation.cancel_requested = True
        if operation.state == State.QUEUED:
            operation.state = State.CANCELLED
            operation.finished_at = timezone.now()
        operation.save()
        _announce(operation)
    return operation


def _move(operation_id: UUID | str, state: Operation.State, **fields: Any) -> Operation:
    with transaction.atomic():
        operation = _lock(operation_id)
        if state not in Operation.TRANSITIONS[State(operation.state)]:
            raise OperationFinished(f"operation {operation_id} is {operation.state} and cannot become {state}")
        operation.state = state
        for name, value in fields.items():
            setattr(operation, name, value)
        operation.save()
        _announce(operation)
    return operation


def _lock(operation_id: UUID | str) -> Operation:
    return Operation.objects.select_for_update().get(pk=operation_id)


def _announce(operation: Operation) -> None:
    announce_after_commit(GROUP, {"type": "operation.changed", "id": str(operation.pk), "state": operation.state})
