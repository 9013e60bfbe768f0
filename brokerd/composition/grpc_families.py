"""The families of the gRPC port: its calls, and what clients told of themselves; and the facts of the latter."""

from __future__ import annotations

from operator import add
from typing import Final

from brokerd.proxy.client_figures import (
    AWAIT,
    BOUNDS_MS,
    CACHED_BYTES,
    CACHED_MESSAGES,
    DELIVERY,
    PROCESS,
    SEND,
    SPAN_PROCESS,
    SPAN_RECEIVE,
    SPAN_SEND,
    ClientFigures,
    Labels,
)
from brokerd.proxy.figures import GrpcFigures
from remoting.exposition import Family
from remoting.facts.broker_state import ClientTimesState

_TIMES: Final = {
    SEND: ("logboom_client_send_seconds", "how long sends took, as clients see them"),
    DELIVERY: ("logboom_client_delivery_seconds", "from the broker's answer to the client, as clients see it"),
    AWAIT: ("logboom_client_await_seconds", "from a message's arrival at the client to its consumption"),
    PROCESS: ("logboom_client_process_seconds", "how long clients took to consume a message"),
}
_SPANS: Final = {SPAN_SEND: "send", SPAN_RECEIVE: "receive", SPAN_PROCESS: "process"}
_CACHED: Final = {
    CACHED_MESSAGES: ("logboom_client_cached_messages", "messages that push consumers hold"),
    CACHED_BYTES: ("logboom_client_cached_bytes", "their bytes"),
}


def grpc_families(figures: GrpcFigures, now_ms: int) -> list[Family]:
    """`now_ms` is the time of day."""
    calls = Family("logboom_grpc_calls_total", "counter", "calls by how they were answered")
    for method, codes in figures.calls.items():
        for code, count in codes.items():
            calls.add(count, method=method, code=code)
    return [
        calls,
        Family("logboom_grpc_connections", "gauge", "open gRPC connections").add(figures.connections),
        Family("logboom_grpc_telemetry_streams", "gauge", "open telemetry streams").add(figures.telemetry_streams),
        Family("logboom_grpc_pulls_held", "gauge", "PullMessage calls that wait for a message").add(figures.held_pulls),
        Family("logboom_grpc_sends_held", "gauge", "SendMessage calls that wait for their owner").add(
            figures.held_sends
        ),
        *_client_families(figures.clients, now_ms),
    ]


def client_times(clients: ClientFigures, now_ms: int) -> tuple[ClientTimesState, ...]:
    """What clients measured lately, for the console."""
    return tuple(
        ClientTimesState(**labels._asdict(), bounds_ms=tuple(BOUNDS_MS[labels.metric]), counts=tuple(counts))
        for labels, series in clients.series(now_ms)
        if any(counts := list(map(add, series.recent, series.previous)))
    )


def _client_families(clients: ClientFigures, now_ms: int) -> list[Family]:
    times = {metric: Family(name, "histogram", help) for metric, (name, help) in _TIMES.items()}
    spans = Family("logboom_client_span_seconds", "histogram", "how long operations took, as clients' traces say")
    cached = {metric: Family(name, "gauge", help) for metric, (name, help) in _CACHED.items()}
    for labels, series in clients.series(now_ms):
        if labels.metric in _SPANS:
            spans.add(series.total, operation=_SPANS[labels.metric], **_named(labels))
        else:
            times[labels.metric].add(series.total, **_named(labels))
    for labels, value in clients.gauges(now_ms).items():
        cached[labels.metric].add(value, **_named(labels))
    return [
        *times.values(),
        spans,
        *cached.values(),
        Family("logboom_client_figures_total", "counter", "figures taken of clients").add(clients.taken),
        Family("logboom_client_figures_refused_total", "counter", "figures of clients that were not taken").add(
            clients.refused
        ),
    ]


def _named(labels: Labels) -> dict[str, str]:
    """Without what is not said."""
    named = {"topic": labels.topic, "group": labels.group, "language": labels.language, "status": labels.status}
    return {name: value for name, value in named.items() if value}
