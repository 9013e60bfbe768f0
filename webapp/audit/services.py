"""Writing to the audit trail, and proving that nobody rewrote it."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from remoting.facts.anchors import Anchor
from webapp.audit import anchoring
from webapp.audit.models import AuditEntry, AuditHead
from webapp.rules import Rules

if TYPE_CHECKING:
    from webapp.accounts.permissions import Actor

GENESIS = "0" * 64
# With the time and the outcome; a column that is added later stays out, for the chain of older rows must hold.
_HASHED = (
    *("sequence", "actor_id", "actor_name", "token_prefix", "ip", "action", "target", "detail"),
    *("parameters", "operation_id", "previous_hash"),
)
Outcome = AuditEntry.Outcome


def record(
    actor: Actor,
    action: str,
    *,
    target: str = "",
    outcome: Outcome = Outcome.ACCEPTED,
    detail: str = "",
    parameters: dict[str, Any] | None = None,
    operation_id: str = "",
) -> AuditEntry:
    """Append one row. Inside the caller's transaction, so that a change and its row appear together or not at all."""
    with transaction.atomic():
        AuditHead.objects.get_or_create(pk=1, defaults={"hash": GENESIS})
        head = AuditHead.objects.select_for_update().get(pk=1)
        entry = AuditEntry(
            sequence=head.sequence + 1,
            at=timezone.now(),
            actor=actor.user if actor.user.is_authenticated else None,
            actor_name=actor.name[:150],
            token_prefix=actor.token.prefix if actor.token else "",
            ip=actor.ip,
            action=action,
            target=target[:300],
            outcome=outcome,
            detail=detail[:500],
            parameters=parameters or {},
            operation_id=operation_id,
            previous_hash=head.hash,
        )
        entry.hash = entry_hash(entry)
        entry.save()
        head.sequence, head.hash = entry.sequence, entry.hash
        head.save()
    return entry


def entry_hash(entry: AuditEntry) -> str:
    """HMAC-SHA256 over everything that the row says and the hash of the row before it."""
    return hmac.new(settings.AUDIT_KEY.encode(), content_of(entry), hashlib.sha256).hexdigest()


def content_of(entry: AuditEntry) -> bytes:
    """What the hash of a row covers."""
    content = {name: getattr(entry, name) for name in _HASHED}
    content |= {"at": entry.at.astimezone(UTC).isoformat(timespec="microseconds"), "outcome": str(entry.outcome)}
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Verification:
    """Whether the chain holds. `broken_at` is the first sequence number that does not fit what is before it or was anchored.

    `anchored` is the number of the row that the controllers have kept last, None when they have none or were not asked, and
    `anchor_problem` says why not, or that the anchor was begun anew.
    """

    entries: int
    broken_at: int | None
    reason: str
    anchored: int | None = None
    anchor_problem: str = ""

    @property
    def intact(self) -> bool:
        return self.broken_at is None


def verify() -> Verification:
    """Walk the whole chain, from the first row to the head, and compare it with what the controllers keep of it."""
    anchor, problem = anchoring.ask()
    found = _verify_rows(anchor)
    if anchor is None:
        return replace(found, anchor_problem=problem)
    if found.intact and anchor.sequence > found.entries:
        at = datetime.fromtimestamp(anchor.at_ms / 1000, UTC).isoformat(timespec="seconds")
        reason = f"rows are missing at the end: {anchor.sequence} were there on {at}, as the controllers know"
        found = replace(found, broken_at=found.entries + 1, reason=reason)
    anew = (
        f"begun anew {anchor.begun_anew} times, last in the place of {anchor.before_that}" if anchor.begun_anew else ""
    )
    return replace(found, anchored=anchor.sequence, anchor_problem=anew)


def _verify_rows(anchor: Anchor | None) -> Verification:
    previous, sequence = GENESIS, 0
    for entry in AuditEntry.objects.order_by("sequence").iterator(chunk_size=500):
        if entry.sequence != sequence + 1:
            return Verification(sequence, sequence + 1, "the row is missing")
        if entry.previous_hash != previous:
            return Verification(sequence, entry.sequence, "the row does not continue the one before it")
        if not hmac.compare_digest(entry.hash, entry_hash(entry)):
            reason = "the row was changed after it was written"
            if not sequence:  # else the rows before it would not fit either
                reason += ", or the key of the trail is not the one that it was written with"
            return Verification(sequence, entry.sequence, reason)
        if anchor is not None and entry.sequence == anchor.sequence and entry.hash != anchor.digest:
            return Verification(sequence, entry.sequence, "it is another row than the one that the controllers know")
        previous, sequence = entry.hash, entry.sequence
    head = AuditHead.objects.filter(pk=1).first()
    if head is not None and (head.sequence, head.hash) != (sequence, previous):
        return Verification(sequence, sequence + 1, "rows are missing at the end")
    return Verification(sequence, None, "")


def search(asked: Mapping[str, Any]) -> QuerySet[AuditEntry]:
    """Rows by actor, action and a part of the target, newest first."""
    rules = Rules(asked)
    actor, action, part = rules.text("actor", most=150), rules.text("action", most=60), rules.text("q", most=300)
    rules.finish()
    wanted = {"actor_name": actor, "action": action, "target__icontains": part}
    return AuditEntry.objects.order_by("-sequence").filter(**{name: value for name, value in wanted.items() if value})
