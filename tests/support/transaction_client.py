"""A producer of transactions over remoting, which decides when a test says so, and a reader of what became visible."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Final

import orjson

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.frame import Command
from remoting.record.codec import Record, decode_record, decode_records
from remoting.record.hosts import decode_offset_message_id
from remoting.record.layout import SYS_TRANSACTION_PREPARED
from remoting.record.properties import encode_properties
from remoting.transport.client import connect
from remoting.transport.connection import RemotingConnection

COMMIT: Final = "8"
ROLLBACK: Final = "12"
PATIENCE_S: Final = 30
_ANSWERS: Final = (codes.SUCCESS, codes.PULL_NOT_FOUND, codes.PULL_RETRY_IMMEDIATELY, codes.PULL_OFFSET_MOVED)


class Producer:
    """A producer of the group `pg` on one broker, with the questions that it was asked."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self.asked: asyncio.Queue[tuple[Mapping[str, str], Record]] = asyncio.Queue()
        self._connection: RemotingConnection

    async def start(self, address: str) -> None:
        handlers = {codes.CHECK_TRANSACTION_STATE: self._take_questions}
        self._connection = await connect(address, handlers=handlers)
        heartbeat = {"clientID": "producer@1", "producerDataSet": [{"groupName": "pg"}], "consumerDataSet": []}
        answer = await self._connection.call(codes.HEART_BEAT, {}, orjson.dumps(heartbeat))
        assert answer.code == codes.SUCCESS

    async def begin(self, body: str) -> Command:
        properties = {"UNIQ_KEY": f"KEY{body}", "TRAN_MSG": "true", "PGROUP": "pg"}
        ext = {
            **{"a": "pg", "b": self._topic, "c": "TBW102", "d": "4", "e": "0", "f": str(SYS_TRANSACTION_PREPARED)},
            **{
                "g": str(time.time_ns() // 1_000_000),
                "h": "0",
                "i": encode_properties(properties).decode(),
                "j": "0",
                "k": "false",
            },
        }
        answer = await self._connection.call(codes.SEND_MESSAGE_V2, ext, body.encode(), 10_000)
        assert answer.code == codes.SUCCESS, answer.remark
        assert answer.ext["transactionId"] == f"KEY{body}"
        return answer

    async def end(self, sent: Command, outcome: str) -> Command:
        _, _, physical_offset = decode_offset_message_id(sent.ext["msgId"])
        return await self._end(sent.ext["queueOffset"], str(physical_offset), outcome, from_check=False)

    async def answer(self, outcomes: Mapping[str, str], decided: set[str]) -> None:
        """Decide about what is asked next; a question that crossed an answer is answered again, which changes nothing."""
        question, record = await asyncio.wait_for(self.asked.get(), PATIENCE_S)
        body = record.body.decode()
        offsets = question["tranStateTableOffset"], question["commitLogOffset"]
        answer = await self._end(*offsets, outcomes[body], from_check=True)
        assert answer.code == codes.SUCCESS, answer.remark
        decided.add(body)

    async def _end(self, queue_offset: str, physical_offset: str, outcome: str, *, from_check: bool) -> Command:
        ext = {
            **{"producerGroup": "pg", "tranStateTableOffset": queue_offset, "commitLogOffset": physical_offset},
            **{"commitOrRollback": outcome, "fromTransactionCheck": str(from_check).lower(), "topic": self._topic},
        }
        return await self._connection.call(codes.END_TRANSACTION, ext, timeout_ms=10_000)

    def _take_questions(self, _: RemotingConnection, requests: Sequence[Command]) -> None:
        for request in requests:
            assert request.is_oneway
            self.asked.put_nowait((dict(request.ext), decode_record(bytes(request.body))))

    def close(self) -> None:
        self._connection.close()


def read_bodies(address: str, topic: str) -> list[str]:
    """All that consumers see of the topic."""
    ext = {
        **{"consumerGroup": "TOOLS_CONSUMER", "topic": topic, "queueId": "0", "queueOffset": "0", "maxMsgNums": "32"},
        **{"sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0"},
    }
    with SocketConnection(address, timeout_ms=5000) as connection:
        answer = connection.call(codes.PULL_MESSAGE, ext, accept=_ANSWERS)
    return [record.body.decode() for record in decode_records(answer.body)]
