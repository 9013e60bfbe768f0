"""Pulls as tests ask for them: of the first queue of topic t by group g, with a subscription of all."""

from __future__ import annotations

from typing import Any

from brokerd.processors.pulling.checks import FLAG_SUBSCRIPTION
from remoting import codes, frame


def pull_fields(offset: int = 0, **changes: Any) -> dict[str, Any]:
    """What a request says, with changes by name."""
    return {
        "consumerGroup": "g",
        "topic": "t",
        "queueId": 0,
        "queueOffset": offset,
        "maxMsgNums": 32,
        "sysFlag": FLAG_SUBSCRIPTION,
        "commitOffset": 0,
        "suspendTimeoutMillis": 15000,
        "subscription": "*",
        "subVersion": 0,
        **changes,
    }


def pull_frame(opaque: int, offset: int = 0, **changes: Any) -> bytes:
    """The same as a client sends it."""
    texts = {name: str(value) for name, value in pull_fields(offset, **changes).items()}
    return frame.encode_request(codes.PULL_MESSAGE, opaque, texts)
