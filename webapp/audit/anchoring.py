"""How far the audit trail has come, kept by the controllers: nobody who writes to the database can change that.

The worker anchors the head of the chain once a minute when it has moved (`tasks.audit`); verifying asks for it.
"""

from __future__ import annotations

from remoting.facts.anchors import Anchor
from webapp.audit.models import AuditEntry, AuditHead
from webapp.errors import Problem
from webapp.gateway import cluster

CHAIN = "audit"


def ask() -> tuple[Anchor | None, str]:
    """What the controllers keep; without any, why."""
    try:
        with cluster() as client:
            found = client.anchor(CHAIN)
    except Problem as problem:
        return None, f"the controllers were not asked how far the trail had come: {problem.detail}"
    return found, "" if found is not None else "the controllers have not kept yet how far the trail has come"


def keep(*, anew: bool = False) -> Anchor | None:
    """Have the controllers keep the end of the chain as it is; None when there is none, or they have it.

    Raises LogboomError: when the trail does not continue what they have kept, and when they cannot be asked.
    """
    head = AuditHead.objects.filter(pk=1).first()
    if head is None or head.sequence == 0:
        return None
    at = AuditEntry.objects.get(sequence=head.sequence).at
    anchor = Anchor(head.sequence, head.hash, int(at.timestamp() * 1000))
    with cluster() as client:
        present = client.anchor(CHAIN)
        if present is not None and (present.sequence, present.digest) == (anchor.sequence, anchor.digest):
            return None
        client.keep_anchor(CHAIN, anchor, anew=anew)
    return anchor
