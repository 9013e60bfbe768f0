"""What a message must say besides its body, by the type of its topic (pure)

A FIFO topic takes messages with a message group, a DELAY topic such with a delay level, a TRANSACTION topic those whose
transaction is decided; each of these is refused by the others, and by NORMAL and PRIORITY topics. A topic of any other type
(MIXED, or not known) takes one of them or none.
"""

from __future__ import annotations

from typing import Final

from remoting.message_groups import MAX_GROUP_BYTES
from webapp.rules import MESSAGE_TYPES, Rules

COMMIT: Final = "commit"
ROLLBACK: Final = "rollback"
DECISIONS: Final = {COMMIT: "commit: it is delivered", ROLLBACK: "roll back: nobody receives it"}
DEFAULT_LEVELS: Final = 18

FIELD_OF_TYPE: Final = {"FIFO": "message_group", "DELAY": "delay_level", "TRANSACTION": "decision"}
FIELDS: Final = tuple(FIELD_OF_TYPE.values())
_MISSING: Final = {
    "FIFO": "is missing: the topic is FIFO, so each message names its message group, within which the order is kept",
    "DELAY": "is missing: the topic is DELAY, so each message names the delay level after which it is delivered",
    "TRANSACTION": "is missing: the topic is TRANSACTION, so say what becomes of the message: commit or rollback",
}


def fields_of(topic_type: str) -> tuple[str, ...]:
    """The fields that a message to a topic of this type may have."""
    if topic_type not in MESSAGE_TYPES:
        return FIELDS
    return tuple(field for kind, field in FIELD_OF_TYPE.items() if kind == topic_type)


def check_type(rules: Rules, topic_type: str, levels: int) -> dict[str, str | int | None]:
    """The fields of `FIELDS`, None where nothing is given; refuses what the topic's type asks for or does not take.

    `levels` is how many delay levels there are.
    """
    given = [field for field in FIELDS if rules.has(field)]
    own = FIELD_OF_TYPE.get(topic_type)
    if own is not None and own not in given:
        rules.refuse(own, _MISSING[topic_type])
    for kind, field in FIELD_OF_TYPE.items():
        if field in given and topic_type in MESSAGE_TYPES and field != own:
            rules.refuse(field, f"must be left out: it is for {kind} topics, and this topic is {topic_type}")
        elif field in given[1:] and topic_type not in MESSAGE_TYPES:
            rules.refuse(field, f"must be left out: a message has either this or {given[0]}")
    return {
        "message_group": _message_group(rules) if "message_group" in given else None,
        "delay_level": rules.integer("delay_level", least=1, most=levels) if "delay_level" in given else None,
        "decision": rules.choice("decision", tuple(DECISIONS)) if "decision" in given else None,
    }


def _message_group(rules: Rules) -> str:
    group = rules.text("message_group", most=MAX_GROUP_BYTES - 1)
    if len(group.encode()) >= MAX_GROUP_BYTES:
        rules.refuse("message_group", f"must have fewer than {MAX_GROUP_BYTES} bytes; it has {len(group.encode())}")
    return group
