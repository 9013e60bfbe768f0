"""Questions to connected consumers that tools ask through the broker: codes 307, 309, and 223 (asked with 221).

The consumer's answer goes back as it is; one of gRPC is asked on its telemetry stream, and its answer is put into the words of
remoting. One that does not answer in time costs its asker CONSUME_MSG_TIMEOUT, and nobody else anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import orjson

from brokerd.members.consumer_groups import ConsumerGroup, Member
from brokerd.members.registry import ClientRegistry
from brokerd.members.streams import Answered, CommandStream, Told
from brokerd.metadata.service import MetadataService
from brokerd.processors import fields
from brokerd.processors.bodies import encode, encode_object_map, message_queue
from brokerd.processors.clients.told import consumed_directly, running_info
from brokerd.processors.rights import may_use
from brokerd.store.store_reads import StoreReads
from remoting import codes
from remoting.access.model import SUB
from remoting.bare_json import loads_bare
from remoting.disk import Bytes
from remoting.errors import InvalidParameter, LogboomError, ProtocolError, RequestError, RequestTimeout
from remoting.frame import Command
from remoting.guarding.guard import Guard
from remoting.record.codec import decode_record
from remoting.record.hosts import decode_offset_message_id
from remoting.transport.connection import RemotingConnection

TIMEOUT_MS: Final = 10_000
STATUS_TIMEOUT_MS: Final = 5_000
_MAX_ASKED: Final = 1024  # consumers of one question
_MAX_QUEUES: Final = 100_000  # of one consumer's answer


@dataclass(frozen=True, slots=True)
class RelayProcessor:
    metadata: MetadataService
    clients: ClientRegistry
    reads: StoreReads
    broker_name: str
    now_ms: Callable[[], int]
    guard: Guard

    def running_info(self, connection: RemotingConnection, request: Command) -> None:
        """Code 307: what a consumer is doing."""
        found = self._grpc_member(request.ext)
        if found is None:
            self._relay(connection, request, request.ext, bytes(request.body))
            return
        group, member, stream = found
        if not fields.flag(request.ext, "jstackEnable"):
            connection.respond(request, body=running_info(member.info, group, None))
            return
        answered = self._told(connection, request, lambda told: running_info(member.info, group, told))
        stream.print_threads(TIMEOUT_MS, answered)

    def consume_directly(self, connection: RemotingConnection, request: Command) -> None:
        """Code 309: let a consumer consume one message, named by its offset id, and tell how that went."""
        ext = dict(request.ext)
        message_id = fields.text(ext, "msgId")
        try:
            physical_offset = decode_offset_message_id(message_id)[2]
        except ProtocolError as error:
            raise InvalidParameter(
                "msgId must be the offset id of a message (its address and place), as QUERY_MESSAGE and pulls give it"
            ) from error
        record = self.reads.message_at(physical_offset) if physical_offset >= 0 else None
        if record is None and ext.get("topic"):
            record = self.reads.cold_message_at(ext["topic"], physical_offset)
        if record is None:
            raise RequestError(
                codes.SYSTEM_ERROR, f"no message starts at offset {physical_offset} of this broker's log"
            )
        decoded = decode_record(record)
        may_use(self.guard, connection, request, SUB)(decoded)
        self._check_topic(ext, decoded.topic)
        found = self._grpc_member(ext)
        if found is not None:
            began_ms = self.now_ms()
            answered = self._told(connection, request, lambda told: consumed_directly(told, self.now_ms() - began_ms))
            found[2].verify_message(decoded, TIMEOUT_MS, answered)
            return
        ext["brokerName"] = self.broker_name
        topic = self.metadata.topic(ext.get("topic", ""))
        if topic is not None:
            ext["topicSysFlag"] = str(topic.topic_sys_flag)
        group = self.metadata.group(ext.get("consumerGroup", ""))
        if group is not None:
            ext["groupSysFlag"] = str(group.group_sys_flag)
        self._relay(connection, request, ext, record)

    def consumer_status(self, connection: RemotingConnection, request: Command) -> None:
        """Code 223: where each consumer of a group is in a topic, as it says itself; those that do not answer are left out."""
        group, topic = fields.text(request.ext, "group"), fields.text(request.ext, "topic")
        only = request.ext.get("clientAddr") or ""
        members = [each for each in self.clients.remoting_members(group) if only in ("", each.info.client_id)]
        if not members:
            raise RequestError(codes.CONSUMER_NOT_ONLINE, f"no such consumer of {group} is connected to this broker")
        asked = members[:_MAX_ASKED]
        statuses: dict[str, bytes] = {}
        waiting = len(asked)

        def told(member: Member, answer: Command | LogboomError) -> None:
            nonlocal waiting
            waiting -= 1
            if isinstance(answer, Command) and answer.code == codes.SUCCESS and answer.body:
                statuses[member.info.client_id] = _status(answer.body)
            if not waiting:
                entries = [encode(client_id) + b":" + table for client_id, table in sorted(statuses.items())]
                body = b'{"consumerTable":{' + b",".join(entries) + b'},"messageQueueTable":{}}'
                connection.respond(request, body=body)

        question = {"topic": topic, "group": group}
        for member in asked:
            assert member.connection is not None
            member.connection.request(
                codes.GET_CONSUMER_STATUS_FROM_CLIENT, question, b"", STATUS_TIMEOUT_MS, partial(told, member)
            )

    # ---- inside

    def _check_topic(self, ext: Mapping[str, str], topic: str) -> None:
        """The message must be of the topic that the request is about, or of one that the group subscribes to: who may have the
        one need not be allowed to read others."""
        if ext.get("topic"):
            if ext["topic"] != topic:
                raise InvalidParameter(f"the message is of topic {topic}, not of {ext['topic']}")
            return
        group = self.clients.consumer_group(fields.text(ext, "consumerGroup"))
        if group is not None and topic not in group.subscriptions:
            raise InvalidParameter(f"the message is of topic {topic}, to which the group does not subscribe")

    def _grpc_member(self, ext: Mapping[str, str]) -> tuple[ConsumerGroup, Member, CommandStream] | None:
        """The consumer that is asked for, when it is one of gRPC with an open stream and none of remoting has its name."""
        name, client_id = fields.text(ext, "consumerGroup"), fields.text(ext, "clientId")
        group = self.clients.consumer_group(name)
        member = self.clients.grpc_member(name, client_id)
        if group is None or member is None or member.stream is None or self.clients.remoting_member(name, client_id):
            return None
        return group, member, member.stream

    def _told(self, connection: RemotingConnection, request: Command, body: Callable[[Told], bytes]) -> Answered:
        """What answers a request with what a gRPC client told; `body` makes the body of it, or raises RequestError."""

        def answered(result: Told | LogboomError) -> None:
            try:
                if isinstance(result, LogboomError):
                    raise result
                connection.respond(request, body=body(result))
            except RequestTimeout as error:
                connection.respond(request, codes.CONSUME_MSG_TIMEOUT, remark=str(error))
            except LogboomError as error:
                connection.respond_error(request, error)

        return answered

    def _relay(self, connection: RemotingConnection, request: Command, ext: Mapping[str, str], body: bytes) -> None:
        group, client_id = fields.text(ext, "consumerGroup"), fields.text(ext, "clientId")
        member = self.clients.remoting_member(group, client_id)
        if member is None or member.connection is None:
            raise RequestError(
                codes.SYSTEM_ERROR, f"the consumer {client_id} of {group} is not connected to this broker"
            )

        def answered(answer: Command | LogboomError) -> None:
            if isinstance(answer, Command):
                connection.respond(request, answer.code, answer.ext, bytes(answer.body), answer.remark)
            elif isinstance(answer, RequestTimeout):
                remark = f"the consumer {client_id} of {group} did not answer within {TIMEOUT_MS} ms"
                connection.respond(request, codes.CONSUME_MSG_TIMEOUT, remark=remark)
            else:
                connection.respond_error(request, answer)

        member.connection.request(request.code, ext, body, TIMEOUT_MS, answered)


def _status(body: Bytes) -> bytes:
    """The map of a consumer's answer, written anew; empty when it cannot be read."""
    try:
        table = loads_bare(bytes(body))["messageQueueTable"]
        entries = [(_queue(orjson.loads(key)), int(offset)) for key, offset in table.items()]
    except (ProtocolError, ValueError, KeyError, TypeError, AttributeError):
        return b"{}"
    return encode_object_map(entries) if len(entries) <= _MAX_QUEUES else b"{}"


def _queue(key: Any) -> dict[str, Any]:
    return message_queue(str(key["topic"]), str(key["brokerName"]), int(key["queueId"]))
