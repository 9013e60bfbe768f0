"""What an object store says when it does not do something, as an error of ours whose text says what to do about it (pure).

The stores behind the library each have their own words; what is known of them stands here. What is not known counts as unknown.
"""

from __future__ import annotations

import re
from typing import Final

from obstore.exceptions import AlreadyExistsError, PermissionDeniedError, UnauthenticatedError

from brokerd.tiers.objects.interface import AlreadyThere, NotThere, ObjectStoreError, Refused, Unknown

_LONGEST_REASON: Final = 300
_TOO_SHORT: Final = ("range was invalid", "Invalid range", "416 Range Not Satisfiable")

_NO_BUCKET: Final = "there is no such bucket: create it, or name another one in tiers.url"
_CREDENTIALS: Final = (
    "it does not accept the credentials, or they do not allow this: mend the file of tiers.options_path, or the rights that "
    "the account has in the bucket"
)
_NO_ROOM: Final = "it is full: make room there, or keep less with tiers.reserved_time_ms"
_NOT_WRITABLE: Final = "this process may not write there: give its user the directory of tiers.url"
_NO_DIRECTORY: Final = (
    "something else is in the place of the directory: mount it again, or name another one in tiers.url"
)

# How servers and systems say that asking again is of no use until somebody did something
_FINAL: Final = {
    "NoSuchBucket": _NO_BUCKET,
    "ContainerNotFound": _NO_BUCKET,
    "AccessDenied": _CREDENTIALS,
    "InvalidAccessKeyId": _CREDENTIALS,
    "SignatureDoesNotMatch": _CREDENTIALS,
    "AuthenticationFailed": _CREDENTIALS,
    "AuthorizationFailure": _CREDENTIALS,
    "No space left on device": _NO_ROOM,
    "Disk quota exceeded": _NO_ROOM,
    "QuotaExceeded": _NO_ROOM,
    "Read-only file system": _NOT_WRITABLE,
    "Permission denied": _NOT_WRITABLE,
    "Not a directory": _NO_DIRECTORY,
}
_NO_BUCKETS: Final = tuple(say for say, advice in _FINAL.items() if advice is _NO_BUCKET)


def translated(error: Exception, what: str) -> ObjectStoreError:
    """`what` was asked for, as in "read this object"."""
    if isinstance(error, AlreadyExistsError):
        return AlreadyThere(f"the object store has that already: could not {what}")
    said, reason = _said(error), reason_of(error)
    advice = next((advice for say, advice in _FINAL.items() if say in said), None)
    if advice is None and isinstance(error, (PermissionDeniedError, UnauthenticatedError)):
        advice = _CREDENTIALS
    if advice is not None:
        return Refused(f"the object store did not {what}: {advice} ({reason})")
    if isinstance(error, FileNotFoundError) or any(say in said for say in _TOO_SHORT):
        return NotThere(f"the object store does not have it: could not {what}: {reason}")
    return Unknown(f"the object store did not {what}: {reason}")


def is_without_bucket(error: Exception) -> bool:
    """Whether what was not found is the whole store."""
    said = _said(error)
    return any(say in said for say in _NO_BUCKETS)


def reason_of(error: Exception) -> str:
    """In short: a server's own code and sentence, else the library's first line."""
    said = _said(error)
    code = re.search(r"<Code>([^<]{1,100})</Code>", said)
    if code is None:
        return said.partition("\n")[0][:_LONGEST_REASON]
    message = re.search(r"<Message>([^<]{1,300})</Message>", said)
    return f"{code[1]}: {message[1]}" if message else code[1]


def _said(error: Exception) -> str:
    """Without what the library's authors want to know."""
    return str(error).partition("\n\nDebug source:")[0].strip()
