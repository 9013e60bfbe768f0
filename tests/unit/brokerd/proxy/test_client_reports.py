"""The two Export methods: what of OpenTelemetry's requests is taken, of whom, and how much of it is looked at."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from brokerd.metadata.configs import GroupConfig
from brokerd.proxy import otlp
from brokerd.proxy.calls import GrpcStatus
from brokerd.proxy.client_figures import ClientFigures, Labels
from brokerd.proxy.methods.client_reports import ClientReports
from remoting.guarding.guard import AccessSettings, Guard
from tests.unit.brokerd.proxy.calls import METADATA, FakeCall
from tests.unit.brokerd.proxy.fakes import FakeBroker
from tests.unit.brokerd.proxy.test_access import make_guard
from tests.unit.brokerd.proxy.test_access import metadata as signed

NOW_MS = 1_763_600_000_000
BOUNDS = (1.0, 5.0, 10.0, 20.0, 50.0, 200.0, 500.0)


class Reporting:
    def __init__(self, guard: Guard | None = None) -> None:
        self.broker = FakeBroker()
        self.broker.add_topic("orders")
        self.broker.add_topic("ns%orders")
        self.broker.group_table["g"] = GroupConfig("g")
        self.figures = ClientFigures(NOW_MS)
        self.reports = ClientReports(self.broker, self.figures, lambda: NOW_MS, guard)

    def metrics(self, request, **metadata) -> int:
        """How many figures were rejected."""
        call = FakeCall(request, metadata=METADATA | metadata)
        self.reports.export_metrics([call])
        return call.response(ExportMetricsServiceResponse).partial_success.rejected_data_points

    def spans(self, request) -> int:
        call = FakeCall(request)
        self.reports.export_traces([call])
        return call.response(ExportTraceServiceResponse).partial_success.rejected_spans

    @property
    def counts(self) -> dict[Labels, int]:
        return {labels: sum(series.total.counts) for labels, series in self.figures.series(NOW_MS)}


@pytest.fixture
def reporting() -> Reporting:
    return Reporting()


def put_attributes(target, attributes) -> None:
    for key, value in attributes.items():
        target.attributes.add(key=key).value.string_value = value


def histogram(
    name="rocketmq_send_cost_time",
    counts=(0, 1),
    bounds=BOUNDS,
    total=3.0,
    temporality=2,
    since_ms=NOW_MS,
    **attributes,
):
    request = ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name=name)
    metric.histogram.aggregation_temporality = temporality
    point = metric.histogram.data_points.add(start_time_unix_nano=since_ms * 1_000_000, sum=total)
    point.explicit_bounds.extend(bounds)
    point.bucket_counts.extend((*counts, *[0] * (len(bounds) + 1 - len(counts))))
    put_attributes(point, {"topic": "orders", "client_id": "c", "invocation_status": "success"} | attributes)
    return request


def gauge(name="rocketmq_consumer_cached_messages", value=7.0, **attributes):
    request = ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name=name)
    point = metric.gauge.data_points.add(as_double=value)
    put_attributes(point, {"topic": "orders", "consumer_group": "g"} | attributes)
    return request


def span(operation="publish", topic="orders", duration_ms=4, status=1, **attributes):
    request = ExportTraceServiceRequest()
    made = request.resource_spans.add().scope_spans.add().spans.add(name="a span", start_time_unix_nano=10**18)
    made.end_time_unix_nano = 10**18 + int(duration_ms * 1e6)
    made.status.code = status
    put_attributes(made, {"messaging.operation": operation, "messaging.destination.name": topic} | attributes)
    return request


def test_a_histogram_is_taken_by_topic_group_language_and_status(reporting) -> None:
    assert reporting.metrics(histogram()) == 0
    assert reporting.metrics(histogram("rocketmq_process_time", consumer_group="g", invocation_status="failure")) == 0
    assert reporting.metrics(histogram("rocketmq_await_time", consumer_group="g"), **{"x-mq-language": "HTTP"}) == 0
    assert reporting.counts == {
        Labels("send", "orders", "", "PYTHON", "success"): 1,
        Labels("process", "orders", "g", "PYTHON", "failure"): 1,
        Labels("await", "orders", "g", "NODE_JS", "success"): 1,
    }


def test_a_namespace_belongs_to_the_names(reporting) -> None:
    assert reporting.metrics(histogram(), **{"x-mq-namespace": "ns"}) == 0
    assert [labels.topic for labels in reporting.counts] == ["ns%orders"]


def test_a_gauge_is_taken(reporting) -> None:
    assert reporting.metrics(gauge()) == 0
    assert reporting.figures.gauges(NOW_MS) == {Labels("cached_messages", "orders", "g", "PYTHON"): 7.0}


@pytest.mark.parametrize(
    "request_",
    [
        histogram(topic="made up"),
        histogram(consumer_group="made up"),
        histogram(bounds=(5.0, 1.0)),
        histogram(bounds=(1.0, 1.0)),
        histogram(bounds=(float("nan"),)),
        histogram(total=float("nan")),
        histogram(total=-1.0),
        histogram(counts=(1 << 60,)),
        histogram(bounds=[float(number) for number in range(100)]),
        gauge(value=-1.0),
        gauge(value=float("inf")),
        gauge(value=float("nan")),
    ],
)
def test_what_makes_no_sense_or_is_of_nothing_that_exists_is_rejected(reporting, request_) -> None:
    assert reporting.metrics(request_) == 1
    assert reporting.counts == {}
    assert reporting.figures.gauges(NOW_MS) == {}
    assert reporting.figures.refused == 1


@pytest.mark.parametrize(
    "request_", [histogram("http_server_duration"), gauge("process_memory"), ExportMetricsServiceRequest()]
)
def test_an_applications_other_metrics_are_passed_over(reporting, request_) -> None:
    assert reporting.metrics(request_) == 0
    assert reporting.counts == {}


def test_labels_cannot_be_made_up(reporting) -> None:
    reporting.metrics(histogram(invocation_status="x" * 300), **{"x-mq-language": "BRAINFUCK"})
    assert list(reporting.counts) == [Labels("send", "orders", "", "OTHER", "")]


def test_of_a_request_a_bounded_number_of_elements_is_looked_at(reporting) -> None:
    request = ExportMetricsServiceRequest()
    scope = request.resource_metrics.add().scope_metrics.add()
    for _ in range(10_000):
        scope.metrics.add(name="rocketmq_send_cost_time")
    scope.metrics.append(histogram().resource_metrics[0].scope_metrics[0].metrics[0])
    assert reporting.metrics(request) == 1
    assert reporting.counts == {}


@pytest.mark.parametrize(
    ("operation", "metric", "group"),
    [
        ("publish", "span_send", ""),
        ("send", "span_send", ""),
        ("receive", "span_receive", "g"),
        ("process", "span_process", "g"),
    ],
)
def test_spans_of_messaging_count(reporting, operation, metric, group) -> None:
    assert reporting.spans(span(operation, status=2, **{"messaging.rocketmq.client_group": "g"})) == 0
    assert reporting.counts == {Labels(metric, "orders", group, "PYTHON", "failure"): 1}


@pytest.mark.parametrize(
    ("request_", "rejected"),
    [(span("other"), 0), (span(topic=""), 1), (span(topic="made up"), 1), (span(duration_ms=-1), 1)],
)
def test_other_spans_do_not(reporting, request_, rejected) -> None:
    assert reporting.spans(request_) == rejected
    assert reporting.counts == {}


def test_who_says_not_who_he_is_reports_nothing(reporting) -> None:
    call = FakeCall(histogram(), metadata={})
    reporting.reports.export_metrics([call])
    assert call.failure is not None
    assert call.failure[0] is GrpcStatus.INVALID_ARGUMENT
    assert reporting.counts == {}


def test_with_access_control_only_signed_calls_count() -> None:
    reporting = Reporting(make_guard())
    for fields, status in (
        (METADATA, GrpcStatus.UNAUTHENTICATED),
        (signed(password="wrong"), GrpcStatus.UNAUTHENTICATED),
    ):
        call = FakeCall(histogram(), metadata=fields)
        reporting.reports.export_metrics([call])
        assert call.failure is not None
        assert call.failure[0] is status
    assert reporting.counts == {}
    call = FakeCall(histogram(), metadata=signed())
    reporting.reports.export_metrics([call])
    assert call.failure is None
    assert sum(reporting.counts.values()) == 1


def test_without_access_control_a_wrong_signature_is_no_reason() -> None:
    reporting = Reporting(Guard(AccessSettings(), "c", (), lambda: 0))
    call = FakeCall(histogram(), metadata=signed(password="wrong"))
    reporting.reports.export_metrics([call])
    assert call.failure is None


@given(st.binary(max_size=200))
def test_bytes_that_are_no_request_are_refused_and_do_no_harm(junk) -> None:
    reporting = Reporting()
    for export in (reporting.reports.export_metrics, reporting.reports.export_traces):
        call = FakeCall(junk)
        export([call])
        assert call.finished
        assert call.failure is None or call.failure[0] is GrpcStatus.INVALID_ARGUMENT


def test_the_paths_are_those_of_the_protocol() -> None:
    assert otlp.METRICS_PATH == "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
    assert otlp.TRACES_PATH == "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


def test_what_is_remembered_of_clients_takes_little_room(reporting) -> None:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(300):
            bounds = [number + place / 100 for place in range(64)]
            counts = [number + (place << 40) for place in range(65)]
            assert reporting.metrics(histogram(bounds=bounds, counts=counts), **{"x-mq-client-id": f"c{number}"}) == 0
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken < 300 * 3000
