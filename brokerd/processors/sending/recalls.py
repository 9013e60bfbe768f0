"""Messages that wait for a moment of their own: taken back (code 370), and how far they are delivered (codes 60 and 61)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from brokerd.metadata.configs import TopicConfig
from brokerd.metadata.service import DataVersion
from brokerd.processors import fields
from brokerd.processors.bodies import encode
from brokerd.timers.clients import TimedMessages
from brokerd.timers.counting import TimerCounting
from remoting import codes
from remoting.errors import RequestError
from remoting.frame import Command
from remoting.names import TIMER_TOPIC
from remoting.transport.connection import RemotingConnection

# delivered up to (ms), position of the timer log, queue offset here, the master's, state version, timestamp, counter
_CHECK_POINT: Final = struct.Struct(">7q")


class TimerProgress(NamedTuple):
    """What is due up to `delivered_ms` was delivered; the timer log is on disk up to `log_position`, and the timer topic's queue
    ends at `queue_end`."""

    delivered_ms: int
    log_position: int
    queue_end: int


@dataclass(frozen=True, slots=True)
class RecallProcessor:
    """The handlers. `topic(name)` looks one up; `progress()` says where the timers stand now, `counting` how many wait."""

    timed: TimedMessages
    topic: Callable[[str], TopicConfig | None]
    progress: Callable[[], TimerProgress]
    counting: TimerCounting
    data_version: Callable[[], DataVersion]
    wall_ms: Callable[[], int]

    def recall(self, connection: RemotingConnection, request: Command) -> None:
        """Code 370."""
        topic, handle = fields.text(request.ext, "topic"), fields.text(request.ext, "recallHandle")
        if self.topic(topic) is None:
            raise RequestError(codes.TOPIC_NOT_EXIST, f"topic {topic[:127]} does not exist")

        def done(result: str | RequestError) -> None:
            if isinstance(result, RequestError):
                connection.respond_error(request, result)
            else:
                connection.respond(request, ext={"msgId": result})

        self.timed.recall(topic, handle, done)

    def check_point(self, connection: RemotingConnection, request: Command) -> None:
        """Code 60, which replicas of the original ask their master."""
        stands, version = self.progress(), self.data_version()
        body = _CHECK_POINT.pack(
            stands.delivered_ms,
            stands.log_position,
            stands.queue_end,
            stands.queue_end,
            version.state_version,
            version.timestamp_ms,
            version.counter,
        )
        connection.respond(request, body=body)

    def metrics(self, connection: RemotingConnection, request: Command) -> None:
        """Code 61: how many wait for each topic. Those of topics that are not counted one by one stand under the timer topic's
        name. The body cannot say that some are not counted yet, so the remark does."""
        now_ms, counts, uncounted = self.wall_ms(), self.counting.counts, self.counting.uncounted
        counted = {
            topic or TIMER_TOPIC: {"count": counts.of_topic(topic), "timeStamp": now_ms} for topic in counts.topics()
        }
        table = {"dataVersion": self.data_version().as_json(), "timingCount": counted}
        remark = f"{uncounted} entries of {TIMER_TOPIC} are still being counted" if uncounted else None
        connection.respond(request, body=encode(table), remark=remark)
