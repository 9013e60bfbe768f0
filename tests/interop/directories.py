"""One store directory, opened in turn by brokers of the original and by ours, and what can be seen of it over the protocol."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from brokerd.config.documents import parse
from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.record.codec import Record, decode_records
from remoting.record.properties import encode_properties
from tests.interop.apache import Broker, NameServer, Session
from tests.interop.servers import topic_fields
from tests.support.cluster import Process, eventually, free_ports
from tests.support.pulling import pull_fields

SEGMENT_BYTES: Final = 1 << 20
QUEUE_UNITS: Final = 3000  # what the harness sets in the original
# Small, so that the index of these messages takes several files
INDEX_SLOTS: Final = 50
INDEX_ITEMS: Final = 200
INDEX: Final = {"maxHashSlotNum": INDEX_SLOTS, "maxIndexNum": INDEX_ITEMS}
STORE: Final = {"mappedFileSizeCommitLog": SEGMENT_BYTES, "flushDiskType": "SYNC_FLUSH"}
QUEUES: Final = 4


@dataclass(frozen=True, slots=True)
class Seen:
    """What a broker shows of its store: every message by queue, committed offsets, and groups by name."""

    messages: Mapping[tuple[str, int], Sequence[tuple[Any, ...]]]
    offsets: Mapping[tuple[str, str, int], int]
    groups: Mapping[str, tuple[Any, ...]]
    topics: Mapping[str, tuple[Any, ...]]


class Directory:
    """The store under `root`, and who has it open now."""

    def __init__(self, root: Path, session: Session) -> None:
        self.store = root / "store"
        self._root = root
        self._session = session
        self._runs = 0
        self.address = ""
        self._process: Process
        self._name_server: NameServer | Process

    # ---- who has it open

    def open_original(self, settings: Mapping[str, object] | None = None) -> str:
        """A broker of the original on the directory; its address."""
        self._name_server = name_server = self._session.name_server()
        where = {"storePathRootDir": self.store, "storePathCommitLog": self.store / "commitlog"}
        properties = {**STORE, **INDEX, **where, **(settings or {})}
        broker: Broker = self._session.broker("broker-a", name_server.address, properties=properties)
        self._process, self.address = broker.process, broker.address
        self._wait_serving()
        return self.address

    def open_ours(self, *settings: str) -> str:
        """A master of ours on the directory; its address."""
        self._runs += 1
        self._root.mkdir(exist_ok=True)
        listen, ha, grpc, name_server = (f"127.0.0.1:{port}" for port in free_ports(4))
        words = ["-m", "controllerd", "--id", "n0", "--peers", f"n0={name_server}"]
        words += ["--data", str(self._root / f"n{self._runs}")]
        self._name_server = Process("name server", words, self._root / "n0.log")
        words = ["-m", "brokerd", "--listen", listen, "--ha-listen", ha, "--grpc-listen", grpc]
        words += ["--controllers", name_server, "--data", str(self.store)]
        for setting in (
            "replication.roles=fixed",
            "replication.broker_id=0",
            "replication.total_replicas=1",
            f"store.segment_size_bytes={SEGMENT_BYTES}",
            f"store.queue_file_units={QUEUE_UNITS}",
            f"store.index_slots={INDEX_SLOTS}",
            f"store.index_items={INDEX_ITEMS}",
            "store.config_interval_ms=200",
            *settings,
        ):
            words += ["--set", setting]
        self._process = Process("broker", words, self._root / "broker.log")
        self._session.processes += [self._name_server, self._process]
        self._name_server.start()
        self._process.start()
        self.address = listen
        self._wait_serving()
        return listen

    def close(self, *, cleanly: bool) -> None:
        """End who has it open, by SIGTERM or by kill -9."""
        if cleanly:
            assert self._process.terminate(60) in (0, 128 + signal.SIGTERM), self._process.log_text()[-4000:]
        else:
            self._process.kill()
        server = self._name_server.process if isinstance(self._name_server, NameServer) else self._name_server
        server.kill()

    def index_files(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in sorted((self.store / "index").iterdir())}

    def log_text(self) -> str:
        return self._process.log_text()

    def _wait_serving(self) -> None:
        def serving() -> bool:
            assert self._process.is_running, self._process.log_text()[-4000:]
            with SocketConnection(self.address, timeout_ms=2000) as connection:
                connection.call(codes.UPDATE_AND_CREATE_TOPIC, topic_fields("Serving", 1))
                send(connection, "Serving", 0, b"is it a master?")
            return True

        eventually(f"{self.address} takes messages", serving, 60)

    # ---- what is on disk

    def document(self, name: str) -> dict[str, Any]:
        path = self.store / "config" / name
        content = path.read_bytes() if path.exists() else b""
        return parse(content, name) if content else {}

    def wait_offsets_on_disk(self, expected: Mapping[tuple[str, str, int], int]) -> None:
        """Wait until `config/` says what was committed: a broker of either kind writes that now and then."""

        def written() -> bool:
            table = self.document("consumerOffset.json").get("offsetTable", {})
            return all(
                table.get(f"{topic}@{group}", {}).get(str(queue_id)) == offset
                for (group, topic, queue_id), offset in expected.items()
            )

        eventually("the committed offsets are in config/", written, 30)


def send(
    connection: SocketConnection, topic: str, queue_id: int, body: bytes, *, sys_flag: int = 0, **properties: str
) -> None:
    ext = {"a": "writer", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": str(sys_flag)}
    ext |= {"g": str(time.time_ns() // 1_000_000), "h": "0", "i": encode_properties(properties).decode()}
    ext |= {"j": "0", "k": "false", "l": "16", "m": "false"}
    connection.call(codes.SEND_MESSAGE_V2, ext, body)


def make_group(connection: SocketConnection, name: str, *, fifo: bool = False, retries: int = 16) -> None:
    body = {
        "groupName": name,
        "consumeMessageOrderly": fifo,
        "retryMaxTimes": retries,
        "consumeEnable": True,
        "consumeBroadcastEnable": True,
        "consumeFromMinEnable": True,
        "retryQueueNums": 1,
        "brokerId": 0,
        "whichBrokerWhenConsumeSlowly": 1,
        "notifyConsumerIdsChangedEnable": True,
    }
    connection.call(codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=orjson.dumps(body))


def commit(connection: SocketConnection, group: str, topic: str, queue_id: int, offset: int) -> None:
    ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id), "commitOffset": str(offset)}
    connection.call(codes.UPDATE_CONSUMER_OFFSET, ext)


def committed(connection: SocketConnection, group: str, topic: str, queue_id: int) -> int:
    """Where a group goes on; -1 when it never consumed the queue, unless the queue is so young that it starts at 0."""
    ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id)}
    answer = connection.call(codes.QUERY_CONSUMER_OFFSET, ext, accept=(codes.SUCCESS, codes.QUERY_NOT_FOUND))
    return int(answer.ext["offset"]) if answer.code == codes.SUCCESS else -1


def read_all(connection: SocketConnection, topic: str, queue_id: int) -> list[Record]:
    """Every message of a queue, pulled by the protocol."""
    ext = {"topic": topic, "queueId": str(queue_id)}
    offset = int(connection.call(codes.GET_MIN_OFFSET, ext).ext["offset"])
    end = int(connection.call(codes.GET_MAX_OFFSET, ext).ext["offset"])
    found: list[Record] = []
    while offset < end:
        answer = connection.call(codes.PULL_MESSAGE, pull_fields(topic, queue_id, offset))
        found += decode_records(answer.body)
        offset = int(answer.ext["nextBeginOffset"])
    return found


def find(address: str, topic: str, key: str) -> list[bytes]:
    """The bodies of what a query by key finds, oldest first."""
    ext = {"topic": topic, "key": key, "maxNum": "64", "beginTimestamp": "0", "endTimestamp": str((1 << 63) - 1)}
    with SocketConnection(address, timeout_ms=5000) as connection:
        answer = connection.call(codes.QUERY_MESSAGE, ext, accept=(codes.SUCCESS, codes.QUERY_NOT_FOUND))
    return [record.body for record in decode_records(answer.body)] if answer.code == codes.SUCCESS else []


def look(address: str, topics: Sequence[str], groups: Sequence[str]) -> Seen:
    """What the broker shows of these topics and groups; a topic that it does not have is left out."""
    with SocketConnection(address, timeout_ms=5000) as connection:
        configs = parse(bytes(connection.call(codes.GET_ALL_TOPIC_CONFIG).body), "topics")["topicConfigTable"]
        subscriptions = parse(bytes(connection.call(codes.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body), "groups")
        messages = {}
        offsets = {}
        for topic in topics:
            if topic not in configs:
                continue
            for queue_id in range(configs[topic]["readQueueNums"]):
                messages[topic, queue_id] = [_comparable(each) for each in read_all(connection, topic, queue_id)]
                for group in groups:
                    offsets[group, topic, queue_id] = committed(connection, group, topic, queue_id)
        named = {name: each for name, each in subscriptions["subscriptionGroupTable"].items() if name in groups}
    shown = ("consumeMessageOrderly", "retryMaxTimes", "consumeEnable", "consumeBroadcastEnable", "retryQueueNums")
    kept = ("readQueueNums", "writeQueueNums", "perm", "order", "attributes")
    return Seen(
        messages,
        offsets,
        {name: tuple(each[field] for field in shown) for name, each in named.items()},
        {name: tuple(configs[name][field] for field in kept) for name in topics if name in configs},
    )


def _comparable(record: Record) -> tuple[Any, ...]:
    """Everything that a consumer gets of a message."""
    return (
        record.queue_offset,
        record.physical_offset,
        record.store_timestamp_ms,
        record.born_timestamp_ms,
        bytes(record.born_host),
        bytes(record.store_host),
        record.sys_flag,
        record.flag,
        bytes(record.body),
        bytes(record.properties),
    )
