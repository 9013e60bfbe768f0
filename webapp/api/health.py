"""`GET /api/v1/health`: the only endpoint without login, so it says one word and nothing about the cluster."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from remoting.facts.words import Health
from webapp import snapshot


class HealthSerializer(serializers.Serializer):
    status = serializers.ChoiceField(choices=[each.value for each in Health])


class HealthView(APIView):
    authentication_classes = ()
    permission_classes = (AllowAny,)

    @extend_schema(operation_id="health", summary="Whether the cluster works", responses=HealthSerializer, auth=[])
    def get(self, request: Request) -> Response:
        return Response({"status": snapshot.current().verdict.status})
