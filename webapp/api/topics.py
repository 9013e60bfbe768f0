"""Topics and their queues over REST."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from remoting.facts.snapshot import Queue, Topic
from remoting.facts.tier_state import TieredQueueState
from remoting.facts.words import TopicKind
from remoting.names import MAX_RETRY_TOPIC_LENGTH
from webapp import snapshot
from webapp.api.base import (
    Int64Field,
    change,
    change_by_body,
    changes,
    changing,
    found_by_name,
    listed,
    observed,
    reads,
    search_parameters,
)
from webapp.api.client_times import ClientTimesSerializer
from webapp.api.facts import FactSerializer, told
from webapp.errors import PreconditionFailed
from webapp.rules import TOPIC_TYPES, Rules
from webapp.topics.changes import EXPORT_FORMATS
from webapp.topics.purpose import purpose

KINDS = [each.value for each in TopicKind]


class TieredQueueSerializer(FactSerializer):
    """What of a queue is where."""

    fact = TieredQueueState
    help_texts = told(
        local_min_offset="Where the brokers' files begin; what is before comes from the tier.",
        end_offset="Up to where the tier has it.",
        bytes="What the tier has of it.",
        missing="Messages before the local ones that went before they were uploaded, and are nowhere.",
    )


class TopicSerializer(FactSerializer):
    fact = Topic
    hidden = ("perm", "queues")
    help_texts = told(
        local_reserved_hours="For how long at least they stay in the brokers' files; null = as long as the brokers say.",
        tiered="Whether its messages are kept in a tier; null where no broker group has one.",
        tier_reserved_hours="For how long they stay there; null = as long as the brokers say.",
        tier_archived="Whether what is merged there is compressed; null = as the brokers say.",
        tier_exported="Whether workers write what is there as Parquet, too.",
    )
    tier_bytes = Int64Field(allow_null=False, read_only=True, help_text="What the tiers have of it.")
    kind = serializers.ChoiceField(
        choices=KINDS, help_text="Retry and dead-letter topics come with consumer groups; the system's are its own."
    )
    queue_count = serializers.IntegerField(read_only=True)
    purpose = serializers.SerializerMethodField(help_text="What is special about it, or what the cluster keeps in it.")

    client_times = serializers.SerializerMethodField(help_text="What its clients measured in the last minutes.")

    def get_purpose(self, topic: Topic) -> str | None:
        return purpose(topic)

    @extend_schema_field(ClientTimesSerializer(many=True))
    def get_client_times(self, topic: Topic) -> Any:
        return ClientTimesSerializer(snapshot.current().client_times_of(topic=topic.name), many=True).data


class ChangeTopicSerializer(serializers.Serializer):
    type = serializers.ChoiceField(choices=TOPIC_TYPES, required=False)
    queues = serializers.IntegerField(required=False, help_text="Per broker group.")
    perm = serializers.IntegerField(required=False, help_text="2 write only, 4 read only, 6 both.")
    local_reserve_time = serializers.IntegerField(
        required=False,
        help_text="Hours for which its messages stay in the brokers' files at least, -1 = as long as the brokers say; less than "
        "that has no effect. A full disk removes them earlier.",
    )
    tier_enable = serializers.BooleanField(
        required=False,
        help_text="Whether its messages are kept in the tier, where the brokers have one. True uploads what is still in their "
        "files, too; after false what is in the tier stays until its time is over.",
    )
    tier_reserve_time = serializers.IntegerField(
        required=False,
        help_text="Hours for which the tier keeps its messages, -1 = as long as the brokers say. What is older is removed.",
    )
    tier_archive = serializers.BooleanField(
        required=False,
        help_text="Whether messages are compressed when small objects of the tier are merged; what was merged before stays as "
        "it is.",
    )
    tier_export = serializers.ChoiceField(
        choices=EXPORT_FORMATS,
        required=False,
        help_text="`parquet`: workers write what is in the tier as Parquet files beside it, which reports read. After `none` "
        "they write no more; files go with their messages.",
    )


class CreateTopicSerializer(ChangeTopicSerializer):
    name = serializers.CharField(trim_whitespace=True)
    group = serializers.CharField(required=False, allow_null=True, help_text="One broker group only; all if absent.")


class QueueSerializer(FactSerializer):
    fact = Queue
    help_texts = told(tier="Null while all of it is in the brokers' files, and without a tier.")


QueuesSerializer = observed("Queues", QueueSerializer)
TopicPage = listed("TopicPage", TopicSerializer, as_of=serializers.CharField(allow_null=True))


OF_KIND = OpenApiParameter(
    "kind",
    OpenApiTypes.STR,
    enum=KINDS,
    description="Of this kind alone, whatever `system` says. If absent: all but system topics.",
)


def etag(topic: Topic) -> str:
    """Changes when the topic's configuration does, not when messages come in."""
    queues = sorted((queue.group, queue.queue_id) for queue in topic.queues)
    tier = (
        []
        if topic.tiered is None
        else [topic.tiered, topic.tier_reserved_hours, topic.tier_archived, topic.tier_exported]
    )
    local = [] if topic.local_reserved_hours is None else [f"{topic.local_reserved_hours} hours in files"]
    text = json.dumps([topic.name, topic.type, topic.perm, queues, *tier, *local])
    return f'"{hashlib.sha256(text.encode()).hexdigest()[:24]}"'


