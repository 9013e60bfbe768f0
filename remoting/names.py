"""Names of topics and groups: spelling, length, which the protocol keeps for itself, and what a prefix says (pure).

Names are compared exactly: the protocol tells upper from lower case, so `RMQ_SYS_x` is anybody's, `rmq_sys_x` the system's.
"""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Final

LEGAL_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
MAX_TOPIC_LENGTH: Final = 127
MAX_RETRY_TOPIC_LENGTH: Final = 255  # of the topics below, whose names have a group's name and may have a topic's
MAX_GROUP_LENGTH: Final = 120
MAX_BROKER_NAME_LENGTH: Final = 127  # of a broker group, and of a cluster

RETRY_PREFIX: Final = "%RETRY%"  # of the topic from which a consumer group gets messages again
DEAD_LETTER_PREFIX: Final = "%DLQ%"  # of the topic with the messages that a group was given too often
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
JOURNAL_TOPIC_PREFIX: Final = "rmq_sys_logboom_"  # of those in which brokers keep their own state
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"  # in which delayed messages wait
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"  # in which timers of any due time wait
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"  # in which the messages of open transactions wait
RESERVED_TOPICS: Final = frozenset(
    {
        "TBW102",
        SCHEDULE_TOPIC,
        "BenchmarkTest",
        HALF_TOPIC,
        "RMQ_SYS_TRACE_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC",
    }
)

# Of the reserved topics, those that clients send to: tools, benchmarks, traces
_CLIENTS_WRITE: Final = frozenset({"TBW102", "BenchmarkTest", "RMQ_SYS_TRACE_TOPIC"})

# Consumer groups that are there without anybody creating them
BUILT_IN_GROUPS: Final = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)


def is_system_topic(name: str, own: Container[str] = ()) -> bool:
    """Whether the system keeps this topic for itself. `own` are topics that one cluster adds: named like it, or its brokers."""
    return name.startswith(SYSTEM_TOPIC_PREFIX) or name in RESERVED_TOPICS or name in own


def is_brokers_topic(name: str) -> bool:
    """Whether the broker alone writes to this topic of the system, and super users alone look into it."""
    return is_system_topic(name) and name not in _CLIENTS_WRITE


def is_journal_topic(name: str) -> bool:
    """Whether brokers keep their own state there, keys among it: its records are nobody else's."""
    return name.startswith(JOURNAL_TOPIC_PREFIX)


def is_retry_topic(name: str) -> bool:
    """Whether a consumer group gets messages again from this topic."""
    return name.startswith(RETRY_PREFIX)


def is_dead_letter_topic(name: str) -> bool:
    """Whether this topic holds messages that a consumer group was given too often."""
    return name.startswith(DEAD_LETTER_PREFIX)


def dead_letter_topic_of(group: str) -> str:
    """The topic with the messages that a group was given too often."""
    return f"{DEAD_LETTER_PREFIX}{group}"


def group_of_retry_topic(name: str) -> str | None:
    """Whose retry topic it is: `%RETRY%<group>`, or `%RETRY%<group>+<topic>` of a pop group (`+` is legal in no name).

    None for any other topic. In the older form `%RETRY%<group>_<topic>` the two cannot be told apart; they are answered together.
    """
    return name.removeprefix(RETRY_PREFIX).partition("+")[0] if is_retry_topic(name) else None


def origin_of_retry_topic(name: str) -> str | None:
    """The topic whose messages come back through a pop group's retry topic; None for a retry topic that does not say."""
    assert is_retry_topic(name), name
    return name.partition("+")[2] or None


def group_of_dead_letter_topic(name: str) -> str:
    """Whose dead letters it holds."""
    assert is_dead_letter_topic(name), name
    return name.removeprefix(DEAD_LETTER_PREFIX)
