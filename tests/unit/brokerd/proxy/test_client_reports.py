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
from brokerd.proxy.methods.client_reports import MAX_WAITING_BYTES, ClientReports
from brokerd.proxy.status import encode_length
from remoting.guarding.guard import AccessSettings, Guard
from tests.support.turns import Turns
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
        self.turns = Turns()
        self.reports = ClientReports(self.broker, self.figures, lambda: NOW_MS, self.turns.call_soon, guard)

    def metrics(self, request, **metadata) -> int:
        """How many figures were rejected."""
        call = FakeCall(request, metadata=METADATA | metadata)
        self.reports.export_metrics([call])
        self.turns.run()
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


def of_many_topics(count: int) -> ExportMetricsServiceRequest:
    """What a process of the Java client exports that sends to so many topics and consumes them."""
    request = ExportMetricsServiceRequest()
    scope = request.resource_metrics.add().scope_metrics.add()
    names = {"client_id": "host.example@12345@0@2qkz1n9x0p3", "consumer_group": "g"}
    for name in (
        "rocketmq_send_cost_time",
        *(f"rocketmq_{each}" for each in ("delivery_latency", "await_time", "process_time")),
    ):
        metric = scope.metrics.add(name=name)
        for number in range(count):
            made = histogram(name, topic=f"many-{number}", **names).resource_metrics[0].scope_metrics[0].metrics[0]
            metric.histogram.data_points.extend(made.histogram.data_points)
        metric.histogram.aggregation_temporality = 2
    for name in ("rocketmq_consumer_cached_messages", "rocketmq_consumer_cached_bytes"):
        metric = scope.metrics.add(name=name)
        for number in range(count):
            made = gauge(name, topic=f"many-{number}", **names).resource_metrics[0].scope_metrics[0].metrics[0]
            metric.gauge.data_points.extend(made.gauge.data_points)
    return request


def test_a_client_of_a_thousand_topics_is_read_in_turns(reporting) -> None:
    for number in range(1000):
        reporting.broker.add_topic(f"many-{number}")
    call = FakeCall(of_many_topics(1000))
    assert 1_200_000 < len(call.message) < otlp.MAX_REQUEST_BYTES
    reporting.reports.export_metrics([call])
    turns = 1
    while not call.finished:
        taken = reporting.figures.taken
        reporting.turns.run_one()
        assert reporting.figures.taken - taken < 400, "a turn of the loop stays short"
        turns += 1
    assert turns > 15
    assert call.response(ExportMetricsServiceResponse).partial_success.rejected_data_points == 0
    assert (reporting.figures.taken, reporting.figures.refused) == (6000, 0)
    assert sum(reporting.counts.values()) == 4000


def test_the_totals_of_a_client_are_read_in_their_order(reporting) -> None:
    for number in range(300):
        reporting.broker.add_topic(f"many-{number}")
    large, small = FakeCall(of_many_topics(300)), FakeCall(histogram(counts=(0, 1)))
    reporting.reports.export_metrics([large, small])
    assert not small.finished
    reporting.turns.run()
    assert (large.finished, small.finished) == (True, True)


def test_what_waits_is_bounded(reporting) -> None:
    request = of_many_topics(1).SerializeToString()
    filled = request + b"\x1a\x80\x80\xc0\x01" + bytes(3 << 20)  # and a field that nobody knows
    calls = [FakeCall(filled) for _ in range(30)] + [FakeCall(request)]
    first = FakeCall(of_many_topics(300))  # takes more than this turn
    reporting.reports.export_metrics([first, *calls])
    refused = [call for call in calls if call.finished]
    assert refused
    assert all(call.failure is not None and call.failure[0] is GrpcStatus.RESOURCE_EXHAUSTED for call in refused)
    assert sum(len(call.message) for call in calls if not call.finished) <= MAX_WAITING_BYTES
    reporting.turns.run()
    assert all(call.finished for call in calls)
    again = FakeCall(filled)
    reporting.reports.export_metrics([again])
    assert again.failure is None


@pytest.mark.parametrize(
    "hostile",
    [
        b"\x0a\x00" * (1 << 20),
        b"\x0a\x80\x80\x40" + b"\x12\x00" * (1 << 19),
    ],
    ids=["resources", "scopes"],
)
def test_of_a_request_a_bounded_number_of_fields_is_looked_at(reporting, hostile) -> None:
    call = FakeCall(hostile)
    reporting.reports.export_metrics([call])
    assert not call.finished, "not in one turn"
    turns = 0
    while not call.finished:
        reporting.turns.run_one()
        turns += 1
    assert turns < 100
    assert (
        call.failure is not None
        or call.response(ExportMetricsServiceResponse).partial_success.rejected_data_points == 1
    )
    assert reporting.counts == {}


def test_a_figure_of_very_many_parts_is_no_figure(reporting) -> None:
    request = histogram()
    point = request.resource_metrics[0].scope_metrics[0].metrics[0].histogram.data_points[0]
    for _ in range(10_000):
        point.attributes.add()
    assert reporting.metrics(request) == 1
    made = span()
    for _ in range(10_000):
        made.resource_spans[0].scope_spans[0].spans[0].attributes.add()
    assert reporting.spans(made) == 1
    assert reporting.counts == {}


def test_what_a_client_counted_since_its_last_export_is_added_as_it_is(reporting) -> None:
    for _ in range(2):
        assert reporting.metrics(histogram(counts=(0, 3), temporality=1)) == 0
    assert sum(reporting.counts.values()) == 6


@given(st.binary(max_size=60))
def test_what_is_no_figure_does_not_hide_the_others(junk) -> None:
    reporting = Reporting()
    request = histogram()
    data = request.resource_metrics[0].scope_metrics[0].metrics[0]
    good = data.SerializeToString()
    framed = b"\x12" + encode_length(len(junk)) + junk + b"\x12" + encode_length(len(good)) + good
    scope = b"\x12" + encode_length(len(framed)) + framed
    call = FakeCall(b"\x0a" + encode_length(len(scope)) + scope)
    reporting.reports.export_metrics([call])
    assert call.finished
    if call.failure is None:
        assert sum(reporting.counts.values()) == 1


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
