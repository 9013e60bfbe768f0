"""Operations over REST: what was asked for and what became of it."""

from __future__ import annotations

from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from webapp.accounts.permissions import actor_of
from webapp.api.base import (
    LIST_PARAMETERS,
    PREFER,
    PROBLEM,
    OperationSerializer,
    asked,
    filtered,
    listed,
    operation_document,
    page_by_time,
    preferred_wait_s,
    reads,
)
from webapp.operations import services
from webapp.operations.models import Operation
from webapp.operations.waiting import wait

OperationPage = listed("OperationPage", OperationSerializer)


class OperationsView(APIView):
    read_permission = "operations.read"

    @reads(
        "operations",
        "Operations, newest first",
        OperationPage,
        [*LIST_PARAMETERS, *asked("kind", "state")],
    )
    def get(self, request: Request) -> Response:
        found, following = page_by_time(request, filtered(request, Operation.objects.all(), kind=60, state=10))
        return Response({"items": [operation_document(each) for each in found], "next": following})


class OperationView(APIView):
    read_permission = "operations.read"

    @reads("operation", "One operation", OperationSerializer, [PREFER])
    def get(self, request: Request, operation_id: UUID) -> Response:
        return Response(operation_document(wait(services.find(operation_id), preferred_wait_s(request))))


class CancelOperationView(APIView):
    @extend_schema(
        operation_id="operation_cancel",
        summary="Ask an operation to stop",
        request=None,
        responses={(200, "application/json"): OperationSerializer, **PROBLEM},
    )
    def post(self, request: Request, operation_id: UUID) -> Response:
        return Response(operation_document(services.cancel(actor_of(request), services.find(operation_id))))
