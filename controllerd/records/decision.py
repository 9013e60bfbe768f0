"""What deciding a request gives: records, which change the state, and a reply for whoever asked (pure)

The leader alone decides, once. The records and the reply go into the log together; everybody applies the records.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from remoting import codes

Record = TypeVar("Record")
State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class Reply:
    """Code and sentence for whoever asked."""

    code: int = codes.SUCCESS
    remark: str | None = None


@dataclass(frozen=True, slots=True)
class Decision(Generic[Record]):
    """What changes, in this order, and what is answered when that is committed. Without records nothing changes."""

    records: tuple[Record, ...] = ()
    reply: Reply = field(default_factory=Reply)


@dataclass(frozen=True, slots=True)
class Applied(Generic[State]):
    """A committed decision, with the state as it was right after it."""

    reply: Reply
    state: State


def answered(remark: str) -> Decision[Record]:
    """Nothing changes, and that is a success."""
    return Decision(reply=Reply(remark=remark))


def refused(code: int, remark: str) -> Decision[Record]:
    """Nothing changes; the sentence says why."""
    return Decision(reply=Reply(code, remark))
