"""What one entry of the controllers' log holds: the records of one decision and its reply, as JSON (pure)

    {"format": 2, "subject": name, "records": [[kind, version, fields], ...], "reply": [code, remark]}

Records are written in the newest version that the feature level in force allows. A subject, kind or version that is not known
here is an UnknownFormat, which ends the program: it is never skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson

from controllerd.records.decision import Decision, Reply
from controllerd.records.subject import Format, Subject, Subjects, UnknownFormat
from remoting import codes
from remoting.errors import ProtocolError, RequestError

FORMAT: Final = 2
MAX_ENTRY_BYTES: Final = 1 << 20
MAX_RECORDS: Final = 1024


def encode_entry(subject: Subject[Any, Any, Any], decision: Decision[Any], level: int) -> bytes:
    """A decision as bytes. Raises RequestError when a record cannot be written at this feature level."""
    records = [_encode(_newest(subject.formats, type(record), level), record) for record in decision.records]
    reply = [decision.reply.code, decision.reply.remark]
    return orjson.dumps({"format": FORMAT, "subject": subject.name, "records": records, "reply": reply})


def decode_entry(content: bytes, subjects: Subjects) -> tuple[str, Decision[Any]]:
    """The subject and the decision. Raises UnknownFormat for what a later version wrote, ProtocolError for anything else."""
    if len(content) > MAX_ENTRY_BYTES:
        raise ProtocolError(f"an entry of {len(content)} bytes, where {MAX_ENTRY_BYTES} are the limit")
    try:
        fields = orjson.loads(content)
    except ValueError as error:
        raise ProtocolError(f"an entry that is no JSON: {error}") from error
    match fields:
        case {"format": int(format)} if format > FORMAT:
            raise UnknownFormat(f"an entry of format {format}")
        case {
            "format": int(format),
            "subject": str(name),
            "records": [*records],
            "reply": [int(code), str() | None as remark],
        } if format == FORMAT and len(fields) == 4 and len(records) <= MAX_RECORDS:
            if name not in subjects:
                raise UnknownFormat(f"the subject {name[:80]!r}")
            found = tuple(_decode(subjects[name], each) for each in records)
            return name, Decision(found, Reply(code, remark))
    raise ProtocolError(f"an entry has format, subject, records and reply, and is not {content[:80]!r}")


def _newest(formats: Sequence[Format[Any]], record: type, level: int) -> Format[Any]:
    allowed = [each for each in formats if each.record is record and each.level <= level]
    if not allowed:
        needed = min(each.level for each in formats if each.record is record)
        raise RequestError(
            codes.CONTROLLER_INVALID_REQUEST,
            f"this needs feature level {needed}, and the controllers are at {level}; upgrade all of them first",
        )
    return max(allowed, key=lambda each: each.version)


def _encode(format: Format[Any], record: Any) -> tuple[str, int, Any]:
    return format.kind, format.version, format.encode(record)


def _decode(subject: Subject[Any, Any, Any], content: object) -> Any:
    match content:
        case [str(kind), int(version), fields]:
            for format in subject.formats:
                if (format.kind, format.version) == (kind, version):
                    return format.decode(fields)
            raise UnknownFormat(f"version {version} of the record {kind[:80]!r} about {subject.name}")
    raise ProtocolError(f"a record has kind, version and fields, and is not {repr(content)[:80]}")
