"""A consuming process of the POP soak: every group over gRPC and over remoting, with crashes; it may be killed at any moment.

    python -m tests.bench.pop_soak_consumer SEED REMOTING_ADDRESSES GRPC_ADDRESSES

A conversation receives, and acks what it got, one after the other. One receive in twenty ends in a crash instead: the connection
is cut while messages are held, or the client goes silent beyond their time and acks then, too late. What happened is a line of
JSON each: ["got", start, end, [names]] before anything is acked, ["acked", start, end, names that were accepted]. The line `calm`
on its input ends the crashes. What is `poison` is never acked, what is `letter` is sent to the dead letters at once.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import threading
import time
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import grpc

from brokerd.proxy.protobuf import definition, service
from remoting import codes
from remoting.errors import LogboomError, RequestError
from remoting.record.codec import decode_records
from remoting.transport.client import RemotingClient

TOPICS: Final = ("SoakPlain", "SoakOrdered", "SoakPriority", "SoakTransactions", "SoakDelayed", "SoakDead")
ORDERED: Final = "SoakOrdered"
INVISIBLE_MS: Final = 10_000  # the least that gRPC takes
_CRASHES: Final = 0.05
_WAIT_MS: Final = 2000
_DEADLINE_S: Final = 10.0
_PATH: Final = "/apache.rocketmq.v2.MessagingService/"
_OK: Final = definition.Code.Value("OK")


def group_of(topic: str) -> str:
    return f"{topic}-consumers"


class Held(NamedTuple):
    """A received message."""

    name: str
    queue_id: int
    queue_offset: int
    handle: str
    message_id: str = ""


class Wire(Protocol):
    """One client's connection, of either protocol. Calls raise RpcError or LogboomError when nobody knows what became of them."""

    async def receive(self) -> list[Held]: ...

    async def ack(self, held: Sequence[Held]) -> list[str]:
        """The names that were accepted."""

    async def bury(self, held: Held) -> bool:
        """Send it to the dead letters; whether that was accepted."""

    async def cut(self) -> None:
        """End the connection without a word; the next call makes another."""


