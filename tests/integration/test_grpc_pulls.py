"""PullMessage with real brokers, through every broker of a group: whatever is given out stays, whoever dies meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from brokerd.proxy.protobuf import definition, service
from tests.support.cluster import Cluster, eventually
from tests.support.outlived_masters import check_what_was_seen
from tests.support.workload import call_until

pytestmark = pytest.mark.slow

TOPIC = "Orders"
GROUP = "pullers"
OK, NOT_FOUND, OFFSET_NOT_FOUND = 20000, 40401, 40404
PATH = "/apache.rocketmq.v2.MessagingService/"
HEADERS = (("x-mq-client-id", "puller"), ("x-mq-language", "PYTHON"))


def the_queue():
    return definition.MessageQueue(topic=definition.Resource(name=TOPIC), id=0)


class Client:
    """A channel to one broker."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(f"ipv4:{address}", [("grpc.enable_retries", 0)])

    def close(self) -> None:
        self._channel.close()

    def pull(self, offset: int, wait_ms: int = 0):
        """(code, messages, next offset)."""
        request = service.PullMessageRequest(
            group=definition.Resource(name=GROUP), message_queue=the_queue(), offset=offset, batch_size=32
        )
        request.long_polling_timeout.FromMilliseconds(wait_ms)
        call = self._channel.unary_stream(
            PATH + "PullMessage", service.PullMessageRequest.SerializeToString, service.PullMessageResponse.FromString
        )
        frames = list(call(request, metadata=HEADERS, timeout=10))
        named = [each.WhichOneof("content") for each in frames]
        assert named in (["status"], ["status", *["message"] * (len(frames) - 2), "next_offset"])
        return frames[0].status.code, [each.message for each in frames[1:-1]], frames[-1].next_offset

    def call(self, name: str, request):
        method = self._channel.unary_unary(
            PATH + name, type(request).SerializeToString, getattr(service, f"{name}Response").FromString
        )
        return method(request, metadata=HEADERS, timeout=10)


class Puller(threading.Thread):
    """Pulls queue 0 through one broker, from its first message on, and remembers what it was given."""

    def __init__(self, address: str) -> None:
        super().__init__(name=f"puller at {address}", daemon=True)
        self.seen: dict[int, bytes] = {}
        self.codes: set[int] = set()
        self._client = Client(address)
        self._stopping = threading.Event()

    def stop(self) -> None:
        self._stopping.set()
        self.join(30)
        assert not self.is_alive()
        self._client.close()

    def run(self) -> None:
        offset = 0
        while not self._stopping.is_set():
            try:
                code, messages, following = self._client.pull(offset, wait_ms=200)
            except grpc.RpcError:
                self._stopping.wait(0.02)
                continue
            self.codes.add(code)
            if code not in (OK, NOT_FOUND):
                self._stopping.wait(0.02)
                continue
            for message in messages:
                place, body = message.system_properties.queue_offset, message.body
                before = self.seen.setdefault(place, body)
                assert before == body, f"offset {place} was {before!r} and is {body!r}"
            offset = following


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as cluster:
        cluster.start()
        call_until(lambda: cluster.admin.create_topic(TOPIC, queues=1))
        eventually("the topic's route", lambda: bool(cluster.admin.queue_offsets(TOPIC)))
        yield cluster


def test_what_was_pulled_is_there_on_every_later_master(cluster: Cluster) -> None:
    check_what_was_seen(cluster, TOPIC, [Puller(address) for address in cluster.grpc_addresses], masters=2)


def test_offsets_are_kept_by_the_group_whoever_is_its_master(cluster: Cluster) -> None:
    group = definition.Resource(name=GROUP)
    clients = [Client(address) for address in cluster.grpc_addresses]
    asked = service.GetOffsetRequest(group=group, message_queue=the_queue())
    assert {client.call("GetOffset", asked).status.code for client in clients} == {OFFSET_NOT_FOUND}
    update = service.UpdateOffsetRequest(group=group, message_queue=the_queue(), offset=0)
    assert clients[1].call("UpdateOffset", update).status.code == OK
    killed = cluster.master()
    cluster.brokers[killed].kill()
    living = [client for number, client in enumerate(clients) if number != killed]
    for client in living:
        assert eventually("the offset", lambda client=client: told(client, asked)).offset == 0
    end = service.QueryOffsetRequest(message_queue=the_queue(), query_offset_policy=1)
    assert eventually("the queue's end", lambda: told(living[0], end)).status.code == OK
    for client in clients:
        client.close()


def told(client: Client, request):
    """A good answer, or nothing while there is none."""
    try:
        answer = client.call(type(request).__name__.removesuffix("Request"), request)
    except grpc.RpcError:
        return None
    return answer if answer.status.code == OK else None
