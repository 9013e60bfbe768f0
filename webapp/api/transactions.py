"""Half messages that were given up over REST: a list of each broker group, and their end by hand."""

from __future__ import annotations

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from remoting.facts.given_up import GivenUp
from webapp.api.base import Int64Field, changing, reads
from webapp.api.facts import FactSerializer, told
from webapp.errors import InvalidInput
from webapp.transactions import given_up
from webapp.transactions.changes import DECISIONS


class GivenUpSerializer(FactSerializer):
    fact = GivenUp
    help_texts = told(
        offset="Its place among those that the broker group gave up.",
        checks="How often its producer was asked, in vain.",
        begun_at_ms="Milliseconds since 1970, as are the other times.",
        decision="What somebody decided about it by hand: commit, rollback, or resumed (it was opened anew).",
    )


class GivenUpPageSerializer(serializers.Serializer):
    items = GivenUpSerializer(many=True, help_text="The newest first.")
    before = Int64Field(help_text="Ask again with it for older ones; null when there are none.")


class DecisionSerializer(serializers.Serializer):
    group = serializers.CharField(help_text="Broker group.")
    offset = serializers.IntegerField()
    decision = serializers.ChoiceField(choices=list(DECISIONS))


class GivenUpView(APIView):
    read_permission = "messages.read"

    @reads(
        "transactions_given_up",
        "Half messages that were given up",
        GivenUpPageSerializer,
        [
            OpenApiParameter("group", OpenApiTypes.STR, required=True, description="Broker group."),
            OpenApiParameter("before", OpenApiTypes.STR, description="Only those at lower offsets."),
            OpenApiParameter("count", OpenApiTypes.INT, description=f"1 to {given_up.MOST}."),
        ],
    )
    def get(self, request: Request) -> Response:
        group = request.query_params.get("group", "")
        if not group:
            raise InvalidInput("group: name a broker group", fields={"group": ["name a broker group"]})
        return Response(GivenUpPageSerializer(given_up.ask(group, request.query_params.dict())).data)

    post = changing(
        "transaction_decide", "Commit one of them, or roll it back", "transaction.decide", DecisionSerializer
    )
