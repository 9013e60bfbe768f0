"""What an object store says when it does not do something, as an error of ours whose text says what to do about it (pure)."""

from __future__ import annotations

from obstore.exceptions import AlreadyExistsError

from brokerd.tiers.objects.interface import AlreadyThere, NotThere, ObjectStoreError, Refused, Unknown
from remoting.tier.complaints import advice_of, is_too_short, reason_of


def translated(error: Exception, what: str) -> ObjectStoreError:
    """`what` was asked for, as in "read this object"."""
    if isinstance(error, AlreadyExistsError):
        return AlreadyThere(f"the object store has that already: could not {what}")
    reason, advice = reason_of(error), advice_of(error)
    if advice is not None:
        return Refused(f"the object store did not {what}: {advice} ({reason})")
    if isinstance(error, FileNotFoundError) or is_too_short(error):
        return NotThere(f"the object store does not have it: could not {what}: {reason}")
    return Unknown(f"the object store did not {what}: {reason}")
