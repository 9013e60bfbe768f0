"""What clients report of themselves, by OpenTelemetry's protocol on this port: the two Export methods.

Answered by the broker that was asked, master or replica: figures are about clients, not about a log. With access control on, only
signed calls count. Figures are taken of topics and groups that exist, so that names cannot be made up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from brokerd.metadata.configs import Metadata
from brokerd.proxy import otlp
from brokerd.proxy.calls import Call, GrpcStatus
from brokerd.proxy.client_figures import ClientFigures, Labels
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


@dataclass(slots=True, eq=False)
class ClientReports:
    """The handlers. `guard` None = nobody needs to sign."""

    metadata: Metadata
    figures: ClientFigures
    wall_ms: Callable[[], int]
    guard: Guard | None = None

    def export_metrics(self, calls: Sequence[Call]) -> None:
        for call in calls:
            self._export(call, otlp.read_metrics, self._point, otlp.metrics_answer)

    def export_traces(self, calls: Sequence[Call]) -> None:
        for call in calls:
            self._export(call, otlp.read_spans, self._span, otlp.spans_answer)

    def _export(
        self,
        call: Call,
        read: Callable[[bytes], otlp.Read],
        take: Callable[[Call, otlp.Point | otlp.Took], bool],
        answer: Callable[[int, str], bytes],
    ) -> None:
        if not self._admits(call):
            return
        try:
            found, wrong, is_whole = read(call.message)
        except DecodeError as error:
            call.fail(GrpcStatus.INVALID_ARGUMENT, f"undecodable request: {error}")
            return
        rejected = wrong + sum(not take(call, each) for each in found) + (not is_whole)
        self.figures.refuse(rejected)
        call.answer(answer(rejected, _REJECTED))

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

    def _point(self, call: Call, point: otlp.Point | otlp.Took) -> bool:
        assert isinstance(point, otlp.Point)
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

    def _span(self, call: Call, took: otlp.Point | otlp.Took) -> bool:
        assert isinstance(took, otlp.Took)
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
