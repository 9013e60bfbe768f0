"""Every websocket address of the console."""

from __future__ import annotations

from channels.security.websocket import WebsocketDenier
from django.urls import URLPattern, path, re_path

from webapp.clusters.consumers import SnapshotConsumer
from webapp.operations.consumers import OperationConsumer
from webapp.reports.consumers import RunConsumer

websocket_urlpatterns: list[URLPattern] = [
    path("ws/snapshot", SnapshotConsumer.as_asgi()),
    path("ws/operations/<uuid:operation_id>", OperationConsumer.as_asgi()),
    path("ws/report-runs/<uuid:run_id>", RunConsumer.as_asgi()),
    re_path("", WebsocketDenier.as_asgi()),  # else whoever asks for another one fills the log with tracebacks
]
