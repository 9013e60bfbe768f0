"""The official Python client's own metrics, exported by its own exporter to the port that it sends to, with real brokers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from grpc import Compression
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode
from prometheus_client.parser import text_string_to_metric_families

from tests.support.cluster import Cluster, eventually
from tests.support.workload import call_until

pytestmark = pytest.mark.slow

# What turns the metrics on is in the settings of a server; here it is done in its place, for good.
PROGRAM = """
import json, os, threading
from rocketmq import (ClientConfiguration, ConsumeResult, Credentials, FilterExpression, Message, MessageListener, Producer,
                      PushConsumer)
from rocketmq.grpc_protocol.definition_pb2 import AddressScheme, Metric

configuration = ClientConfiguration(os.environ["ENDPOINTS"], Credentials(), request_timeout=3)
host, port = os.environ["ENDPOINTS"].rsplit(":", 1)
metric = Metric(on=True)
metric.endpoints.scheme = AddressScheme.Value("IPv4")
metric.endpoints.addresses.add(host=host, port=int(port))

def measured(client):
    reset = client.reset_metric
    client.reset_metric = lambda _: None
    client.startup()
    reset(metric)
    return client

seen, failures = threading.Semaphore(0), []
class Listener(MessageListener):
    def consume(self, one):
        seen.release()
        if one.body == b"7" and not failures:
            failures.append(one)
            return ConsumeResult.FAILURE
        return ConsumeResult.SUCCESS

consumer = measured(PushConsumer(configuration, "Measured", Listener(), {"Orders": FilterExpression()}))
producer = measured(Producer(configuration, ("Orders",)))
for number in range(20):
    message = Message()
    message.topic, message.body = "Orders", b"%d" % number
    producer.send(message)
for _ in range(21):
    assert seen.acquire(timeout=60)
for client in (producer, consumer):
    provider = client.client_metrics._ClientMetrics__meter_provider
    provider.force_flush()
    provider.force_flush()
print(json.dumps({"sent": 20}), flush=True)
consumer.shutdown()
producer.shutdown()
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as cluster:
        cluster.start()
        call_until(lambda: cluster.admin.create_topic("Orders", queues=4))
        eventually("the topic's route", lambda: bool(cluster.admin.queue_offsets("Orders")))
        yield cluster


def scrape(cluster: Cluster, broker: int) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    port = int(cluster.broker_addresses[broker].rpartition(":")[2])
    port += 10_000 if port + 10_000 <= 65_535 else -10_000
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    common = {"cluster", "broker", "broker_id"}
    return {
        (
            sample.name,
            tuple(sorted((key, value) for key, value in sample.labels.items() if key not in common)),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_what_the_python_client_measures_is_in_the_brokers_metrics(cluster: Cluster, tmp_path: Path) -> None:
    replica = next(number for number in range(3) if number != cluster.master())
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "HOME": str(tmp_path), "ENDPOINTS": cluster.grpc_addresses[replica]},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == {"sent": 20}
    samples = scrape(cluster, replica)
    sent = (("language", "PYTHON"), ("status", "success"), ("topic", "Orders"))
    assert samples["logboom_client_send_seconds_count", sent] == 20
    assert 0 <= samples["logboom_client_send_seconds_sum", sent] < 20
    consumer = (("group", "Measured"), ("language", "PYTHON"))
    assert samples["logboom_client_process_seconds_count", (*consumer, ("status", "failure"), ("topic", "Orders"))] == 1
    assert (
        samples["logboom_client_process_seconds_count", (*consumer, ("status", "success"), ("topic", "Orders"))] == 20
    )
    assert samples["logboom_client_await_seconds_count", (*consumer, ("topic", "Orders"))] == 21
    assert samples["logboom_client_delivery_seconds_count", (*consumer, ("topic", "Orders"))] > 0
    assert samples["logboom_client_cached_messages", (*consumer, ("topic", "Orders"))] == 0
    assert samples["logboom_client_figures_refused_total", ()] == 0
    assert samples["logboom_grpc_calls_total", (("code", "OK"), ("method", "ExportMetrics"))] >= 4
    assert ("logboom_client_send_seconds_count", sent) not in scrape(cluster, cluster.master())


def test_spans_of_an_application_are_in_the_brokers_metrics(cluster: Cluster) -> None:
    """By OpenTelemetry's own exporter, compressed."""
    master = cluster.master()
    exporter = OTLPSpanExporter(
        endpoint=cluster.grpc_addresses[master],
        insecure=True,
        headers=(("x-mq-client-id", "application"), ("x-mq-language", "JAVA")),
        compression=Compression.Gzip,
    )
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("application")
    sends = {"messaging.system": "rocketmq", "messaging.operation.type": "send", "messaging.destination.name": "Orders"}
    for number in range(3):
        with tracer.start_as_current_span("send Orders", kind=SpanKind.PRODUCER, attributes=sends) as span:
            if not number:
                span.set_status(Status(StatusCode.ERROR))
    with tracer.start_as_current_span("GET /", attributes={"http.request.method": "GET"}):
        pass
    provider.shutdown()
    samples = scrape(cluster, master)
    labels = (("language", "JAVA"), ("operation", "send"))
    counts = {
        status: samples["logboom_client_span_seconds_count", (*labels, ("status", status), ("topic", "Orders"))]
        for status in ("success", "failure")
    }
    assert counts == {"success": 2, "failure": 1}
    assert samples["logboom_grpc_calls_total", (("code", "OK"), ("method", "ExportTraces"))] == 4
    assert samples["logboom_client_figures_refused_total", ()] == 0, "what is not of messaging is passed over"
