"""Consumer groups over REST: lag, members, creation and deletion."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from remoting.facts.snapshot import ConsumedQueue, ConsumedTopic, ConsumerGroup
from webapp import snapshot
from webapp.api.base import Int64Field, changing, found_by_name, listed, reads, search_parameters
from webapp.api.facts import FactSerializer, told
from webapp.groups.returns import returns

AT_LEAST = "The lag is at least this: a part is not known, or told by a replica that is not the master."


class GroupQueueSerializer(FactSerializer):
    fact = ConsumedQueue
    help_texts = told(
        start_offset="Where the group will begin; null when it has an offset, or that is not known.",
        lag="Counted from the consumer offset, or else from the start offset; null when neither is known.",
        pending_reset="Where the group goes on as soon as a consumer asks; null when no reset waits.",
    )


class GroupTopicSerializer(FactSerializer):
    fact = ConsumedTopic
    help_texts = told(lag_at_least=AT_LEAST)


class ReturnsSerializer(serializers.Serializer):
    """A topic of messages that the group did not handle."""

    topic = serializers.CharField()
    kind = serializers.ChoiceField(choices=["retry", "dead-letter"])
    message_count = Int64Field()
    lag = Int64Field(help_text="What the group has still to receive; null for dead letters.")
    lag_at_least = serializers.BooleanField(help_text=AT_LEAST)


class ConsumerGroupSerializer(FactSerializer):
    fact = ConsumerGroup
    hidden = ("retry_max_times",)
    help_texts = told(forbidden="Topics that the group may not read.", lag_at_least=AT_LEAST)
    returns = ReturnsSerializer(many=True, help_text="Retries and dead letters.")


class CreateConsumerGroupSerializer(serializers.Serializer):
    name = serializers.CharField()
    fifo = serializers.BooleanField(required=False, help_text="Deliver the messages of one message group in order.")
    retry_max_times = serializers.IntegerField(required=False, help_text="Attempts before the dead-letter topic.")


def _with_returns(group: ConsumerGroup, present: snapshot.Snapshot) -> dict[str, Any]:
    return {each.name: getattr(group, each.name) for each in fields(group)} | {
        "returns": returns(group, present.topics)
    }


ConsumerGroupPage = listed("ConsumerGroupPage", ConsumerGroupSerializer, as_of=serializers.CharField(allow_null=True))


class ConsumerGroupsView(APIView):
    read_permission = "cluster.read"

    @reads(
        "consumer_groups",
        "The consumer groups with their lag",
        ConsumerGroupPage,
        search_parameters("Include the groups of the protocol's own tools."),
    )
    def get(self, request: Request) -> Response:
        present = snapshot.current()
        groups, following = found_by_name(request, present.find_consumer_groups, most=120)
        items = [_with_returns(group, present) for group in groups]
        return Response(ConsumerGroupPage({"items": items, "next": following, "as_of": present.as_of}).data)

    post = changing("consumer_group_create", "Create a consumer group", "group.create", CreateConsumerGroupSerializer)


class ConsumerGroupView(APIView):
    read_permission = "cluster.read"

    @reads("consumer_group", "One consumer group", ConsumerGroupSerializer)
    def get(self, request: Request, name: str) -> Response:
        present = snapshot.current()
        group = present.consumer_group(name)
        return Response(ConsumerGroupSerializer(_with_returns(group, present)).data)

    delete = changing("consumer_group_delete", "Delete a consumer group and its offsets", "group.delete")
