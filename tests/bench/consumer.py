"""One consuming process of the receive-and-ack load: raw sockets, many conversations at once, as little work as can be.

    python -m tests.bench.consumer grpc|remoting HOST:PORT TOPIC GROUP CONVERSATIONS

Each conversation receives up to 32 messages, acks them together, and goes on until a receive brings nothing. Prints one line of
JSON: messages received and acked, when it began and when the last ack was answered (monotonic seconds), its own CPU seconds, and
how long receives and acks took.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

import orjson

from brokerd.proxy.http2 import frames
from brokerd.proxy.protobuf import definition, service
from remoting import codes, frame
from remoting.frame import Command
from remoting.transport.client import split_address

BATCH: Final = 32
_INVISIBLE_MS: Final = 300_000
_WAIT_MS: Final = 1000  # a receive that brings nothing within this time ends its conversation
_READ_BYTES: Final = 1 << 20
_FOUND_OR_NOT: Final = (definition.Code.Value("OK"), definition.Code.Value("MESSAGE_NOT_FOUND"))


@dataclass
class Answer:
    """An answered call: how many messages it was about; `ack` is the request that acks received ones."""

    received: bool
    count: int
    took_s: float
    ack: bytes = b""


class Wire(Protocol):
    """One connection's protocol, without the socket."""

    opening: bytes
    is_ready: bool  # for receives

    def receive(self) -> bytes:
        """The bytes of one more request for messages."""

    def answers(self, data: bytes) -> Iterator[Answer]:
        """The calls that are answered completely now."""

    def housekeeping(self) -> bytes:
        """What else has to be sent."""


class GrpcWire:
    """HTTP/2 as far as one well-behaved server needs it."""

    def __init__(self, topic: str, group: str) -> None:
        self.opening = (
            frames.PREFACE
            + frames.encode_settings([(frames.Setting.INITIAL_WINDOW_SIZE, frames.MAX_WINDOW)])
            + frames.encode_window_update(0, 1 << 30)
        )
        request = service.ReceiveMessageRequest()
        request.group.name = group
        request.message_queue.topic.name = topic
        request.filter_expression.type = definition.FilterType.Value("TAG")
        request.filter_expression.expression = "*"
        request.batch_size = BATCH
        request.invisible_duration.FromMilliseconds(_INVISIBLE_MS)
        request.long_polling_timeout.FromMilliseconds(_WAIT_MS)
        self._receive = request.SerializeToString()
        self._ack = service.AckMessageRequest()
        self._ack.group.name = group
        self._ack.topic.name = topic
        client_id = f"bench-consumer-{os.getpid()}"
        self._heads = {method: _request_head(method, client_id) for method in ("ReceiveMessage", "AckMessage")}
        self._rest = b""
        self._next_stream_id = 1
        self._calls: dict[int, tuple[bool, float, list[bytes]]] = {}
        self._unreplenished = 0
        # Apache RocketMQ's proxy serves a receive only of a client whose settings it knows
        self._settings_stream_id = self._next_stream_id
        self._next_stream_id += 2
        self.is_ready = False
        self.opening += frames.encode_frame(
            frames.HEADERS, frames.END_HEADERS, self._settings_stream_id, _request_head("Telemetry", client_id)
        ) + frames.encode_frame(frames.DATA, 0, self._settings_stream_id, _prefixed(_settings(topic, group)))

    def receive(self) -> bytes:
        return self._call("ReceiveMessage", self._receive)

    def housekeeping(self) -> bytes:
        if self._unreplenished < 1 << 28:
            return b""
        increment, self._unreplenished = self._unreplenished, 0
        return frames.encode_window_update(0, increment)

    def answers(self, data: bytes) -> Iterator[Answer]:
        data = self._rest + data
        position = 0
        while len(data) - position >= frames.FRAME_HEADER_BYTES:
            high, low, kind, flags, stream_id = frames.FRAME_HEADER.unpack_from(data, position)
            end = position + frames.FRAME_HEADER_BYTES + (high << 8 | low)
            if end > len(data):
                break
            payload = data[position + frames.FRAME_HEADER_BYTES : end]
            position = end
            if stream_id == self._settings_stream_id:
                if flags & frames.END_STREAM:
                    raise RuntimeError("the server ended the telemetry stream")
                self.is_ready |= kind == frames.DATA  # it answers the settings with its own
                continue
            if kind == frames.DATA:
                self._unreplenished += len(payload)
                self._calls[stream_id][2].append(payload)
            elif kind in (frames.RST_STREAM, frames.GOAWAY):
                raise RuntimeError(f"the server gave up a call: {payload!r}")
            if kind in (frames.DATA, frames.HEADERS) and flags & frames.END_STREAM:
                yield self._answered(*self._calls.pop(stream_id))
        self._rest = data[position:]

    def _call(self, method: str, message: bytes) -> bytes:
        stream_id = self._next_stream_id
        self._next_stream_id += 2
        self._calls[stream_id] = method == "ReceiveMessage", time.monotonic(), []
        return (
            frames.encode_frame(frames.HEADERS, frames.END_HEADERS, stream_id, self._heads[method])
            + frames.encode_frame(frames.DATA, frames.END_STREAM, stream_id, _prefixed(message))
        )  # fmt: skip

    def _answered(self, received: bool, began_s: float, parts: list[bytes]) -> Answer:
        took_s = time.monotonic() - began_s
        messages = _messages(b"".join(parts))
        if not received:
            [message] = messages
            return Answer(False, _acked(service.AckMessageResponse.FromString(message)), took_s)
        ack = self._ack
        del ack.entries[:]
        for message in messages:
            response = service.ReceiveMessageResponse.FromString(message)
            if response.HasField("status") and response.status.code not in _FOUND_OR_NOT:
                raise RuntimeError(f"a receive was refused: {response.status.message}")
            if response.HasField("message"):
                system = response.message.system_properties
                ack.entries.add(message_id=system.message_id, receipt_handle=system.receipt_handle)
        count = len(ack.entries)
        return Answer(True, count, took_s, self._call("AckMessage", ack.SerializeToString()) if count else b"")


