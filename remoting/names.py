"""Names of topics and groups: how they may be spelled, how long they may be, and which the protocol keeps for itself (pure)."""

from __future__ import annotations

import re
from typing import Final

LEGAL_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
MAX_TOPIC_LENGTH: Final = 127
MAX_GROUP_LENGTH: Final = 120

RETRY_PREFIX: Final = "%RETRY%"  # of the topic from which a consumer group gets messages again
DEAD_LETTER_PREFIX: Final = "%DLQ%"  # of the topic with the messages that a group was given too often
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"  # in which delayed messages wait
RESERVED_TOPICS: Final = frozenset(
    {
        "TBW102",
        SCHEDULE_TOPIC,
        "BenchmarkTest",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC",
    }
)

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


def is_system_topic(name: str) -> bool:
    """Whether the topic belongs to the system: nobody creates, changes or deletes it. Names are case-sensitive."""
    return name.startswith(SYSTEM_TOPIC_PREFIX) or name in RESERVED_TOPICS


def group_of_retry_topic(name: str) -> str | None:
    """The group that gets messages again from this topic, `%RETRY%group` or `%RETRY%group+topic`; None for any other topic."""
    return name[len(RETRY_PREFIX) :].partition("+")[0] if name.startswith(RETRY_PREFIX) else None
