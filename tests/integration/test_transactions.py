"""Transactions through a kill of the master, with real processes: each ends one way, and who went silent is asked by the next."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import orjson
import pytest

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.frame import Command
from remoting.message import (
    SYS_TRANSACTION_PREPARED,
    Record,
    decode_offset_message_id,
    decode_record,
    decode_records,
    encode_properties,
)
from remoting.transport.client import connect
from remoting.transport.connection import RemotingConnection
from tests.support.cluster import Cluster, eventually

pytestmark = pytest.mark.slow

TOPIC = "Orders"
_ANSWERS = (codes.SUCCESS, codes.PULL_NOT_FOUND, codes.PULL_RETRY_IMMEDIATELY, codes.PULL_OFFSET_MOVED)
_COMMIT, _ROLLBACK = "8", "12"
_PATIENCE_S = 30


class Producer:
    """A producer of the group `pg` on one broker, with the questions that it was asked."""

    def __init__(self) -> None:
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
            **{"a": "pg", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": str(SYS_TRANSACTION_PREPARED)},
            **{"g": "1700000000000", "h": "0", "i": encode_properties(properties).decode(), "j": "0", "k": "false"},
        }
        answer = await self._connection.call(codes.SEND_MESSAGE_V2, ext, body.encode(), 10_000)
        assert answer.code == codes.SUCCESS, answer.remark
        assert answer.ext["transactionId"] == f"KEY{body}"
        return answer

    async def end(self, sent: Command, outcome: str) -> Command:
        _, _, physical_offset = decode_offset_message_id(sent.ext["msgId"])
        return await self._end(sent.ext["queueOffset"], str(physical_offset), outcome, from_check=False)

    async def answer(self, outcomes: Mapping[str, str], decided: set[str]) -> None:
        """Decide about what is asked next; a question that crossed an answer is answered again, in vain."""
        question, record = await asyncio.wait_for(self.asked.get(), _PATIENCE_S)
        body = record.body.decode()
        offsets = question["tranStateTableOffset"], question["commitLogOffset"]
        answer = await self._end(*offsets, outcomes[body], from_check=True)
        assert answer.code == (codes.SYSTEM_ERROR if body in decided else codes.SUCCESS), answer.remark
        decided.add(body)

    async def _end(self, queue_offset: str, physical_offset: str, outcome: str, *, from_check: bool) -> Command:
        ext = {
            **{"producerGroup": "pg", "tranStateTableOffset": queue_offset, "commitLogOffset": physical_offset},
            **{"commitOrRollback": outcome, "fromTransactionCheck": str(from_check).lower(), "topic": TOPIC},
        }
        return await self._connection.call(codes.END_TRANSACTION, ext, timeout_ms=10_000)

    def _take_questions(self, _: RemotingConnection, requests: Sequence[Command]) -> None:
        for request in requests:
            assert request.is_oneway
            self.asked.put_nowait((dict(request.ext), decode_record(bytes(request.body))))

    def close(self) -> None:
        self._connection.close()


def read_bodies(address: str) -> list[str]:
    """All that consumers see of the topic."""
    ext = {
        **{"consumerGroup": "TOOLS_CONSUMER", "topic": TOPIC, "queueId": "0", "queueOffset": "0", "maxMsgNums": "32"},
        **{"sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0"},
    }
    with SocketConnection(address, timeout_ms=5000) as connection:
        answer = connection.call(codes.PULL_MESSAGE, ext, accept=_ANSWERS)
    return [record.body.decode() for record in decode_records(answer.body)]


def open_transactions(address: str) -> int:
    with SocketConnection(address, timeout_ms=5000) as connection:
        count: int = orjson.loads(connection.call(codes.BROKER_STATE).body)["transactions"]["open"]
    return count


def test_transactions_through_a_kill_of_the_master(tmp_path: Path) -> None:
    settings = ("transactions.timeout_ms=0", "transactions.check_interval_ms=500")
    with Cluster(tmp_path, controllers=1, broker_settings=settings) as cluster:
        cluster.start()
        before = cluster.master()
        with SocketConnection(cluster.broker_addresses[before], timeout_ms=5000) as connection:
            fields = {"topic": TOPIC, "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
            connection.call(
                codes.UPDATE_AND_CREATE_TOPIC, {**fields, "topicFilterType": "SINGLE_TAG", "defaultTopic": ""}
            )
        asyncio.run(_through_a_kill(cluster, before))


async def _through_a_kill(cluster: Cluster, before: int) -> None:
    producer = Producer()
    address = cluster.broker_addresses[before]
    await producer.start(address)
    sent = {body: await producer.begin(body) for body in ("committed", "rolled back", "taken back later", "orphan")}
    assert (await producer.end(sent["committed"], _COMMIT)).code == codes.SUCCESS
    assert (await producer.end(sent["rolled back"], _ROLLBACK)).code == codes.SUCCESS
    assert (await producer.end(sent["committed"], _COMMIT)).code == codes.SYSTEM_ERROR
    await asyncio.wait_for(producer.asked.get(), _PATIENCE_S)  # and says nothing
    assert open_transactions(address) == 2
    cluster.brokers[before].kill()
    producer.close()

    eventually("another master", lambda: cluster.master() != before)
    address = cluster.broker_addresses[cluster.master()]
    successor = Producer()
    await successor.start(address)
    assert open_transactions(address) == 2
    repeated = await successor.end(sent["committed"], _ROLLBACK)
    assert repeated.code == codes.SYSTEM_ERROR
    decisions = {"taken back later": _ROLLBACK, "orphan": _COMMIT}
    decided: set[str] = set()
    while decided != set(decisions):
        await successor.answer(decisions, decided)
    assert open_transactions(address) == 0
    cluster.brokers[before].start()
    await asyncio.to_thread(cluster.wait_in_sync, len(cluster.brokers))
    assert read_bodies(address) == ["committed", "orphan"]
    successor.close()