class GrpcWire:
    """Calls any of the brokers, another one after each failure."""

    def __init__(self, addresses: Sequence[str], topic: str, client_id: str, rng: random.Random) -> None:
        self._addresses = addresses
        self._topic = topic
        self._headers = (("x-mq-client-id", client_id), ("x-mq-language", "PYTHON"))
        self._rng = rng
        self._channel: grpc.aio.Channel | None = None

    async def receive(self) -> list[Held]:
        request = service.ReceiveMessageRequest(batch_size=8)
        request.group.name = group_of(self._topic)
        request.message_queue.topic.name = self._topic
        request.message_queue.id = -1
        request.filter_expression.expression = "*"
        request.filter_expression.type = definition.FilterType.Value("TAG")
        request.invisible_duration.FromMilliseconds(INVISIBLE_MS)
        request.long_polling_timeout.FromMilliseconds(_WAIT_MS)
        method = self._connected().unary_stream(
            f"{_PATH}ReceiveMessage",
            service.ReceiveMessageRequest.SerializeToString,
            service.ReceiveMessageResponse.FromString,
        )
        held = []
        async for answer in method(request, timeout=_DEADLINE_S, metadata=self._headers):
            if answer.HasField("message"):
                system = answer.message.system_properties
                name = answer.message.body.decode()
                held.append(Held(name, system.queue_id, system.queue_offset, system.receipt_handle, system.message_id))
        return held

    async def ack(self, held: Sequence[Held]) -> list[str]:
        request = service.AckMessageRequest()
        request.group.name = group_of(self._topic)
        request.topic.name = self._topic
        for each in held:
            request.entries.add(message_id=each.message_id, receipt_handle=each.handle)
        answer = await self._call("AckMessage", request)
        return [each.name for each, entry in zip(held, answer.entries, strict=False) if entry.status.code == _OK]

    async def bury(self, held: Held) -> bool:
        request = service.ForwardMessageToDeadLetterQueueRequest(
            receipt_handle=held.handle, message_id=held.message_id, delivery_attempt=1, max_delivery_attempts=1
        )
        request.group.name = group_of(self._topic)
        request.topic.name = self._topic
        answer = await self._call("ForwardMessageToDeadLetterQueue", request)
        return bool(answer.status.code == _OK)

    async def cut(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def _call(self, method: str, request: service.AckMessageRequest) -> service.AckMessageResponse:
        call = self._connected().unary_unary(
            f"{_PATH}{method}", type(request).SerializeToString, getattr(service, f"{method}Response").FromString
        )
        return await call(request, timeout=_DEADLINE_S, metadata=self._headers)

    def _connected(self) -> grpc.aio.Channel:
        if self._channel is None:
            address = self._rng.choice(self._addresses)
            self._channel = grpc.aio.insecure_channel(f"ipv4:{address}", [("grpc.enable_retries", 0)])
        return self._channel


class RemotingWire:
    """Calls the master, which it looks for after each failure."""

    def __init__(self, addresses: Sequence[str], topic: str, rng: random.Random) -> None:
        self._addresses = addresses
        self._topic = topic
        self._rng = rng
        self._client = RemotingClient()
        self._address = rng.choice(addresses)

    async def receive(self) -> list[Held]:
        ext = {
            **{"consumerGroup": group_of(self._topic), "topic": self._topic, "queueId": "-1", "maxMsgNums": "8"},
            **{"invisibleTime": str(INVISIBLE_MS), "pollTime": str(_WAIT_MS), "initMode": "0"},
            **{"bornTime": str(time.time_ns() // 1_000_000), "order": str(self._topic == ORDERED).lower()},
        }
        answer = await self._client.call(
            self._address,
            codes.POP_MESSAGE,
            ext,
            timeout_ms=int(_DEADLINE_S * 1000),
            accept=(codes.SUCCESS, codes.POLLING_TIMEOUT, codes.POLLING_FULL),
        )
        if answer.code != codes.SUCCESS:
            return []
        starts = dict(each.rsplit(" ", 1) for each in answer.ext["startOffsetInfo"].split(";"))
        common = " ".join(answer.ext[name] for name in ("popTime", "invisibleTime", "reviveQid"))
        held = []
        for record in decode_records(bytes(answer.body)):
            handle = record.property_map().get("POP_CK")
            if handle is None:
                start = starts[f"0 {record.queue_id}"]
                handle = f"{start} {common} 0 broker-a {record.queue_id} {record.queue_offset}"
            held.append(Held(record.body.decode(), record.queue_id, record.queue_offset, handle))
        return held

    async def ack(self, held: Sequence[Held]) -> list[str]:
        accepted = []
        for each in held:
            words = each.handle.split(" ")
            retries = {
                "1": f"%RETRY%{group_of(self._topic)}_{self._topic}",
                "2": f"%RETRY%{group_of(self._topic)}+{self._topic}",
            }
            ext = {
                **{"consumerGroup": group_of(self._topic), "topic": retries.get(words[4], self._topic)},
                **{"queueId": words[6], "extraInfo": each.handle, "offset": words[7]},
            }
            answer = await self._client.call(
                self._address, codes.ACK_MESSAGE, ext, timeout_ms=int(_DEADLINE_S * 1000), accept=_ANY_ANSWER
            )
            if answer.code == codes.SUCCESS:
                accepted.append(each.name)
            elif answer.code not in _TOO_LATE:
                raise RequestError(answer.code, answer.remark or "")
        return accepted

    async def bury(self, held: Held) -> bool:
        """Remoting has no such call: it comes again until somebody has it over gRPC, or its attempts are over."""
        return False

    async def cut(self) -> None:
        self._client.close()
        self._client = RemotingClient()
        self._address = self._rng.choice(self._addresses)


_TOO_LATE: Final = (codes.MESSAGE_ILLEGAL, codes.NO_MESSAGE)
_ANY_ANSWER: Final = (codes.SUCCESS, *_TOO_LATE)


class Conversation:
    """One client's life."""

    def __init__(self, wire: Wire, rng: random.Random, calm: asyncio.Event) -> None:
        self._wire = wire
        self._rng = rng
        self._calm = calm

    async def run(self) -> None:
        while True:
            try:
                await self._once()
            except (grpc.RpcError, LogboomError):
                await self._wire.cut()
                await asyncio.sleep(0.1)

    async def _once(self) -> None:
        start_s = time.monotonic()
        held = await self._wire.receive()
        if not held:
            return
        say("got", start_s, [each.name for each in held])
        if not self._calm.is_set() and self._rng.random() < _CRASHES:
            if self._rng.random() < 0.5:
                await self._wire.cut()
                return
            await asyncio.sleep(INVISIBLE_MS / 1000 + self._rng.random())
        for each in held:
            if "letter" in each.name:
                start_s = time.monotonic()
                if await self._wire.bury(each):
                    say("buried", start_s, [each.name])
        good = [each for each in held if "poison" not in each.name and "letter" not in each.name]
        if good:
            start_s = time.monotonic()
            say("acked", start_s, await self._wire.ack(good))


def say(what: str, start_s: float, names: Sequence[str]) -> None:
    print(json.dumps([what, start_s, time.monotonic(), names]), flush=True)


async def main(seed: str, remoting: str, endpoints: str) -> None:
    calm, loop = asyncio.Event(), asyncio.get_running_loop()

    def listen() -> None:
        for line in sys.stdin:
            if line.strip() == "calm":
                loop.call_soon_threadsafe(calm.set)

    threading.Thread(target=listen, name="orders", daemon=True).start()
    conversations = []
    for number, topic in enumerate(TOPICS):
        for kind in ("grpc", "remoting"):
            rng = random.Random(f"{seed} {topic} {kind}")
            wire: Wire = (
                GrpcWire(endpoints.split(","), topic, f"soak-{seed}-{number}", rng)
                if kind == "grpc"
                else RemotingWire(remoting.split(","), topic, rng)
            )
            conversations.append(Conversation(wire, rng, calm))
    await asyncio.gather(*(each.run() for each in conversations))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
