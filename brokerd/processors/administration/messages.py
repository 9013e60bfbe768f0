"""Finding single messages: codes 12 (by key) and 33 (by physical offset)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from brokerd.consuming.key_queries import Found, KeyQueries
from brokerd.processors import fields
from brokerd.processors.rights import may_use
from brokerd.store.index.search import Question
from brokerd.store.store_reads import StoreReads
from remoting import codes
from remoting.access.model import GET, SUB
from remoting.errors import LogboomError, RequestError
from remoting.frame import Command
from remoting.guarding.guard import Guard
from remoting.record.codec import decode_record
from remoting.transport.connection import RemotingConnection

_UNIQUE_KEY_FLAG: Final = "_UNIQUE_KEY_QUERY"
_UNIQUE_KEY_MESSAGES: Final = 32  # whatever a query by unique id asks for


@dataclass(frozen=True, slots=True)
class MessageProcessor:
    reads: StoreReads
    queries: KeyQueries
    guard: Guard

    def view(self, connection: RemotingConnection, request: Command) -> None:
        """Code 33. In the tier it is found with the name of its topic."""
        offset = fields.integer(request.ext, "offset")
        topic = request.ext.get("topic", "")
        record = self.reads.message_at(offset)
        if record is None and topic:
            record = self.reads.cold_message_at(topic, offset)
        if record is None:
            raise RequestError(codes.SYSTEM_ERROR, self._not_there(offset, topic))
        may_use(self.guard, connection, request, SUB, GET)(decode_record(record))
        connection.respond(request, body=record)

    def _not_there(self, offset: int, topic: str) -> str:
        if self.reads.cold is None or offset >= self.reads.commitlog.min_offset:
            return f"no message starts at offset {offset} of this broker's log"
        if topic:
            return f"no message of {topic} starts at offset {offset}, neither in this broker's log nor in its tier"
        return (
            f"this broker's log begins behind offset {offset}; what was before is in the tier: ask with the message's topic, or "
            "by its key"
        )

    def query(self, connection: RemotingConnection, request: Command) -> None:
        """Code 12. Replicas answer too, from what they have."""
        ext = request.ext
        most = fields.integer(ext, "maxNum", low=0, high=fields.MAX_INT)
        if ext.get(_UNIQUE_KEY_FLAG) == "true":
            most = _UNIQUE_KEY_MESSAGES
        question = Question(
            fields.text(ext, "topic"),
            fields.text(ext, "key"),
            most,
            fields.integer(ext, "beginTimestamp", low=fields.MIN_LONG),
            fields.integer(ext, "endTimestamp", low=fields.MIN_LONG),
        )
        if not self.queries.is_possible:
            remark = "this broker keeps no index of keys (store.index_enabled is false)"
            connection.respond(request, codes.QUERY_NOT_FOUND, _progress(0, 0), remark=remark)
            return

        def done(found: Found | LogboomError) -> None:
            if isinstance(found, LogboomError):
                connection.respond_error(request, found)
                return
            ext = _progress(found.last_timestamp_ms, found.last_offset)
            if found.records:
                connection.respond(request, codes.SUCCESS, ext, b"".join(found.records))
            else:
                connection.respond(request, codes.QUERY_NOT_FOUND, ext, remark=_not_found_text(found))

        self.queries.find(question, done)


def _progress(timestamp_ms: int, offset: int) -> dict[str, str]:
    """How far the index is; clients read this from every answer."""
    return {"indexLastUpdateTimestamp": str(timestamp_ms), "indexLastUpdatePhyoffset": str(offset)}


def _not_found_text(found: Found) -> str:
    if found.unread_bytes:
        return f"no message found so far; the index has still to read {found.unread_bytes} bytes, so try again"
    if found.gave_up:
        return "no message found among the newest with keys of this hash; narrow the time range"
    return "no message of the topic has this key in this range of time"
