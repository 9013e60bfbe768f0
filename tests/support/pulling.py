"""The fields of a pull request, as a tool of the original sends them."""

from __future__ import annotations


def pull_fields(topic: str, queue_id: int, offset: int) -> dict[str, str]:
    """Up to 32 messages of a queue from the offset on, whatever their tags; answered at once, also when there are none."""
    return {
        "consumerGroup": "TOOLS_CONSUMER",
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
