"""Timers over REST: the horizon, single ones, and recall."""

from __future__ import annotations

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from remoting.facts.timers import TimerItem
from remoting.names import MAX_TOPIC_LENGTH
from webapp import snapshot
from webapp.api.base import Int64Field, asked, changing, reads
from webapp.api.facts import FactSerializer, told
from webapp.rules import Rules
from webapp.timers import find
from webapp.timers.changes import DEFAULT_RATE, MAX_RATE
from webapp.timers.horizon import Horizon, HorizonColumn, Lateness, OfTopic, horizon, lateness


class HorizonColumnSerializer(FactSerializer):
    fact = HorizonColumn
    help_texts = told(
        from_ms="Milliseconds since 1970, as to_ms; null while nothing waits.", to_ms="null of the last column."
    )


class OfTopicSerializer(FactSerializer):
    fact = OfTopic
    help_texts = told(overdue="Since a minute or longer.", next_hour="Due within an hour.")


class LatenessSerializer(FactSerializer):
    fact = Lateness
    help_texts = told(bound_ms="They were not later than this, but later than the bound before; null: than all.")


class HorizonSerializer(FactSerializer):
    fact = Horizon
    columns = HorizonColumnSerializer(many=True)
    topics = OfTopicSerializer(many=True)
    help_texts = told(
        waiting="Delete markers are not counted, nor the newest entries, see uncounted.",
        oldest_late_ms="For how long the first that waits could have been delivered; null when no master tells.",
        uncounted="Entries that the masters have still to count.",
    )


class TimerHorizonSerializer(serializers.Serializer):
    as_of = serializers.CharField(allow_null=True)
    silent = serializers.ListField(child=serializers.CharField(), help_text="Broker groups of which no master tells.")
    horizon = HorizonSerializer()
    lateness = LatenessSerializer(many=True, help_text="Of what was delivered since the masters started.")


class TimerSerializer(FactSerializer):
    fact = TimerItem
    help_texts = told(
        offset="Queue offset of this record in the timer topic.",
        place="That of the message's first record there.",
        standing="waiting, recalled, aside, over (delivered, dropped or appended again), or marker (a recall).",
        leg_ms="When it is appended again on its way; null when it waits there until it is due.",
        rolls="How often it was appended again.",
        recalled_by="Of a marker: who recalled at the console.",
        is_in_tier="It waits in the object store, and its record is in the log no more.",
    )


class FoundTimersSerializer(serializers.Serializer):
    group = serializers.CharField()
    items = TimerSerializer(many=True, help_text="In the order in which the broker comes to them.")
    next = serializers.CharField(allow_null=True, help_text="Ask again with `after`; null at the end.")
    complete = serializers.BooleanField(help_text="That was all. An empty list that is not complete has more behind.")
    scanned = Int64Field(help_text="Timers that were looked at.")
    unread = Int64Field(help_text="Of the newest, those that are still being filed and were not looked at.")
    unread_in_tier = Int64Field(help_text="How many more may be in the object store, and could not be looked at.")
    problem = serializers.CharField(allow_blank=True, help_text="Why these could not.")


class RecallSerializer(serializers.Serializer):
    group = serializers.CharField(required=False, help_text="Broker group; all if absent.")
    topic = serializers.CharField(required=False, help_text="This or a key is needed.")
    key = serializers.CharField(required=False, help_text="One word of KEYS, or a message id.")
    place = serializers.CharField(
        required=False, help_text="Of those with the key, the one at this place of its group."
    )
    due_from = serializers.CharField(required=False, help_text="RFC 3339 or milliseconds since 1970.")
    due_before = serializers.CharField(required=False, help_text="The same.")
    rate = serializers.IntegerField(required=False, help_text=f"At most in a second; 1 to {MAX_RATE}, {DEFAULT_RATE}.")


class TimersView(APIView):
    read_permission = "cluster.read"

    @reads(
        "timers",
        "How many messages wait for their moment, and until when",
        TimerHorizonSerializer,
        asked(group="Broker group; all if absent.", topic="All if absent."),
    )
    def get(self, request: Request) -> Response:
        rules = Rules(request.query_params)
        group = rules.text("group", most=MAX_TOPIC_LENGTH)
        topic = rules.text("topic", most=MAX_TOPIC_LENGTH)
        rules.finish()
        present = snapshot.current()
        wanted = set(find.groups(find.Chosen(group=group)))
        groups = [each for each in present.facts.groups if each.name in wanted]
        document = {
            "as_of": present.as_of,
            "silent": [each.name for each in groups if each.timers is None],
            "horizon": horizon(groups, topic),
            "lateness": lateness(groups),
        }
        return Response(TimerHorizonSerializer(document).data)


class FoundTimersView(APIView):
    read_permission = "messages.read"

    @reads(
        "timers_found",
        "Find timers by key or id, or by when they are due",
        FoundTimersSerializer,
        [
            *asked(
                group="Broker group; the first if absent.",
                topic="Any if absent.",
                key="One word of KEYS, or a message id: then records of every standing are shown.",
                due_from="RFC 3339 or milliseconds since 1970.",
                due_before="The same.",
                after="`next` of the answer before.",
            ),
            OpenApiParameter("count", OpenApiTypes.INT, description=f"1 to {find.MAX_COUNT}."),
        ],
    )
    def get(self, request: Request) -> Response:
        return Response(FoundTimersSerializer(find.find(request.query_params)).data)


class RecallTimersView(APIView):
    post = changing("timers_recall", "Recall messages that wait", "timer.recall", RecallSerializer)
