"""OTLP requests (metrics and traces of OpenTelemetry) as the few figures that are wanted of them (pure).

A client has up to six figures of each of its topics, of 230 to 330 bytes each: with a thousand topics a request takes more than a
megabyte. It is walked through in steps, for several turns of the loop, and each figure is decoded by itself. What comes is not
trusted: a bounded number of fields is looked at, and of names and values a bounded length. What is not a figure of a RocketMQ
client is passed over.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.metrics.v1.metrics_pb2 import HistogramDataPoint, NumberDataPoint
from opentelemetry.proto.trace.v1.trace_pb2 import Span

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
from brokerd.proxy.fields import read_field, read_varint

METRICS_PATH: Final = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
TRACES_PATH: Final = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
MAX_REQUEST_BYTES: Final = 4 * 1024 * 1024  # what gRPC's libraries, and with them collectors, take by default

_HISTOGRAMS: Final = {
    b"rocketmq_send_cost_time": SEND,
    b"rocketmq_delivery_latency": DELIVERY,
    b"rocketmq_await_time": AWAIT,
    b"rocketmq_process_time": PROCESS,
}
_GAUGES: Final = {
    b"rocketmq_consumer_cached_messages": CACHED_MESSAGES,
    b"rocketmq_consumer_cached_bytes": CACHED_BYTES,
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

# tags: a field's number and how it is encoded. Metrics and spans lie alike: request, resource, scope
_TO_FIGURES: Final = (0x0A, 0x12, 0x12)
_NAME: Final = 0x0A
_GAUGE: Final = 0x2A
_HISTOGRAM: Final = 0x4A
_DATA_POINTS: Final = 0x0A
_TEMPORALITY: Final = 0x10

_MAX_FIELDS: Final = 64 * 1024
_MAX_FIGURE_BYTES: Final = 16 * 1024
_FIELD_SIZE: Final = 64  # to look at one costs about what it costs to decode so many bytes
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


Taker = Callable[[Point | Took | None], None]


class TooMuchError(Exception):
    """A request has more fields than are looked at."""


def read_metrics(encoded: bytes, take: Taker) -> Iterator[int]:
    """Give the `Point`s of a request to `take`, and None for each that is not understood. The steps say how much work they were,
    about in bytes. Raises UnreadableError and TooMuchError."""
    walk = _Walk(encoded)
    for place in walk.find(_TO_FIGURES):
        if place is None:
            yield _FIELD_SIZE
        else:
            yield from _read_metric(walk, *place, take)


def read_spans(encoded: bytes, take: Taker) -> Iterator[int]:
    """The same for what each span of messaging `Took`."""
    walk = _Walk(encoded)
    for place in walk.find(_TO_FIGURES):
        if place is not None:
            _read_span(walk, *place, take)
        yield _FIELD_SIZE + (place[1] - place[0] if place is not None else 0)


class _Walk:
    """A request, of which a bounded number of fields is looked at."""

    def __init__(self, encoded: bytes) -> None:
        self.encoded = encoded
        self._left = _MAX_FIELDS

    def fields(self, position: int, end: int) -> Iterator[tuple[int, int, int]]:
        """(tag, where its content begins, where it ends) of each field."""
        while position < end:
            if not self._left:
                raise TooMuchError
            self._left -= 1
            tag, start, position = read_field(self.encoded, position, end)
            yield tag, start, position

    def find(self, tags: Sequence[int]) -> Iterator[tuple[int, int] | None]:
        """Where the messages lie to which the tags lead; None for every other field that was looked at."""
        return self._find(tags, 0, len(self.encoded))

    def _find(self, tags: Sequence[int], position: int, end: int) -> Iterator[tuple[int, int] | None]:
        for tag, start, stop in self.fields(position, end):
            if tag != tags[0]:
                yield None
            elif len(tags) == 1:
                yield start, stop
            else:
                yield None
                yield from self._find(tags[1:], start, stop)

    def decode(self, message: Any, start: int, stop: int) -> Any:
        """What is there, as such a message; None if it is none, or too large to be a figure."""
        if stop - start > _MAX_FIGURE_BYTES:
            return None
        try:
            return message.FromString(self.encoded[start:stop])
        except DecodeError:
            return None


def _read_metric(walk: _Walk, position: int, end: int, take: Taker) -> Iterator[int]:
    name = b""
    data: dict[int, tuple[int, int]] = {}
    for tag, start, stop in walk.fields(position, end):
        yield _FIELD_SIZE
        if tag == _NAME:
            name = walk.encoded[start : min(stop, start + _MAX_TEXT)]
        elif tag in (_GAUGE, _HISTOGRAM):
            data[tag] = start, stop
    if name in _HISTOGRAMS and _HISTOGRAM in data:
        yield from _read_histograms(walk, *data[_HISTOGRAM], _HISTOGRAMS[name], take)
    elif name in _GAUGES and _GAUGE in data:
        for tag, start, stop in walk.fields(*data[_GAUGE]):
            if tag == _DATA_POINTS:
                take(_gauge(_GAUGES[name], walk.decode(NumberDataPoint, start, stop)))
            yield _FIELD_SIZE + stop - start


def _read_histograms(walk: _Walk, position: int, end: int, name: str, take: Taker) -> Iterator[int]:
    is_delta = False
    places = []
    for tag, start, stop in walk.fields(position, end):
        yield _FIELD_SIZE
        if tag == _DATA_POINTS:
            places.append((start, stop))
        elif tag == _TEMPORALITY:  # it stands behind the points
            is_delta = read_varint(walk.encoded, start, stop)[0] == _DELTA
    for start, stop in places:
        take(_histogram(name, walk.decode(HistogramDataPoint, start, stop), is_delta=is_delta))
        yield stop - start


def _gauge(name: str, point: Any) -> Point | None:
    if point is None:
        return None
    value = float(point.as_int if point.HasField("as_int") else point.as_double)
    return Point(name, *_labels(_attributes(point.attributes)), value=value) if 0 <= value <= _MAX_COUNT else None


def _read_span(walk: _Walk, start: int, stop: int, take: Taker) -> None:
    span = walk.decode(Span, start, stop)
    if span is None:
        take(None)
        return
    attributes = _attributes(span.attributes)
    metric = _OPERATIONS.get(_first(attributes, _OPERATION_KEYS))
    if metric is not None:
        take(_took(span, metric, attributes))


def _histogram(name: str, point: Any, *, is_delta: bool) -> Point | None:
    if point is None:
        return None
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
