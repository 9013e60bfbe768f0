"""Moving groups to other offsets: codes 222 (reset) and 314 (clone), and the notice 220 to consumers.

A reset waits in the log: it is the group's offset at once, and what its consumers commit does not count until the next pull of
the queue was told, or a pop took from it. So it needs nobody to be connected, and survives a change of master. With
`pull.reset_at_broker` off, connected consumers are told where to go on and commit that themselves, as before version 5.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from brokerd.consuming.read_place import PullSettings
from brokerd.metadata.names import check_committer
from brokerd.pop.service import PopService
from brokerd.processors import fields
from brokerd.processors.answers import Done, when_done
from brokerd.processors.bodies import encode, encode_object_map, message_queue
from brokerd.processors.offsets.consumption import Consumption
from brokerd.processors.sliced import in_portions
from remoting import codes
from remoting.errors import InvalidParameter, LogboomError, RequestError
from remoting.frame import Command
from remoting.settings import Live
from remoting.transport.connection import RemotingConnection

LATEST_MS: Final = -1
_MAX_CLONED: Final = 20_000  # in one turn of the loop and one write


@dataclass(frozen=True, slots=True)
class ResetProcessor:
    """The handlers. `wake(topic, queue)` lets pulls that wait look again."""

    consumption: Consumption
    pops: PopService
    settings: Live[PullSettings]
    wake: Callable[[str, int], None]

    def reset(self, connection: RemotingConnection, request: Command) -> Iterator[int]:
        """Code 222: by time (-1 = behind the last message), all queues or one; or one queue to an offset."""
        ext = request.ext
        group, topic = fields.text(ext, "group"), fields.text(ext, "topic")
        timestamp_ms = fields.integer(ext, "timestamp", low=-1)
        check_committer(group)
        config = self.consumption.metadata.topic(topic)
        if config is None:
            raise RequestError(codes.TOPIC_NOT_EXIST, f"topic {topic} does not exist")
        if self.consumption.metadata.group(group) is None:
            raise RequestError(codes.SUBSCRIPTION_GROUP_NOT_EXIST, f"consumer group {group} does not exist")
        if not self.settings.value.reset_at_broker:
            offsets = yield from self._client_offsets(group, topic, timestamp_ms, force=fields.flag(ext, "isForce"))
            self._tell(group, topic, timestamp_ms, offsets)
            connection.respond(request, body=self._body(topic, offsets))
            return
        queue_id = fields.integer(ext, "queueId", -1, low=-1, high=fields.MAX_INT)
        if queue_id >= config.read_queue_nums:
            raise RequestError(
                codes.SYSTEM_ERROR, f"topic {topic} has queues 0 to {config.read_queue_nums - 1}, not {queue_id}"
            )
        offset = fields.integer(ext, "offset", -1, low=-1)
        if queue_id >= 0 and offset >= 0:
            offsets = {queue_id: self._checked(topic, queue_id, offset)}
        else:
            queue_ids = range(config.read_queue_nums) if queue_id < 0 else (queue_id,)
            found = yield from in_portions(lambda each: self._offset_at(topic, each, timestamp_ms), queue_ids)
            offsets = dict(zip(queue_ids, found, strict=True))
        yield len(offsets)  # what is left to do
        self._reset(group, topic, offsets, when_done(connection, request, body=self._body(topic, offsets)))

    def clone(self, connection: RemotingConnection, request: Command) -> None:
        """Code 314: give a group the offsets of another, of a topic or of all that it consumes.

        Unless `offline`, topics to which the other one's members do not subscribe are left out; so are those that are not there.
        """
        ext = request.ext
        source, target = fields.text(ext, "srcGroup"), fields.text(ext, "destGroup")
        check_committer(target)
        asked = ext.get("topic")
        present = self.consumption.clients.consumer_group(source)
        subscribed = present.subscriptions if present is not None and not fields.flag(ext, "offline") else {}
        entries: dict[tuple[str, str, int], int] = {}
        for topic, queue_id in self.consumption.progress.consumed_by(source):
            if (asked and topic != asked) or self.consumption.metadata.topic(topic) is None:
                continue
            offset = self.consumption.progress.consumer_offset(source, topic, queue_id)
            if offset is not None and (not subscribed or topic in subscribed):
                entries[target, topic, queue_id] = offset
                if len(entries) > _MAX_CLONED:
                    raise InvalidParameter(f"{source} consumes more than {_MAX_CLONED} queues; clone topic by topic")

        self.consumption.metadata.commits.set_all(entries, when_done(connection, request))

    # ---- inside

    def _offset_at(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        if timestamp_ms == LATEST_MS:
            return self.consumption.ranges.max_offset(topic, queue_id)
        return self.consumption.ranges.offset_by_time(topic, queue_id, timestamp_ms)

    def _checked(self, topic: str, queue_id: int, offset: int) -> int:
        low, high = (
            self.consumption.ranges.min_offset(topic, queue_id),
            self.consumption.ranges.max_offset(topic, queue_id),
        )
        if not low <= offset <= high + 1:
            raise RequestError(
                codes.SYSTEM_ERROR, f"queue {queue_id} of {topic} has offsets from {low} to {high}, not {offset}"
            )
        return min(offset, high)

    def _reset(self, group: str, topic: str, offsets: Mapping[int, int], done: Done) -> None:
        try:
            for queue_id, offset in offsets.items():
                self.pops.reset_offset(group, topic, queue_id, offset)
        except LogboomError as error:
            done(RequestError(error.code, str(error)))
            return
        self.consumption.metadata.commits.reset(group, topic, offsets, done)
        for queue_id in offsets:
            self.wake(topic, queue_id)

    def _client_offsets(
        self, group: str, topic: str, timestamp_ms: int, *, force: bool
    ) -> Generator[int, None, dict[int, int]]:
        """Where consumers shall go on; not ahead of where they are unless forced."""
        config = self.consumption.metadata.topic(topic)

        def offset_of(queue_id: int) -> int:
            present = self.consumption.progress.consumer_offset(group, topic, queue_id)
            if present is None:
                raise RequestError(
                    codes.SYSTEM_ERROR,
                    f"consumer group {group} never committed an offset in queue {queue_id} of {topic}",
                )
            wanted = self._offset_at(topic, queue_id, timestamp_ms)
            return wanted if force else min(wanted, present)

        queue_ids = range(config.write_queue_nums if config is not None else 0)
        return dict(zip(queue_ids, (yield from in_portions(offset_of, queue_ids)), strict=True))

    def _tell(self, group: str, topic: str, timestamp_ms: int, offsets: Mapping[int, int]) -> None:
        members = self.consumption.clients.remoting_members(group)
        if not members:
            raise RequestError(
                codes.CONSUMER_NOT_ONLINE, f"no consumer of {group} is connected to this broker that could be told"
            )
        ext = {"topic": topic, "group": group, "timestamp": str(timestamp_ms), "isForce": "true", "queueId": "-1"}
        listed = [
            message_queue(topic, self.consumption.broker_name, each) | {"offset": offset}
            for each, offset in offsets.items()
        ]
        bodies = {"CPP": encode({"offsetTable": listed})}  # the form that C++ clients read
        usual = self._body(topic, offsets)
        for member in members:
            if member.connection is not None:
                body = bodies.get(member.info.language, usual)
                member.connection.notify(codes.RESET_CONSUMER_CLIENT_OFFSET, ext, body)

    def _body(self, topic: str, offsets: Mapping[int, int]) -> bytes:
        """With objects as keys: the one form that Java reads and Go does not stumble over. No blanks: Go splits it by hand."""
        entries = [
            (message_queue(topic, self.consumption.broker_name, each), offset) for each, offset in offsets.items()
        ]
        return b'{"offsetTable":' + encode_object_map(entries) + b"}"
