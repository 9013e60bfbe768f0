"""Clusters that keep next to nothing in their own files, and everybody who can read what is in the tier then.

All readers give (queue id, queue offset, body), whatever order the protocol has them in.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import grpc

from brokerd.proxy.protobuf import definition, service
from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.record.codec import body_is_intact, decode_records
from remoting.record.properties import encode_properties
from tasks.spark.cluster import Cluster as Asked
from tasks.spark.cluster import find_ranges
from tasks.spark.options import Options
from tasks.spark.reader import read_ranges
from tests.support.client_bytes import encode_batch_body
from tests.support.cluster import Cluster, eventually
from tests.support.workload import read_queue

FILE_BYTES: Final = 1 << 20
FILLER: Final = "Filler"  # is not kept in the tier; it makes the files of the log go on
SHORT_LIVES: Final = (
    *("tiers.commit_interval_ms=100", f"store.segment_size_bytes={FILE_BYTES}", "store.checkpoint_interval_ms=100"),
    *("retention.reserved_time_ms=1000", "retention.interval_ms=100"),
)
_FILLER_BYTES: Final = 60_000
_BATCH: Final = 50
_PATH: Final = "/apache.rocketmq.v2.MessagingService/"
_HEADERS: Final = (("x-mq-client-id", "cold"), ("x-mq-language", "PYTHON"))
_OK: Final = definition.Code.Value("OK")
_INVISIBLE_MS: Final = 300_000

Read = tuple[int, int, bytes]


def make_topic(cluster: Cluster, topic: str, queues: int = 1, attributes: str = "+message.type=NORMAL") -> None:
    """Made, and known to the controllers."""
    fields = {
        **{"topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(queues), "writeQueueNums": str(queues)},
        **{
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
            "attributes": attributes,
        },
    }
    with _to_master(cluster) as master:
        master.call(codes.UPDATE_AND_CREATE_TOPIC, fields, timeout_ms=10_000)
    eventually(f"the route of {topic}", lambda: bool(cluster.admin.queue_offsets(topic)))


def send_batch(cluster: Cluster, topic: str, queue_id: int, bodies: Sequence[bytes]) -> int:
    """Over remoting, as one batch after the other; the queue offset of the first one."""
    first = -1
    with _to_master(cluster) as master:
        for start in range(0, len(bodies), _BATCH):
            offset = _send_one_batch(master, topic, queue_id, bodies[start : start + _BATCH])
            first = offset if first < 0 else first
    return first


def _send_one_batch(master: SocketConnection, topic: str, queue_id: int, bodies: Sequence[bytes]) -> int:
    header = {
        **{"a": "p", "b": topic, "c": "TBW102", "d": "8", "e": str(queue_id), "f": "0", "g": "1700000000000"},
        **{"h": "0", "i": "", "j": "0", "k": "false", "m": "true"},
    }
    items = [(0, body, encode_properties({"UNIQ_KEY": f"{queue_id}-{body[:40].hex()}"})) for body in bodies]
    answer = master.call(codes.SEND_BATCH_MESSAGE, header, encode_batch_body(items), timeout_ms=20_000)
    return int(answer.ext["queueOffset"])


def send_grpc(cluster: Cluster, topic: str, bodies: Sequence[bytes]) -> None:
    """One by one, to whatever queue the broker chooses."""
    with grpc.insecure_channel(f"ipv4:{cluster.grpc_addresses[cluster.master()]}") as channel:
        method = channel.unary_unary(
            f"{_PATH}SendMessage", service.SendMessageRequest.SerializeToString, service.SendMessageResponse.FromString
        )
        for body in bodies:
            request = service.SendMessageRequest()
            message = request.messages.add(body=body)
            message.topic.name = topic
            message.system_properties.message_id = body[:40].hex()
            message.system_properties.message_type = definition.MessageType.Value("NORMAL")
            answer = method(request, timeout=20, metadata=_HEADERS)
            assert answer.status.code == _OK, answer.status


def make_cold(cluster: Cluster, timeout_s: float = 60) -> None:
    """Wait until nobody has what was sent before in own files: what follows pushes it out."""
    end = send_filler(cluster)

    def is_cold() -> bool:
        send_filler(cluster)
        return all(
            first_local_byte(cluster, number) >= end for number in range(len(cluster.brokers)) if _runs(cluster, number)
        )

    eventually("everything that was sent before is in the tier only", is_cold, timeout_s)


def send_filler(cluster: Cluster) -> int:
    """More than a file; where the log ended before."""
    with _to_master(cluster) as master:
        header = {
            **{"a": "p", "b": FILLER, "c": "TBW102", "d": "8", "e": "0", "f": "0", "g": "1700000000000"},
            **{"h": "0", "i": "", "j": "0", "k": "false", "m": "false"},
        }
        body = bytes(_FILLER_BYTES)
        found = [
            master.call(codes.SEND_MESSAGE_V2, header, body, timeout_ms=20_000).ext["msgId"]
            for _ in range(FILE_BYTES // _FILLER_BYTES + 1)
        ]
    return int(found[0][16:], 16)  # a message id is an address and a place in the log


def first_local_byte(cluster: Cluster, number: int) -> int:
    """Where a broker's own log begins."""
    files = [int(each.name) for each in (cluster.data / f"b{number}" / "commitlog").iterdir() if each.name.isdigit()]
    return min(files, default=0)


