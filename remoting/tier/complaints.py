"""What an object store says when it does not do something, in short, and what to do about it (pure).

The stores behind the library each have their own words; what is known of them stands here. What is not known counts as unknown.
"""

from __future__ import annotations

import re
from typing import Final

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
    "the directory is away, or something else is in its place: mount it again, or name another one in tiers.url"
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
    "XMinioStorageFull": _NO_ROOM,
    "507 Insufficient Storage": _NO_ROOM,
    "Read-only file system": _NOT_WRITABLE,
    "Permission denied": _NOT_WRITABLE,
    "Not a directory": _NO_DIRECTORY,
}
_NO_BUCKETS: Final = tuple(say for say, advice in _FINAL.items() if advice is _NO_BUCKET)
_REFUSALS: Final = ("PermissionDeniedError", "UnauthenticatedError")  # the library's, which is loaded by who has a tier

# The library counts its attempts and milliseconds: that would be another trouble each time
_NO_ANSWER: Final = re.compile(r"Error performing \w+ (\w+://[^/\s]{1,255})\S* in .* - HTTP error: (.{1,200})")


def advice_of(error: Exception) -> str | None:
    """What to do, when asking again is of no use until somebody did it; else None."""
    said = _said(error)
    advice = next((advice for say, advice in _FINAL.items() if say in said), None)
    return _CREDENTIALS if advice is None and type(error).__name__ in _REFUSALS else advice


def is_without_bucket(error: Exception) -> bool:
    """Whether what was not found is the whole store."""
    said = _said(error)
    return any(say in said for say in _NO_BUCKETS)


def is_too_short(error: Exception) -> bool:
    """Whether the object ends before what was asked of it."""
    said = _said(error)
    return any(say in said for say in _TOO_SHORT)


def reason_of(error: Exception) -> str:
    """In short: a server's own code and sentence, who did not answer, else the library's first line."""
    said = _said(error)
    code = re.search(r"<Code>([^<]{1,100})</Code>", said)
    if code is not None:
        message = re.search(r"<Message>([^<]{1,300})</Message>", said)
        return f"{code[1]}: {message[1]}" if message else code[1]
    line = said.partition("\n")[0]
    if (silent := _NO_ANSWER.search(line)) is not None:
        return (
            f"{silent[1]} does not answer ({silent[2]}): see that it runs, that it can be reached from here, and that the "
            "endpoint in the file of tiers.options_path is right"
        )
    return line[:_LONGEST_REASON]


def _said(error: Exception) -> str:
    """Without what the library's authors want to know."""
    return str(error).partition("\n\nDebug source:")[0].strip()
