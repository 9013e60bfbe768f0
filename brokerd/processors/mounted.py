"""What the mount of a broker group does not do: nothing is written to a group that is served from its tier, and nothing at all
without its lease."""

from __future__ import annotations

from typing import Final

from remoting import codes
from remoting.errors import RequestError
from remoting.frame import Command
from remoting.transport.connection import RemotingConnection
from remoting.transport.server import each

SENTENCE: Final = (
    "this broker group is gone, and is served read-only from its tier: send to another broker group; what is there can be pulled "
    "and popped as before"
)
WITHOUT_LEASE: Final = (
    "this mount of a broker group that is gone lost its lease on the tier, and serves no more: ask again when it, or another "
    "mount, has it"
)
REFUSED: Final = frozenset(
    {
        *(codes.SEND_MESSAGE, codes.SEND_MESSAGE_V2, codes.SEND_BATCH_MESSAGE),
        *(codes.SEND_REPLY_MESSAGE, codes.SEND_REPLY_MESSAGE_V2, codes.CONSUMER_SEND_MSG_BACK),
        *(codes.UPDATE_AND_CREATE_TOPIC, codes.UPDATE_AND_CREATE_TOPIC_LIST, codes.DELETE_TOPIC_IN_BROKER),
    }
)


def _refuse(_connection: RemotingConnection, _request: Command) -> None:
    raise RequestError(codes.NO_PERMISSION, SENTENCE)


refuse = each(_refuse)


def _refuse_without_lease(_connection: RemotingConnection, _request: Command) -> None:
    raise RequestError(codes.SERVICE_NOT_AVAILABLE, WITHOUT_LEASE)


refuse_without_lease = each(_refuse_without_lease)
