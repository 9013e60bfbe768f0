"""What clients report of themselves, by OpenTelemetry's protocol on this port: the two Export methods.

Answered by the broker that was asked, master or replica: figures are about clients, not about a log. With access control on, only
signed calls count. Figures are taken of topics and groups that exist, so that names cannot be made up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from brokerd.loop.in_turns import run_in_turns
from brokerd.metadata.configs import Metadata
from brokerd.proxy import otlp
from brokerd.proxy.calls import Call, GrpcStatus
from brokerd.proxy.client_figures import ClientFigures, Labels
from brokerd.proxy.fields import UnreadableError
from brokerd.proxy.methods.base import CLIENT_ID, LANGUAGE, header
from remoting.errors import RequestError
from remoting.guarding.guard import Guard

NAMESPACE: Final = "x-mq-namespace"
OTHER: Final = "OTHER"
_LANGUAGES: Final = {
    **{name: name for name in ("JAVA", "PYTHON", "CPP", "RUST", "DOTNET", "PHP", "KOTLIN", "RUBY", "DART")},
    "GO": "GO",
    "GOLANG": "GO",
    "HTTP": "NODE_JS",
    "NODE_JS": "NODE_JS",
}
_STATUSES: Final = frozenset({"success", "failure"})
_REJECTED: Final = "the figures are of no topic or group that exists here, are not understood, or are too many at once"

MAX_WAITING_BYTES: Final = 32 * 1024 * 1024  # of all clients together
_WORK_OF_A_TURN: Final = 64 * 1024  # in bytes


class _Export(NamedTuple):
    """How the requests of a method are read and answered."""

    read: Callable[[bytes, otlp.Taker], Iterator[int]]
    answer: Callable[[int, str], bytes]


_METRICS: Final = _Export(otlp.read_metrics, otlp.metrics_answer)
_SPANS: Final = _Export(otlp.read_spans, otlp.spans_answer)


@dataclass(slots=True, eq=False)
class ClientReports:
    """The handlers. `call_soon` is the loop's, as a large request takes several turns. `guard` None = nobody needs to sign."""

    metadata: Metadata
    figures: ClientFigures
    wall_ms: Callable[[], int]
    call_soon: Callable[..., Any]
    guard: Guard | None = None
    _waiting: deque[tuple[Call, _Export]] = field(default_factory=deque)
    _waiting_bytes: int = 0
    _is_reading: bool = False

    def export_metrics(self, calls: Sequence[Call]) -> None:
        for call in calls:
            self._export(call, _METRICS)

    def export_traces(self, calls: Sequence[Call]) -> None:
        for call in calls:
            self._export(call, _SPANS)

    def _export(self, call: Call, export: _Export) -> None:
        if not self._admits(call):
            return
        size = len(call.message)
        if self._waiting_bytes + size > MAX_WAITING_BYTES:
            call.fail(GrpcStatus.RESOURCE_EXHAUSTED, "too many figures are waiting to be read: export them later")
            return
        self._waiting_bytes += size
        self._waiting.append((call, export))
        if not self._is_reading:
            self._is_reading = True
            run_in_turns(self._steps(), _WORK_OF_A_TURN, self.call_soon)

    def _steps(self) -> Iterator[int]:
        """All that wait, one after the other: the totals of one client come in their order."""
        try:
            while self._waiting:
                call, export = self._waiting.popleft()
                self._waiting_bytes -= len(call.message)
                yield from self._read(call, export)
        finally:
            self._is_reading = False

    def _read(self, call: Call, export: _Export) -> Iterator[int]:
        rejected = 0

        def take(found: otlp.Point | otlp.Took | None) -> None:
            nonlocal rejected
            if isinstance(found, otlp.Point):
                rejected += not self._point(call, found)
            else:
                rejected += found is None or not self._span(call, found)

        try:
            yield from export.read(call.message, take)
        except UnreadableError as error:
            call.fail(GrpcStatus.INVALID_ARGUMENT, str(error))
            return
        except otlp.TooMuchError:
            rejected += 1
        self.figures.refuse(rejected)
        call.answer(export.answer(rejected, _REJECTED))

    def _admits(self, call: Call) -> bool:
        """Whether the call may report; if not, it was told so."""
        if not call.metadata.get(CLIENT_ID):
            call.fail(GrpcStatus.INVALID_ARGUMENT, f"the header {CLIENT_ID} is missing")
            return False
        if self.guard is None or not self.guard.is_on:
            return True
        try:
            self.guard.check_call(call.metadata)
        except RequestError as error:
            self.guard.refused += 1
            call.fail(GrpcStatus.UNAUTHENTICATED, error.message)
            return False
        return True

    def _point(self, call: Call, point: otlp.Point) -> bool:
        labels = self._labels(call, point.metric, point.topic, point.group, point.status)
        if labels is None:
            return False
        # who reports is who calls, whatever the figures say
        client_id, now_ms = header(call, CLIENT_ID), self.wall_ms()
        if point.running is not None:
            self.figures.histogram(client_id, labels, point.running, now_ms)
        else:
            self.figures.gauge(client_id, labels, point.value, now_ms)
        return True

    def _span(self, call: Call, took: otlp.Took) -> bool:
        labels = self._labels(call, took.metric, took.topic, took.group, took.status)
        if labels is None:
            return False
        self.figures.duration(labels, took.duration_ms, self.wall_ms())
        return True

    def _labels(self, call: Call, metric: str, topic: str, group: str, status: str) -> Labels | None:
        """None when the topic or the group is not known. A client's namespace is in front of both names."""
        namespace = call.metadata.get(NAMESPACE, "")
        if namespace:
            topic, group = f"{namespace}%{topic}", f"{namespace}%{group}" if group else ""
        if self.metadata.topic(topic) is None or (group and self.metadata.group(group) is None):
            return None
        language = _LANGUAGES.get(header(call, LANGUAGE), OTHER)
        return Labels(metric, topic, group, language, status if status in _STATUSES else "")
