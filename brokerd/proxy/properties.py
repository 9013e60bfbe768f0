"""The names of stored properties: which belong to the system, and what they mean to gRPC (pure)."""

from __future__ import annotations

from typing import Final

from brokerd.timers import codes
from remoting import message_groups

KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
UNIQ_KEY: Final = "UNIQ_KEY"
SHARDING_KEY: Final = message_groups.SHARDING_KEY
TRACE_CONTEXT: Final = "TRACE_CONTEXT"
BORN_HOST: Final = "__BORNHOST"
BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
RECONSUME_TIME: Final = "RECONSUME_TIME"
TRAN_MSG: Final = "TRAN_MSG"
PRODUCER_GROUP: Final = "PGROUP"
TRAN_SECRET: Final = "TRAN_SECRET"
CHECK_IMMUNITY: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
TIMER_DUE_MS: Final = codes.DUE_MS
PRIORITY: Final = "_SYS_MSG_PRIORITY_"
DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"

# a user property may have none of these names; and none of them is shown as a user property
RESERVED: Final = frozenset(
    {
        KEYS, TAGS, UNIQ_KEY, SHARDING_KEY, TRACE_CONTEXT, BORN_HOST, BORN_TIMESTAMP, RECONSUME_TIME, TRAN_MSG,
        CHECK_IMMUNITY, TIMER_DELIVER_MS, TIMER_OUT_MS, DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_MESSAGE_ID,
        PRODUCER_GROUP, TRAN_SECRET,
        "WAIT", "DELAY", "RETRY_TOPIC", "REAL_TOPIC", "REAL_QID", "MIN_OFFSET", "MAX_OFFSET", "BUYER_ID",
        "ORIGIN_MESSAGE_ID", "TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG", "MSG_REGION", "TRACE_ON",
        "EXTEND_UNIQ_INFO", "MAX_RECONSUME_TIMES", "CONSUME_START_TIME", "TRAN_PREPARED_QUEUE_OFFSET",
        "TRANSACTION_CHECK_TIMES", "INSTANCE_ID", "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "ARRIVE_TIME",
        "PUSH_REPLY_TIME", "CLUSTER", "MSG_TYPE", "POP_CK", "POP_CK_OFFSET", "1ST_POP_TIME", "TIMER_DELAY_SEC",
        "TIMER_DELAY_MS", "TIMER_DEL_UNIQKEY", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES",
        "TIMER_DELAY_LEVEL", TIMER_DUE_MS, codes.LEG_MS, codes.PLACE,
        "INNER_NUM", "INNER_BASE", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET",
        "DUP_INFO", "__CRC32#", "LMQ", "__LITE_TOPIC", PRIORITY,
    }
)  # fmt: skip
# what a user property must not be named: these, or nothing
FORBIDDEN: Final = RESERVED | {""}
