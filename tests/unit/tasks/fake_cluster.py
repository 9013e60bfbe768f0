"""A controller and brokers on loopback that answer from a table: enough of the protocol to be asked about and read from."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from remoting import codes
from remoting.facts.broker_state import BrokerState, TimerState, TopicState
from remoting.facts.cluster_view import ClusterView, GroupView, ReplicaView
from remoting.facts.codec import encode
from remoting.facts.words import BrokerRole
from remoting.frame import Command
from remoting.record.codec import encode_record
from remoting.record.hosts import pack_host
from remoting.record.properties import encode_properties
from remoting.transport.connection import Handler, RemotingConnection
from remoting.transport.server import Place, RemotingServer


def answering(answer: Callable[[Command], Any]) -> Handler:
    """A handler that answers every request with a JSON body."""

    def handle(connection: RemotingConnection, requests: Sequence[Command]) -> None:
        for request in requests:
            connection.respond(request, codes.SUCCESS, body=encode(answer(request)))

    return handle


async def serve(handlers: dict[int, Handler]) -> RemotingServer:
    """A server on a free port."""
    server = RemotingServer(Place("127.0.0.1", 0), handlers)
    await server.start()
    return server


class FakeBroker:
    """One broker group with topics of encoded records, served as a name server, controller and master at once.

    `answer_most` records a read; offsets below `min_offset` are gone; `visible_end` hides the tail, as a master does whose
    followers have not confirmed it yet. The route names `replicas`, by their numbers: others of these. One that does not know
    reads in bulk (`knows_bulk`) answers pulls, 32 messages at most, as others do. For `masterless_views`
    views of the cluster its master is dead, and routes leave it out meanwhile, as those of a group do that has no other broker;
    for `unrouted` questions its master is there and has not told its topics yet.
    """

    def __init__(self, name: str = "broker-a", answer_most: int = 32) -> None:
        self.name = name
        self.answer_most = answer_most
        self.queues: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
        self.system_topics: set[str] = set()
        self.timers: TimerState | None = None
        self.min_offset = 0
        self.visible_end: int | None = None
        self.pulls = 0
        self.refuse_pulls = 0
        self.refusal = codes.SERVICE_NOT_AVAILABLE
        self.break_records = False
        self.knows_bulk = True
        self.on_pull: Callable[[], None] | None = None
        self.drop_pulls = 0
        self.replicas: dict[str, str] = {}
        self.reads: list[int] = []  # the offsets that were asked for
        self.asked = threading.Semaphore(0)  # released by every read
        self.masterless_views = 0
        self.unrouted = 0
        self.asked_views = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fake broker")
        self._server: RemotingServer | None = None

    def __enter__(self) -> FakeBroker:
        self._thread.start()
        handlers = {
            codes.GET_ROUTEINFO_BY_TOPIC: self._route,
            codes.CLUSTER_VIEW: self._view,
            codes.BROKER_STATE: self._state,
            codes.GET_MIN_OFFSET: self._min_offset,
            codes.GET_MAX_OFFSET: self._max_offset,
            codes.SEARCH_OFFSET_BY_TIMESTAMP: self._search,
            codes.GET_EARLIEST_MSG_STORETIME: self._earliest,
            codes.BULK_READ: self._bulk_read,
            codes.PULL_MESSAGE: self._pull_message,
        }
        self._server = asyncio.run_coroutine_threadsafe(
            serve({code: self._each(answer) for code, answer in handlers.items()}), self._loop
        ).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        asyncio.run_coroutine_threadsafe(self._server.close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def address(self) -> str:
        assert self._server is not None
        return f"127.0.0.1:{self._server.port}"

    def add_topic(self, name: str, queues: int, *, system: bool = False) -> None:
        for queue_id in range(queues):
            self.queues[name, queue_id] = []
        if system:
            self.system_topics.add(name)

    def store(
        self, topic: str, queue_id: int, body: bytes, properties: Mapping[str, str] | None = None, at_ms: int = 0
    ) -> int:
        queue = self.queues[topic, queue_id]
        offset = len(queue)
        record = encode_record(
            topic=topic.encode(),
            queue_id=queue_id,
            queue_offset=offset,
            physical_offset=1000 * offset,
            body=body,
            properties=encode_properties(properties or {}),
            born_timestamp_ms=at_ms,
            born_host=pack_host("127.0.0.1", 5000),
            store_timestamp_ms=at_ms,
            store_host=pack_host("127.0.0.1", 10911),
        )
        queue.append((at_ms, record))
        return offset

    # ---- answers

    @staticmethod
    def _each(answer: Callable[[Command], tuple[int, dict[str, str], bytes] | None]) -> Handler:
        def handle(connection: RemotingConnection, requests: Sequence[Command]) -> None:
            for request in requests:
                answered = answer(request)
                if answered is None:
                    connection.abort()
                else:
                    connection.respond(request, answered[0], answered[1], answered[2], "a remark")

        return handle

    def _route(self, request: Command) -> tuple[int, dict[str, str], bytes]:
        count = sum(topic == request.ext["topic"] for topic, _ in self.queues)
        if self.unrouted:
            self.unrouted -= 1
            return codes.TOPIC_NOT_EXIST, {}, b""
        if not count or self.masterless_views:
            return codes.TOPIC_NOT_EXIST, {}, b""
        route = {
            "brokerDatas": [
                {"brokerName": self.name, "cluster": "c", "brokerAddrs": {"0": self.address, **self.replicas}}
            ],
            "queueDatas": [{"brokerName": self.name, "perm": 6, "readQueueNums": count, "writeQueueNums": count}],
        }
        return codes.SUCCESS, {}, orjson.dumps(route)

    def _view(self, request: Command) -> tuple[int, dict[str, str], bytes]:
        self.asked_views += 1
        is_alive = not self.masterless_views
        self.masterless_views = max(0, self.masterless_views - 1)
        replica = ReplicaView(broker_id=1, address=self.address, alive=is_alive)
        group = GroupView(cluster_name="c", broker_name=self.name, master_broker_id=1, replicas=(replica,))
        return codes.SUCCESS, {}, encode(ClusterView(groups=(group,)))

    def _state(self, request: Command) -> tuple[int, dict[str, str], bytes]:
        topics = tuple(
            TopicState(name=name, system=name in self.system_topics) for name in {name for name, _ in self.queues}
        )
        state = BrokerState(
            cluster_name="c",
            broker_name=self.name,
            broker_id=1,
            role=BrokerRole.MASTER,
            topics=topics,
            timers=self.timers,
        )
        return codes.SUCCESS, {}, encode(state)

    def _queue(self, request: Command) -> list[tuple[int, bytes]]:
        return self.queues[request.ext["topic"], int(request.ext["queueId"])]

    def _end(self, request: Command) -> int:
        end = len(self._queue(request))
        return end if self.visible_end is None else min(end, self.visible_end)

    def _min_offset(self, request: Command) -> tuple[int, dict[str, str], bytes]:
        return codes.SUCCESS, {"offset": str(min(self.min_offset, self._end(request)))}, b""

    def _max_offset(self, request: Command) -> tuple[int, dict[str, str], bytes]:
        return codes.SUCCESS, {"offset": str(self._end(request))}, b""

    def _search(self, request: Command) -> tuple[int, dict[str, str], bytes]:
        wanted = int(request.ext["timestamp"])
        later = [offset for offset, (at_ms, _) in enumerate(self._queue(request)) if at_ms >= wanted]
        return codes.SUCCESS, {"offset": str(later[0] if later else self._end(request))}, b""

    def _earliest(self, request: Command) -> tuple[int, dict[str, str], bytes]:
        kept = self._queue(request)[self.min_offset :]
        return codes.SUCCESS, {"timestamp": str(kept[0][0] if kept else -1)}, b""

    def _bulk_read(self, request: Command) -> tuple[int, dict[str, str], bytes] | None:
        if not self.knows_bulk:
            return codes.REQUEST_CODE_NOT_SUPPORTED, {}, b""
        return self._pull(request)

    def _pull_message(self, request: Command) -> tuple[int, dict[str, str], bytes] | None:
        assert {"sysFlag", "commitOffset", "suspendTimeoutMillis", "subscription"} <= request.ext.keys()
        request.ext["maxMsgNums"] = str(min(32, int(request.ext["maxMsgNums"])))
        return self._pull(request)

    def _pull(self, request: Command) -> tuple[int, dict[str, str], bytes] | None:
        self.pulls += 1
        self.reads.append(int(request.ext["queueOffset"]))
        self.asked.release()
        if self.on_pull is not None:
            self.on_pull()
        if self.drop_pulls:
            self.drop_pulls -= 1
            return None
        if self.refuse_pulls:
            self.refuse_pulls -= 1
            return self.refusal, {}, b""
        offset, low, high = int(request.ext["queueOffset"]), self.min_offset, self._end(request)
        count = min(self.answer_most, int(request.ext["maxMsgNums"]))
        found = self._queue(request)[offset : min(offset + count, high)] if offset >= low else []
        code, following = codes.SUCCESS, offset + len(found)
        if not found:
            code = codes.PULL_NOT_FOUND if offset == high else codes.PULL_OFFSET_MOVED
            following = min(max(offset, low), high)
        ext = {"nextBeginOffset": str(following), "minOffset": str(low), "maxOffset": str(high)}
        body = b"".join(record for _, record in found)
        return code, {**ext, "suggestWhichBrokerId": "0"}, b"\0" * len(body) if self.break_records else body
