"""A later version of the program: one record has another format from a later feature level on, and there is one more subject."""

from __future__ import annotations

from dataclasses import dataclass, replace

from controllerd.records.decision import Decision
from controllerd.records.subject import Format, Subject, Subjects, highest_level, plain
from controllerd.replicas.records import FORMATS, MasterLost
from controllerd.state.subjects import REPLICAS, SUBJECTS

LEVEL = highest_level(SUBJECTS) + 1


@dataclass(frozen=True)
class Note:
    """What the new subject is asked, what it records, and its state."""

    text: str = ""


def _decode_lost(fields: list[object]) -> MasterLost:
    name, epoch = fields
    return MasterLost(str(name), int(str(epoch)))


SHORT_LOST = Format(
    "master_lost", MasterLost, lambda record: [record.broker_name, record.master_epoch], _decode_lost, 2, LEVEL
)
NOTES: Subject[Note, Note, Note] = Subject(
    "notes",
    Note(),
    (Note,),
    lambda _state, request: Decision((request,)),
    lambda _state, record: record,
    (replace(plain("note", Note), level=LEVEL),),
    lambda state: state.text.encode(),
    lambda content: Note(content.decode()),
)
NEWER: Subjects = {**SUBJECTS, "replicas": replace(REPLICAS, formats=(*FORMATS, SHORT_LOST)), "notes": NOTES}