def _runs(cluster: Cluster, number: int) -> bool:
    return cluster.brokers[number].is_running


def _to_master(cluster: Cluster) -> SocketConnection:
    return SocketConnection(cluster.broker_addresses[cluster.master()], identity=cluster.identity)


# ---- readers


def by_pull(cluster: Cluster, topic: str, queues: int) -> list[Read]:
    """Every body is checked."""
    found = []
    for queue_id in range(queues):
        for record in read_queue(cluster.admin, topic, queue_id):
            assert body_is_intact(record), f"{topic}/{queue_id} {record.queue_offset} is damaged"
            found.append((record.queue_id, record.queue_offset, record.body))
    return found


def by_remoting_pop(cluster: Cluster, topic: str, group: str, count: int) -> list[Read]:
    """So many messages, without an ack."""
    cluster.admin.create_group(group)
    found: list[Read] = []
    deadline = time.monotonic() + 60
    with _to_master(cluster) as master:
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} messages were popped"
            fields = {
                **{"consumerGroup": group, "topic": topic, "queueId": "-1", "maxMsgNums": "32", "initMode": "0"},
                **{"invisibleTime": str(_INVISIBLE_MS), "pollTime": "2000", "order": "false"},
                "bornTime": str(time.time_ns() // 1_000_000),
            }
            accept = (codes.SUCCESS, codes.POLLING_TIMEOUT, codes.POLLING_FULL)
            answer = master.call(codes.POP_MESSAGE, fields, timeout_ms=20_000, accept=accept)
            if answer.code == codes.SUCCESS:
                found += [(each.queue_id, each.queue_offset, each.body) for each in decode_records(bytes(answer.body))]
    return found


def by_grpc(cluster: Cluster, topic: str, group: str, count: int) -> list[Read]:
    """So many messages, received through the master without an ack."""
    cluster.admin.create_group(group)
    request = service.ReceiveMessageRequest(batch_size=32)
    request.group.name = group
    request.message_queue.topic.name = topic
    request.message_queue.id = -1
    request.filter_expression.expression = "*"
    request.filter_expression.type = definition.FilterType.Value("TAG")
    request.invisible_duration.FromMilliseconds(_INVISIBLE_MS)
    request.long_polling_timeout.FromMilliseconds(2000)
    found: list[Read] = []
    deadline = time.monotonic() + 60
    with grpc.insecure_channel(f"ipv4:{cluster.grpc_addresses[cluster.master()]}") as channel:
        method = channel.unary_stream(
            f"{_PATH}ReceiveMessage",
            service.ReceiveMessageRequest.SerializeToString,
            service.ReceiveMessageResponse.FromString,
        )
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} messages were received"
            for answer in method(request, timeout=20, metadata=_HEADERS):
                if answer.HasField("message"):
                    system = answer.message.system_properties
                    found.append((system.queue_id, system.queue_offset, answer.message.body))
    return found


def by_bulk(cluster: Cluster, topic: str) -> list[Read]:
    """As Spark reads, from replicas where there are some."""
    options = Options.parse({"controllers": ",".join(cluster.controller_addresses), "subscribe": topic})
    asked = Asked(options.controllers)
    try:
        columns = ("queue_id", "queue_offset", "body")
        batches = read_ranges(asked, find_ranges(asked, options), columns, timeout_ms=5000)
        return [
            (row["queue_id"], row["queue_offset"], bytes(row["body"])) for batch in batches for row in batch.to_pylist()
        ]
    finally:
        asked.close()