def _settings(topic: str, group: str) -> bytes:
    """What a simple consumer says first on its telemetry stream."""
    command = service.TelemetryCommand()
    command.settings.client_type = definition.ClientType.Value("SIMPLE_CONSUMER")
    command.settings.subscription.group.name = group
    subscribed = command.settings.subscription.subscriptions.add()
    subscribed.topic.name = topic
    subscribed.expression.type = definition.FilterType.Value("TAG")
    subscribed.expression.expression = "*"
    encoded: bytes = command.SerializeToString()
    return encoded


def _prefixed(message: bytes) -> bytes:
    return struct.pack(">BI", 0, len(message)) + message


def _request_head(method: str, client_id: str) -> bytes:
    """A header block that leaves the server's table alone."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": f"/apache.rocketmq.v2.MessagingService/{method}",
        ":authority": "127.0.0.1",
        "content-type": "application/grpc",
        "te": "trailers",
        "grpc-timeout": "60S",
        "x-mq-client-id": client_id,
        "x-mq-language": "PYTHON",
        "x-mq-protocol": "v2",
    }
    return b"".join(frames.literal_field(name.encode(), value.encode()) for name, value in fields.items())


def _messages(body: bytes) -> list[bytes]:
    """The gRPC messages of a response body."""
    messages = []
    position = 0
    while position < len(body):
        _, length = struct.unpack_from(">BI", body, position)
        position += 5 + length
        messages.append(body[position - length : position])
    return messages


def _acked(response: Any) -> int:
    ok = definition.Code.Value("OK")
    if response.status.code != ok:
        raise RuntimeError(f"an ack was refused: {response.status.message}")
    return sum(entry.status.code == ok for entry in response.entries)


class RemotingWire:
    """POP on remoting: codes 200050 and 200151."""

    opening = b""
    is_ready = True

    def __init__(self, topic: str, group: str) -> None:
        self._topic = topic
        self._group = group
        self._rest = b""
        self._opaque = 0
        self._calls: dict[int, tuple[int, float, int]] = {}

    def receive(self) -> bytes:
        ext = {
            **{"consumerGroup": self._group, "topic": self._topic, "queueId": "-1", "maxMsgNums": str(BATCH)},
            **{"invisibleTime": str(_INVISIBLE_MS), "pollTime": str(_WAIT_MS), "initMode": "0"},
            "bornTime": str(time.time_ns() // 1_000_000),
        }
        return self._call(codes.POP_MESSAGE, ext, b"", 0)

    def housekeeping(self) -> bytes:
        return b""

    def answers(self, data: bytes) -> Iterator[Answer]:
        data = self._rest + data
        commands: list[Command] = []
        consumed = frame.decode_frames(data, commands)
        self._rest = data[consumed:]
        for command in commands:
            yield self._answered(command, *self._calls.pop(command.opaque))

    def _call(self, code: int, ext: dict[str, str], body: bytes, count: int) -> bytes:
        self._opaque += 1
        self._calls[self._opaque] = code, time.monotonic(), count
        return frame.encode_request(code, self._opaque, ext, body)

    def _answered(self, command: Command, code: int, began_s: float, count: int) -> Answer:
        took_s = time.monotonic() - began_s
        if code == codes.BATCH_ACK_MESSAGE:
            if command.code != codes.SUCCESS:
                raise RuntimeError(f"an ack was refused: {command.remark}")
            return Answer(False, count, took_s)
        if command.code in (codes.POLLING_TIMEOUT, codes.POLLING_FULL):
            return Answer(True, 0, took_s)
        if command.code != codes.SUCCESS:
            raise RuntimeError(f"a pop was refused: {command.remark}")
        acks, count = self._acks(command.ext)
        body = orjson.dumps({"brokerName": "broker-a", "acks": acks})
        return Answer(True, count, took_s, self._call(codes.BATCH_ACK_MESSAGE, {}, body, count))

    def _acks(self, ext: dict[str, str]) -> tuple[list[dict[str, Any]], int]:
        """One entry per queue that gave something, its messages as bits from the start offset on; and how many messages."""
        starts = dict(entry.rsplit(" ", 1) for entry in ext["startOffsetInfo"].split(";"))
        acks, total = [], 0
        for entry in ext["msgOffsetInfo"].split(";"):
            key, listed = entry.rsplit(" ", 1)
            flag, queue_id = key.split(" ")
            offsets = list(map(int, listed.split(",")))
            start = int(starts[key])
            bits = sum(1 << offset - start for offset in offsets)
            total += len(offsets)
            acks.append(
                {
                    **{"c": self._group, "t": self._topic, "r": flag, "so": start, "q": int(queue_id)},
                    **{"rq": int(ext["reviveQid"]), "pt": int(ext["popTime"]), "it": int(ext["invisibleTime"])},
                    "b": base64.b64encode(bits.to_bytes(bits.bit_length() // 8 + 1, "little")).decode(),
                }
            )
        return acks, total


def consume(wire: Wire, address: str, conversations: int) -> dict[str, Any]:
    """Hold the conversations on one connection until all have ended."""
    received = acked = 0
    receive_s: list[float] = []
    ack_s: list[float] = []
    with socket.create_connection(split_address(address), 30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(wire.opening)
        while not wire.is_ready:
            for _ in wire.answers(_received(connection)):
                raise RuntimeError("the server answered a call that nobody made")
        began_s = last_s = time.monotonic()
        connection.sendall(b"".join(wire.receive() for _ in range(conversations)))
        while conversations:
            requests = []
            for answer in wire.answers(_received(connection)):
                if not answer.received:
                    acked += answer.count
                    ack_s.append(answer.took_s)
                    last_s = time.monotonic()
                    requests.append(wire.receive())
                elif answer.count:
                    received += answer.count
                    receive_s.append(answer.took_s)
                    requests.append(answer.ack)
                else:
                    conversations -= 1
            connection.sendall(b"".join((wire.housekeeping(), *requests)))
    return {
        "received": received,
        "acked": acked,
        "began_s": began_s,
        "last_s": last_s,
        "cpu_s": time.process_time(),
        "receive_s": receive_s,
        "ack_s": ack_s,
    }


def _received(connection: socket.socket) -> bytes:
    data = connection.recv(_READ_BYTES)
    if not data:
        raise RuntimeError("the server closed the connection")
    return data


def main(protocol: str, address: str, topic: str, group: str, conversations: str) -> None:
    wire = {"grpc": GrpcWire, "remoting": RemotingWire}[protocol](topic, group)
    print(json.dumps(consume(wire, address, int(conversations))))


if __name__ == "__main__":
    main(*sys.argv[1:])
