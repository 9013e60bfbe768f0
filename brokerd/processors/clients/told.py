"""What gRPC clients answer to questions that tools ask over remoting, in the words of that protocol (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from brokerd.members.consumer_groups import ClientInfo, ConsumerGroup
from brokerd.members.streams import Told
from brokerd.processors.bodies import encode
from brokerd.processors.clients.connections import subscription_json
from remoting import codes
from remoting.errors import RequestError

_OK: Final = 20000
_RESULTS: Final = {_OK: "CR_SUCCESS", 40016: "CR_RETURN_NULL", 60000: "CR_LATER"}  # by the status of the gRPC protocol


def consumed_directly(told: Told, spent_ms: int) -> bytes:
    """The body of an answer to CONSUME_MESSAGE_DIRECTLY. Raises RequestError when the client cannot do that."""
    result = _RESULTS.get(told.code)
    if result is None:
        raise _declined(told)
    remark = told.text or "from a gRPC client"
    document = {
        "autoCommit": True,
        "consumeResult": result,
        "order": False,
        "remark": remark,
        "spentTimeMills": spent_ms,
    }
    return encode(document)


def running_info(info: ClientInfo, group: ConsumerGroup, threads: Told | None) -> bytes:
    """The body of an answer to GET_CONSUMER_RUNNING_INFO: what is known of a client here, and what its `threads` do if they
    were asked for. It has no queues of its own. Raises RequestError when it does not show its threads."""
    if threads is not None and threads.code not in (0, _OK):
        raise _declined(threads)
    wanted: Sequence[str] = sorted(topic for topic in info.subscriptions if topic in group.subscriptions)
    document = {
        "jstack": "" if threads is None else threads.text,
        "mqPopTable": {},
        "mqTable": {},
        "properties": {
            "PROP_CLIENT_VERSION": info.version,
            "PROP_CONSUMEORDERLY": "false",
            "PROP_CONSUMER_START_TIMESTAMP": "0",  # not known, but tools need a number
            "PROP_CONSUME_TYPE": group.consume_type,
            "PROP_NAMESERVER_ADDR": "",
            "PROP_THREADPOOL_CORE_SIZE": "0",
        },
        "statusTable": {},
        "subscriptionSet": [subscription_json(group.subscriptions[topic]) for topic in wanted],
        "userConsumerInfo": {},
    }
    return encode(document)


def _declined(told: Told) -> RequestError:
    return RequestError(
        codes.SYSTEM_ERROR, f"the client declines: {told.text or 'without a reason'} (its code is {told.code})"
    )
