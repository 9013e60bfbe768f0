"""What the controllers' log is about: subjects, and the formats of their records (pure)

A subject is a state, the requests that may change it, and records that do. `decide` and `apply` read and give values; `apply`
decides nothing. What a record of a version means never changes: another meaning, or another field, is another version, with the
feature level from which on it may be written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar

from controllerd.records.decision import Decision
from remoting.errors import LogboomError
from remoting.facts.codec import read

FIRST_LEVEL: Final = 1

State = TypeVar("State")
Request = TypeVar("Request")
Record = TypeVar("Record")


class UnknownFormat(LogboomError):
    """The log or a snapshot holds what only a later version of the program can read; this one must not go on without it."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} is not known to this version of controllerd: start a newer one with this data directory, "
            "at least the version of the other controllers"
        )


@dataclass(frozen=True, slots=True)
class Format(Generic[Record]):
    """One version of one kind of record as JSON; may be written from feature level `level` on.

    `decode` raises ProtocolError for what `encode` does not give.
    """

    kind: str
    record: type[Record]
    encode: Callable[[Record], Any]
    decode: Callable[[Any], Record]
    version: int = 1
    level: int = FIRST_LEVEL


def plain(kind: str, record: type[Record]) -> Format[Record]:
    """Version 1 of a record whose fields are JSON as they are."""
    return Format(kind, record, _itself, partial(read, record, exactly=True))


def _itself(record: Record) -> Record:
    return record


@dataclass(frozen=True, slots=True)
class Subject(Generic[State, Request, Record]):
    """`initial` is the state before the first record; `requests` are the types of what may be decided.

    What only records of a later level put into a state is in its bytes only when it is there: who knows the records that are
    written can read the snapshots. `decode_state` raises ProtocolError.
    """

    name: str
    initial: State
    requests: tuple[type[Request], ...]
    decide: Callable[[State, Request], Decision[Record]]
    apply: Callable[[State, Record], State]
    formats: tuple[Format[Any], ...]
    encode_state: Callable[[State], bytes]
    decode_state: Callable[[bytes], State]


Subjects = Mapping[str, Subject[Any, Any, Any]]


def highest_level(subjects: Subjects) -> int:
    """The feature level up to which a program with these subjects reads everything."""
    return max(each.level for subject in subjects.values() for each in subject.formats)
