"""What a message must say besides its body, by the type of its topic (pure)

A FIFO topic takes messages with a message group, a DELAY topic such with a delay level or a delivery time, a TRANSACTION topic
those whose transaction is decided; each of these is refused by the others, and by NORMAL and PRIORITY topics. A topic of any
other type (MIXED, or not known) takes one of them or none.
"""

from __future__ import annotations

from datetime import UTC, tzinfo
from typing import Final

from remoting.message_groups import MAX_GROUP_BYTES
from webapp.rules import MESSAGE_TYPES, Rules

COMMIT: Final = "commit"
ROLLBACK: Final = "rollback"
DECISIONS: Final = {COMMIT: "commit: it is delivered", ROLLBACK: "roll back: nobody receives it"}
DEFAULT_LEVELS: Final = 18

TYPE_OF_FIELD: Final = {
    "message_group": "FIFO",
    "delay_level": "DELAY",
    "deliver_at": "DELAY",
    "decision": "TRANSACTION",
}
FIELDS: Final = tuple(TYPE_OF_FIELD)
_MISSING: Final = {
    "FIFO": "is missing: the topic is FIFO, so each message names its message group, within which the order is kept",
    "DELAY": "is missing: the topic is DELAY, so each message names the delay level after which it is delivered, or deliver_at",
    "TRANSACTION": "is missing: the topic is TRANSACTION, so say what becomes of the message: commit or rollback",
}


def fields_of(topic_type: str) -> tuple[str, ...]:
    """The fields that a message to a topic of this type may have."""
    if topic_type not in MESSAGE_TYPES:
        return FIELDS
    return tuple(field for field, kind in TYPE_OF_FIELD.items() if kind == topic_type)


def check_type(rules: Rules, topic_type: str, levels: int, zone: tzinfo) -> dict[str, str | int | None]:
    """The fields of `FIELDS`, None where nothing is given; refuses what the topic's type asks for or does not take.

    `levels` is how many delay levels there are, `zone` that of the viewer.
    """
    given = [field for field in FIELDS if rules.has(field)]
    own = fields_of(topic_type)
    if topic_type in _MISSING and not set(own) & set(given):
        rules.refuse(own[0], _MISSING[topic_type])
    for field in given:
        if field not in own:
            kind = TYPE_OF_FIELD[field]
            rules.refuse(field, f"must be left out: it is for {kind} topics, and this topic is {topic_type}")
        elif (first := next(each for each in given if each in own)) != field:
            rules.refuse(field, f"must be left out: a message has either this or {first}")
    return {
        "message_group": _message_group(rules) if "message_group" in given else None,
        "delay_level": rules.integer("delay_level", least=1, most=levels) if "delay_level" in given else None,
        "deliver_at": _deliver_at(rules, zone) if "deliver_at" in given else None,
        "decision": rules.choice("decision", tuple(DECISIONS)) if "decision" in given else None,
    }


def _deliver_at(rules: Rules, zone: tzinfo) -> str | None:
    """In UTC, to the millisecond."""
    moment = rules.moment("deliver_at", zone)
    if moment is None:
        return None
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _message_group(rules: Rules) -> str:
    group = rules.text("message_group", most=MAX_GROUP_BYTES - 1)
    if len(group.encode()) >= MAX_GROUP_BYTES:
        rules.refuse("message_group", f"must have fewer than {MAX_GROUP_BYTES} bytes; it has {len(group.encode())}")
    return group
