"""OTLP requests (metrics and traces of OpenTelemetry) as the few figures that are wanted of them (pure).

What comes is not trusted: of a request a bounded number of elements is looked at, of names and values a bounded length. What is
not a figure of a RocketMQ client is passed over.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from brokerd.proxy.client_figures import (
    AWAIT,
    CACHED_BYTES,
    CACHED_MESSAGES,
    DELIVERY,
    PROCESS,
    SEND,
    SPAN_PROCESS,
    SPAN_RECEIVE,
    SPAN_SEND,
    Buckets,
    Running,
)

METRICS_PATH: Final = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
TRACES_PATH: Final = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
MAX_REQUEST_BYTES: Final = 256 * 1024

HISTOGRAMS: Final = {
    "rocketmq_send_cost_time": SEND,
    "rocketmq_delivery_latency": DELIVERY,
    "rocketmq_await_time": AWAIT,
    "rocketmq_process_time": PROCESS,
}
GAUGES: Final = {
    "rocketmq_consumer_cached_messages": CACHED_MESSAGES,
    "rocketmq_consumer_cached_bytes": CACHED_BYTES,
}
# what a span of messaging does, by the conventions' words of several years
_OPERATIONS: Final = {
    "publish": SPAN_SEND,
    "send": SPAN_SEND,
    "create": SPAN_SEND,
    "receive": SPAN_RECEIVE,
    "process": SPAN_PROCESS,
    "deliver": SPAN_PROCESS,
}
_OPERATION_KEYS: Final = ("messaging.operation.type", "messaging.operation", "messaging.rocketmq.operation")
_TOPIC_KEYS: Final = ("messaging.destination.name", "messaging.destination")
_GROUP_KEYS: Final = (
    "messaging.consumer.group.name",
    "messaging.rocketmq.consumer_group",
    "messaging.rocketmq.client_group",
)

_MAX_ELEMENTS: Final = 4000
_MAX_ATTRIBUTES: Final = 24
_MAX_TEXT: Final = 255
_MAX_BUCKETS: Final = 64
_MAX_COUNT: Final = 10**14
_MAX_MS: Final = 1e15
_DELTA: Final = 1
_ERROR: Final = 2


class Point(NamedTuple):
    """One figure of a client; `value` is a gauge's, or `running` a histogram's."""

    metric: str
    topic: str
    group: str
    client_id: str
    status: str
    running: Running | None = None
    value: float = 0.0


class Took(NamedTuple):
    """One span: what it did, and how long."""

    metric: str
    topic: str
    group: str
    status: str
    duration_ms: float


class _Budget:
    """How much of a request is still looked at. `is_spent`: not all of it was."""

    def __init__(self) -> None:
        self._left = _MAX_ELEMENTS
        self.is_spent = False

    def of(self, elements: Iterable[Any]) -> Iterator[Any]:
        for element in elements:
            if not self._left:
                self.is_spent = True
                return
            self._left -= 1
            yield element


class Read(NamedTuple):
    """What of a request is wanted, and how many figures of it were not understood. `is_whole`: all of it was looked at."""

    found: list[Any]
    wrong: int
    is_whole: bool


def read_metrics(encoded: bytes) -> Read:
    """The `Point`s of a request. Raises DecodeError."""
    request = ExportMetricsServiceRequest.FromString(encoded)
    budget = _Budget()
    found: list[Point] = []
    wrong = 0
    for resource in budget.of(request.resource_metrics):
        for scope in budget.of(resource.scope_metrics):
            for metric in budget.of(scope.metrics):
                for point in _points(budget, metric):
                    if point is None:
                        wrong += 1
                    else:
                        found.append(point)
    return Read(found, wrong, not budget.is_spent)


def _points(budget: _Budget, metric: Any) -> Iterator[Point | None]:
    """None for one that is not as it should be."""
    name = HISTOGRAMS.get(metric.name)
    if name is not None and metric.HasField("histogram"):
        is_delta = metric.histogram.aggregation_temporality == _DELTA
        for point in budget.of(metric.histogram.data_points):
            yield _histogram(name, point, is_delta=is_delta)
        return
    name = GAUGES.get(metric.name)
    if name is not None and metric.HasField("gauge"):
        for point in budget.of(metric.gauge.data_points):
            value = float(point.as_int if point.HasField("as_int") else point.as_double)
            if 0 <= value <= _MAX_COUNT:
                yield Point(name, *_labels(_attributes(point.attributes)), value=value)
            else:
                yield None


def _histogram(name: str, point: Any, *, is_delta: bool) -> Point | None:
    bounds, counts = point.explicit_bounds[:_MAX_BUCKETS], point.bucket_counts[: _MAX_BUCKETS + 1]
    total: float = point.sum
    if len(point.bucket_counts) != len(bounds) + 1 or any(count > _MAX_COUNT for count in counts):
        return None
    if not 0 <= total <= _MAX_MS or any(math.isnan(bound) for bound in bounds) or bounds != sorted(set(bounds)):
        return None
    # many are remembered: as arrays they take a quarter of the room
    buckets = Buckets(array("d", bounds), array("q", counts), total)
    running = Running(buckets, None if is_delta else point.start_time_unix_nano)
    return Point(name, *_labels(_attributes(point.attributes)), running=running)


def _labels(attributes: Mapping[str, str]) -> tuple[str, str, str, str]:
    """Topic, group, client id and status."""
    return (
        attributes.get("topic", ""),
        attributes.get("consumer_group", ""),
        attributes.get("client_id", ""),
        attributes.get("invocation_status", ""),
    )


def _attributes(attributes: Any) -> dict[str, str]:
    """Those that are texts, cut."""
    return {
        each.key[:_MAX_TEXT]: each.value.string_value[:_MAX_TEXT]
        for each in attributes[:_MAX_ATTRIBUTES]
        if each.value.HasField("string_value")
    }


def read_spans(encoded: bytes) -> Read:
    """What each span of messaging `Took`. Raises DecodeError."""
    request = ExportTraceServiceRequest.FromString(encoded)
    budget = _Budget()
    found: list[Took] = []
    wrong = 0
    for resource in budget.of(request.resource_spans):
        for scope in budget.of(resource.scope_spans):
            for span in budget.of(scope.spans):
                attributes = _attributes(span.attributes)
                metric = _OPERATIONS.get(_first(attributes, _OPERATION_KEYS))
                if metric is None:
                    continue
                took = _took(span, metric, attributes)
                if took is None:
                    wrong += 1
                else:
                    found.append(took)
    return Read(found, wrong, not budget.is_spent)


def _took(span: Any, metric: str, attributes: Mapping[str, str]) -> Took | None:
    """None for a span that names no topic, or whose times make no sense."""
    topic = _first(attributes, _TOPIC_KEYS)
    duration_ms = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e6
    if not topic or not 0 <= duration_ms <= _MAX_MS:
        return None
    group = "" if metric == SPAN_SEND else _first(attributes, _GROUP_KEYS)
    return Took(metric, topic, group, "failure" if span.status.code == _ERROR else "success", duration_ms)


def _first(attributes: Mapping[str, str], keys: Iterable[str]) -> str:
    return next((attributes[key] for key in keys if attributes.get(key)), "")


def metrics_answer(rejected: int, text: str) -> bytes:
    """The response to metrics; `text` says why figures were rejected."""
    response = ExportMetricsServiceResponse()
    if rejected:
        response.partial_success.rejected_data_points = rejected
        response.partial_success.error_message = text
    encoded: bytes = response.SerializeToString()
    return encoded


def spans_answer(rejected: int, text: str) -> bytes:
    """The response to spans."""
    response = ExportTraceServiceResponse()
    if rejected:
        response.partial_success.rejected_spans = rejected
        response.partial_success.error_message = text
    encoded: bytes = response.SerializeToString()
    return encoded
