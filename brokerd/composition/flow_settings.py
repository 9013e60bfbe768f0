"""Settings of flow control (`--set flow.key=value`), and which kinds of requests may wait how long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from remoting import codes
from remoting.settings import check, setting
from remoting.transport.limits import ConnectionLimits
from remoting.transport.server import ServerLimits

_SENDS = (
    codes.SEND_MESSAGE,
    codes.SEND_MESSAGE_V2,
    codes.SEND_BATCH_MESSAGE,
    codes.SEND_REPLY_MESSAGE,
    codes.SEND_REPLY_MESSAGE_V2,
    codes.CONSUMER_SEND_MSG_BACK,
)
_PULLS = (codes.PULL_MESSAGE, codes.LITE_PULL_MESSAGE, codes.POP_MESSAGE)
_ACKS = (codes.ACK_MESSAGE, codes.BATCH_ACK_MESSAGE, codes.CHANGE_MESSAGE_INVISIBLETIME)


@dataclass(frozen=True, slots=True)
class FlowSettings:
    """What one client, and all together, can make this broker hold. A request that was read and then waited longer than its
    kind may, because its connection had too much open, is refused: its client has given it up, or soon does."""

    send_wait_ms: int = setting(1000, "how long a send may wait here before it is handled", minimum=10, maximum=600_000)
    pull_wait_ms: int = setting(5000, "likewise a pull or a pop", minimum=10, maximum=600_000)
    ack_wait_ms: int = setting(3000, "likewise an ack, or the end of a transaction", minimum=10, maximum=600_000)
    heartbeat_wait_ms: int = setting(31_000, "likewise a heartbeat", minimum=10, maximum=600_000)
    other_wait_ms: int = setting(5000, "likewise any other request", minimum=10, maximum=600_000)
    max_connections: int = setting(
        10_000, "remoting clients that are connected at once, as far as files may be open", minimum=1, maximum=1_000_000
    )
    max_in_flight: int = setting(
        16_384, "requests of one connection that are not answered yet", minimum=1, maximum=1_000_000
    )
    max_unsent_bytes: int = setting(
        32 << 20,
        "answers that one client leaves unread; with more it is disconnected",
        minimum=8 << 20,
        maximum=1 << 40,
    )
    max_slow_readers: int = setting(
        128,
        "clients that leave 4 MiB of answers unread; of more, the first are disconnected",
        minimum=1,
        maximum=100_000,
    )

    def __post_init__(self) -> None:
        check("flow", self)

    def limits(self) -> ServerLimits:
        """The same for the transport."""
        wait_ms: Mapping[int, int] = {
            **dict.fromkeys(_SENDS, self.send_wait_ms),
            **dict.fromkeys((*_PULLS, codes.BULK_READ), self.pull_wait_ms),
            **dict.fromkeys((*_ACKS, codes.END_TRANSACTION), self.ack_wait_ms),
            codes.HEART_BEAT: self.heartbeat_wait_ms,
        }
        connection = ConnectionLimits(
            max_in_flight=self.max_in_flight,
            max_unsent_bytes=self.max_unsent_bytes,
            wait_ms=wait_ms,
            other_wait_ms=self.other_wait_ms,
            large_answers=frozenset(_PULLS),
            long_requests=frozenset({codes.BULK_READ}),
        )
        return ServerLimits(connection, self.max_slow_readers, self.max_connections)
