"""Carrying out the operations that people asked for, one row at a time.

The row is the truth. A task takes it by a claim and by its transition to running; a second delivery finds the claim held, or
the row finished, and ends. A row that is running without a claim lost its worker in the middle: since every change may be made
twice, the work is simply done again.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from celery.exceptions import SoftTimeLimitExceeded
from django.conf import settings
from django.core.exceptions import ObjectDoesNotExist, ValidationError

from remoting.client.blocking import AdminClient
from remoting.errors import LogboomError
from tasks.app import GRACE_S, OPERATION_SOFT_LIMIT_S, app
from tasks.changes import CHANGES, Change, ChangeFailed, GoOnLater, Stopped, error_code
from tasks.claims import claims
from tasks.controller_changes import CONTROLLER_CHANGES
from tasks.export.work import EXPORTS
from tasks.mounting import MOUNTING
from tasks.refresh import ask_for_refresh
from tasks.retiring import RETIRING
from tasks.timer_recalls import TIMER_CHANGES
from webapp.lifecycle import WorkOver
from webapp.operations import progress
from webapp.operations.models import Operation
from webapp.queue import RUN_OPERATION

log = logging.getLogger(__name__)

KINDS = {**CHANGES, **CONTROLLER_CHANGES, **TIMER_CHANGES, **EXPORTS, **RETIRING, **MOUNTING}


def claim_name(operation_id: object) -> str:
    """The claim that says that a worker has this operation."""
    return f"operation:{operation_id}"


@app.task(name=RUN_OPERATION)  # type: ignore[untyped-decorator]
def run(operation_id: str) -> None:
    """Carry out one operation."""
    with claims().held(claim_name(operation_id), OPERATION_SOFT_LIMIT_S + GRACE_S) as claim:
        if claim is None:
            log.info("operation %s is being carried out by another worker", operation_id)
            return
        is_over = carry_out(operation_id, AdminClient(settings.CONTROLLERS))
    if not is_over:  # if this does not come to the queue, the janitor finds that nobody works at the row
        run.delay(operation_id)


def carry_out(operation_id: str, client: AdminClient) -> bool:
    """Take the row, make the change, write how it ended. False when it is to be gone on with."""
    operation = _take(operation_id)
    if operation is None:
        return True
    result: dict[str, Any] = {}
    failure: tuple[str, str] | None = None
    try:
        result = _make(operation, client)
    except WorkOver:
        log.info("operation %s was ended by somebody else", operation_id)
        return True
    except GoOnLater:
        return False
    except Stopped as stopped:
        _cancel(operation, stopped.result)
        return True
    except ChangeFailed as error:
        failure = (error.code, str(error))
    except LogboomError as error:
        failure = (error_code(error), f"The cluster does not do this now: {error}")
    except SoftTimeLimitExceeded:
        failure = ("timeout", f"Given up after {OPERATION_SOFT_LIMIT_S} s; whether it was made is not known.")
    except Exception as error:  # the outermost edge of a task: the row must not stay running
        log.exception("operation %s (%s) broke", operation_id, operation.kind)
        text = f"An error in the worker: {type(error).__name__}: {error}. Whether the change was made is not known."
        failure = ("internal-error", text)
    finally:
        ask_for_refresh()
    _end(operation, result, failure)
    return True


def _take(operation_id: str) -> Operation | None:
    try:
        return progress.start(operation_id)
    except (ObjectDoesNotExist, ValidationError):
        log.error("there is no operation %s", operation_id)
        return None
    except WorkOver:
        operation = Operation.objects.get(pk=operation_id)
        if operation.finished:
            log.info("operation %s is over already (%s)", operation_id, operation.state)
            return None
        if "place" in operation.progress:
            log.info("going on with operation %s", operation_id)
        else:
            log.warning("operation %s lost its worker in the middle; making it again", operation_id)
        return operation


def _make(operation: Operation, client: AdminClient) -> dict[str, Any]:
    make = KINDS.get(operation.kind)
    if make is None:
        known = ", ".join(KINDS)
        raise ChangeFailed(
            "unknown-kind", f"The worker knows no {operation.kind}; it knows {known}. Are both one version?"
        )
    log.info("operation %s: %s %s", operation.pk, operation.kind, operation.target)
    return make(
        Change(
            client,
            operation.parameters,
            tell_node=partial(progress.node, operation.pk),
            tell_progress=lambda done, total, text: progress.report(operation.pk, done=done, total=total, text=text),
            place=operation.progress.get("place"),
            tell_place=lambda done, total, text, place: progress.report(
                operation.pk, done=done, total=total, text=text, place=place
            ),
        )
    )


def _cancel(operation: Operation, result: dict[str, Any]) -> None:
    try:
        progress.cancelled(operation.pk, result)
    except WorkOver as error:
        log.warning("operation %s ended twice: %s", operation.pk, error)


def _end(operation: Operation, result: dict[str, Any], failure: tuple[str, str] | None) -> None:
    try:
        if failure is None:
            progress.succeed(operation.pk, result)
        else:
            log.warning("operation %s (%s) failed: %s", operation.pk, operation.kind, failure[1])
            progress.fail(operation.pk, *failure)
    except WorkOver as error:
        log.warning("operation %s ended twice: %s", operation.pk, error)