class OpenGateSerializer(serializers.Serializer):
    group = serializers.CharField(help_text="The broker group that holds messages back.")
    source = serializers.CharField(
        help_text="The broker group that is gone: its earlier messages may come after later ones."
    )


def _check_unmoved(request: Request, name: str) -> None:
    expected = request.headers.get("If-Match")
    if expected and expected != "*" and etag(snapshot.current().topic(name)) != expected:
        raise PreconditionFailed(f"The topic {name} was changed since you read it; read it again.")


class TopicsView(APIView):
    read_permission = "cluster.read"

    @reads("topics", "The topics", TopicPage, [*search_parameters("Include system topics."), OF_KIND])
    def get(self, request: Request) -> Response:
        present = snapshot.current()
        rules = Rules(request.query_params)
        kind = rules.choice("kind", KINDS) if rules.has("kind") else None
        rules.finish()
        find = partial(present.find_topics, kind=TopicKind(kind) if kind else None)
        items, following = found_by_name(request, find, most=MAX_RETRY_TOPIC_LENGTH)
        return Response(TopicPage({"items": items, "next": following, "as_of": present.as_of}).data)

    post = changing("topic_create", "Create a topic", "topic.create", CreateTopicSerializer)


class TopicView(APIView):
    read_permission = "cluster.read"

    @reads("topic", "One topic", TopicSerializer)
    def get(self, request: Request, name: str) -> Response:
        topic = snapshot.current().topic(name)
        return Response(TopicSerializer(topic).data, headers={"ETag": etag(topic)})

    @changes("topic_change", "Change a topic", ChangeTopicSerializer)
    def patch(self, request: Request, name: str) -> Response:
        _check_unmoved(request, name)
        return change_by_body(request, "topic.update", ChangeTopicSerializer, {"name": name})

    @changes("topic_delete", "Delete a topic and its messages")
    def delete(self, request: Request, name: str) -> Response:
        _check_unmoved(request, name)
        return change(request, "topic.delete", {"name": name})


class OpenGateView(APIView):
    post = changing(
        "topic_open_gate", "Let ordered groups wait no more for a broker group", "topic.open-gate", OpenGateSerializer
    )


class ExportView(APIView):
    post = changing("topic_export", "Write what is due of a topic as Parquet now", "tier.export")


class QueuesView(APIView):
    read_permission = "cluster.read"

    @reads("topic_queues", "The queues of a topic", QueuesSerializer)
    def get(self, request: Request, name: str) -> Response:
        present = snapshot.current()
        return Response(QueuesSerializer({"as_of": present.as_of, "items": present.topic(name).queues}).data)
