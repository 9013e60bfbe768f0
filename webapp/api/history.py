"""The history of the cluster over REST: elections and faults, newest first."""

from __future__ import annotations

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from remoting.facts.history import HistoryEntry
from webapp.accounts.permissions import actor_of
from webapp.api.base import (
    LIST_PARAMETERS,
    Int64Field,
    asked,
    listed,
    page_by_time,
    reads,
)
from webapp.api.facts import FactSerializer, told
from webapp.history.models import HistoryRow
from webapp.history.search import FAULTS, KINDS, operations_of, search

HELP = told(
    subject="Whom it is about: a broker group, or a replica with the process that is to be started again.",
    cause="As far as it is known.",
    previous="Who was master, or leader of the controllers, before.",
    epoch="The master epoch, or the controllers' term.",
    start_unwatched="The collector had not looked for a while: it began earlier.",
    end_unwatched="The collector had not looked for a while: it ended earlier.",
)

HELP_OF_ROWS = {name: {"help_text": text} for name, text in HELP.items() if name != "epoch"}


class RecentHistorySerializer(FactSerializer):
    """An entry of the history as the snapshot has it; times are milliseconds since 1970."""

    fact = HistoryEntry
    kind = serializers.ChoiceField(choices=KINDS)
    help_texts = HELP


class HistoryRowSerializer(serializers.ModelSerializer):
    kind = serializers.ChoiceField(choices=KINDS)
    epoch = Int64Field()
    duration_ms = Int64Field(help_text="For an election, how long the group had no master; null while it lasts.")
    operation_id = serializers.SerializerMethodField(help_text="The operation that asked for the election.")
    requested_by = serializers.SerializerMethodField(help_text="Who asked for the election here.")

    class Meta:
        model = HistoryRow
        exclude = ("id",)
        extra_kwargs = HELP_OF_ROWS

    def get_operation_id(self, row: HistoryRow) -> str | None:
        found = self.context["operations"].get(row.pk)
        return str(found.pk) if found is not None else None

    def get_requested_by(self, row: HistoryRow) -> str | None:
        found = self.context["operations"].get(row.pk)
        return str(found.requested_by_name) if found is not None else None


HistoryPage = listed("HistoryPage", HistoryRowSerializer)


class HistoryView(APIView):
    read_permission = "cluster.read"

    @reads(
        "history",
        "Elections and faults, newest first",
        HistoryPage,
        [
            *LIST_PARAMETERS,
            OpenApiParameter("kind", OpenApiTypes.STR, enum=(FAULTS, *KINDS), description=f"{FAULTS}: no election."),
            *asked("cluster", group="A broker group."),
            OpenApiParameter("open", OpenApiTypes.BOOL, description="Only what is not over."),
        ],
    )
    def get(self, request: Request) -> Response:
        shown, following = page_by_time(request, search(request.query_params), "started_at")
        context = {"operations": operations_of(shown, actor_of(request))}
        return Response({"items": HistoryRowSerializer(shown, many=True, context=context).data, "next": following})
