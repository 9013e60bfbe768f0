"""The audit trail over REST; there is nothing here that changes it."""

from __future__ import annotations

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from webapp.api.base import (
    LIST_PARAMETERS,
    Int64Field,
    asked,
    limit_of,
    listed,
    read_cursor,
    reads,
    showing,
    write_cursor,
)
from webapp.audit import services
from webapp.audit.models import AuditEntry
from webapp.errors import InvalidInput


class AuditEntrySerializer(serializers.ModelSerializer):
    sequence = Int64Field(allow_null=False)

    class Meta:
        model = AuditEntry
        exclude = ("id", "actor")


class VerificationSerializer(serializers.Serializer):
    entries = serializers.IntegerField()
    intact = serializers.BooleanField()
    broken_at = Int64Field()
    reason = serializers.CharField(allow_blank=True)
    anchored = Int64Field()
    anchor_problem = serializers.CharField(allow_blank=True)


AuditPage = listed("AuditPage", AuditEntrySerializer)


class AuditView(APIView):
    read_permission = "audit.read"

    @reads(
        "audit",
        "The audit trail, newest first",
        AuditPage,
        [*LIST_PARAMETERS, *asked("actor", "action", q="Part of the target.")],
    )
    def get(self, request: Request) -> Response:
        limit, cursor = limit_of(request), read_cursor(request)
        rows = services.search(request.query_params)
        if cursor is not None:
            if not isinstance(cursor, int):
                raise InvalidInput("cursor: take it from the answer before", fields={"cursor": ["is not one of ours"]})
            rows = rows.filter(sequence__lt=cursor)
        found = list(rows[: limit + 1])
        following = write_cursor(found[limit - 1].sequence) if len(found) > limit else None
        return Response({"items": AuditEntrySerializer(found[:limit], many=True).data, "next": following})


class VerifyAuditView(APIView):
    read_permission = "audit.read"

    get = showing("audit_verify", "Check the chain of hashes", VerificationSerializer, services.verify)
