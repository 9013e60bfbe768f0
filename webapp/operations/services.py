"""The one way to change anything: permission, rules, audit row, operation row, then the work itself.

Pages and REST both call `submit`; there is no other path to a change.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from django.db import IntegrityError, transaction
from django.utils import timezone
from django.utils.crypto import salted_hmac

from webapp.accounts.permissions import Actor
from webapp.audit import services as audit
from webapp.audit.models import AuditEntry
from webapp.errors import Conflict, InvalidInput, NotFound, PasswordWanted, PermissionRefused, Problem
from webapp.lifecycle import State, WorkOver
from webapp.operations import progress
from webapp.operations.kinds import Kind, Parameters
from webapp.operations.models import Operation
from webapp.operations.registry import KINDS
from webapp.queue import RUN_OPERATION, task_queue

log = logging.getLogger(__name__)

MOST_REFUSED_A_MINUTE = 30  # rows of one person's refused changes


@dataclass(frozen=True)
class Submitted:
    """The operation that was made, or found by its idempotency key, or, for a dry run, the plan without one."""

    operation: Operation
    plan: list[dict[str, str]] = field(default_factory=list)
    once: dict[str, str] = field(default_factory=dict)
    dry_run: bool = False


def submit(
    actor: Actor,
    kind_name: str,
    parameters: Parameters,
    *,
    dry_run: bool = False,
    idempotency_key: str | None = None,
) -> Submitted:
    """Make the change that is asked for, or raise the Problem that says why not. A dry run leaves no trace."""
    kind = KINDS[kind_name]
    _require(actor, kind, parameters, dry_run)
    if kind.is_dangerous and not actor.is_confirmed and not dry_run:
        raise PasswordWanted("You gave it long ago, and this cannot be undone or makes a key that lasts.")
    digest = _digest(kind, parameters)
    if idempotency_key is not None and not dry_run:
        earlier = _find_repeated(actor, idempotency_key, digest)
        if earlier is not None:
            return earlier
    cleaned = kind.validate(actor, parameters)
    operation = Operation(
        kind=kind.name,
        target=kind.target_of(cleaned)[:300],
        parameters=kind.audited(cleaned),
        requested_by=actor.user,
        requested_by_name=actor.name[:150],
        ip=actor.ip,
        idempotency_key=idempotency_key,
        idempotency_digest=digest if idempotency_key is not None else "",
    )
    plan = kind.plan(cleaned)
    if dry_run:
        return Submitted(operation, plan, dry_run=True)
    try:
        once = _make(actor, kind, operation, cleaned)
    except IntegrityError:
        # Somebody used the same key between our look and our write; any other integrity error is a bug and goes up.
        earlier = _find_repeated(actor, idempotency_key, digest) if idempotency_key is not None else None
        if earlier is None:
            raise
        return earlier
    if kind.record is None:
        once = _carry_out(actor, kind, operation, cleaned)
    operation.refresh_from_db()
    return Submitted(operation, plan, once)


def broken_rules(actor: Actor, kind_name: str, parameters: Parameters) -> dict[str, list[str]]:
    """Which rules the parameters break, by field, for somebody who cannot submit them for another reason; nothing is made.

    Raises PermissionRefused as `submit` does. Rules that only show once others are kept are not among them.
    """
    kind = KINDS[kind_name]
    _require(actor, kind, parameters, dry_run=False)
    try:
        kind.validate(actor, parameters)
    except InvalidInput as problem:
        return problem.fields
    except Problem:
        return {}
    return {}


def find(operation_id: UUID) -> Operation:
    """The operation of that id, or NotFound."""
    found = Operation.objects.filter(pk=operation_id).first()
    if found is None:
        raise NotFound("There is no such operation.", code="operation-not-found")
    return found


def cancel(actor: Actor, operation: Operation) -> Operation:
    """Ask for a stop. Whoever may ask for a change may ask for its end."""
    kind = KINDS.get(operation.kind)
    if kind is None:
        raise NotFound(f"Operations of the kind {operation.kind} are no longer known here.")
    _require(actor, kind, {}, dry_run=False, action="operation.cancel")
    try:
        with transaction.atomic():
            cancelled = progress.request_cancel(operation.pk)
            audit.record(actor, "operation.cancel", target=operation.target, operation_id=str(operation.pk))
    except WorkOver as error:
        raise Conflict(f"The operation is already over: it {operation.state}.", code="operation-finished") from error
    return cancelled


def _require(actor: Actor, kind: Kind, parameters: Parameters, dry_run: bool, action: str = "") -> None:
    try:
        actor.require(kind.permission)
    except PermissionRefused as refusal:
        if not dry_run and _may_tell_refusal(actor):
            target = str(parameters.get("name") or parameters.get("topic") or parameters.get("group") or "")
            audit.record(
                actor, action or kind.name, target=target, outcome=audit.Outcome.REFUSED, detail=refusal.detail
            )
        raise


def _may_tell_refusal(actor: Actor) -> bool:
    """Whoever goes on asking for what he may not shall not fill the trail."""
    minute = AuditEntry.objects.filter(at__gt=timezone.now() - timedelta(minutes=1), actor_name=actor.name)
    return minute.filter(outcome=audit.Outcome.REFUSED).count() < MOST_REFUSED_A_MINUTE


def _make(actor: Actor, kind: Kind, operation: Operation, cleaned: Parameters) -> dict[str, str]:
    """Write the audit row and the operation, and the change itself if it is one of our own tables."""
    once: dict[str, str] = {}
    with transaction.atomic():
        if kind.record is not None:
            done = kind.record(actor, cleaned)
            once = done.once
            operation.result = done.result
            operation.state = State.SUCCEEDED
            operation.started_at = operation.finished_at = timezone.now()
        operation.save(force_insert=True)
        audit.record(
            actor,
            kind.name,
            target=operation.target,
            parameters=operation.parameters,
            operation_id=str(operation.pk),
        )
        operation.announce_after_commit()
    return once


def _carry_out(actor: Actor, kind: Kind, operation: Operation, cleaned: Parameters) -> dict[str, str]:
    """Do it here, or hand it to the worker."""
    try:
        if kind.inline is None:
            task_queue().send(RUN_OPERATION, str(operation.pk))
            return {}
        progress.start(operation.pk)
        done = kind.inline(actor, cleaned)
    except Problem as problem:
        progress.fail(operation.pk, problem.code, problem.detail)
        raise
    progress.succeed(operation.pk, done.result)
    return done.once


def _find_repeated(actor: Actor, key: str, digest: str) -> Submitted | None:
    if not 1 <= len(key) <= 120:
        raise InvalidInput("An Idempotency-Key has 1 to 120 characters.", code="invalid-idempotency-key")
    earlier = Operation.objects.filter(requested_by=actor.user, idempotency_key=key).first()
    if earlier is None:
        return None
    if earlier.idempotency_digest != digest:
        raise Conflict(
            "This Idempotency-Key was used for another request; use a new key for a new change.",
            code="idempotency-key-reused",
        )
    return Submitted(earlier)


def _digest(kind: Kind, parameters: Parameters) -> str:
    """Tells two requests apart; keyed, because a request may hold a password."""
    text = json.dumps([kind.name, parameters], sort_keys=True, default=str)
    return salted_hmac("webapp.operations.idempotency", text, algorithm="sha256").hexdigest()
