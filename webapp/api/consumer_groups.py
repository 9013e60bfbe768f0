"""Consumer groups over REST: lag, members, creation and deletion."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from remoting.facts.broker_state import GateState, WaitingMessageGroup
from remoting.facts.snapshot import ConsumedQueue, ConsumedTopic, ConsumedTopicGate, ConsumerGroup
from remoting.group_settings import ORDER_SCOPES
from webapp import snapshot
from webapp.api.base import Int64Field, changing, found_by_name, listed, reads, search_parameters
from webapp.api.client_times import ClientTimesSerializer
from webapp.api.facts import FactSerializer, told
from webapp.groups.returns import returns

ORDER_SCOPE = "What an ordered group keeps the order of: MESSAGE_GROUP, of each message group; QUEUE, of each queue."
INVISIBLE_TIMES = told(
    invisible_min_ms="A receive may not hide messages for less than this; null: as the brokers allow.",
    invisible_max_ms="No receive, and no change of that time, may hide messages for longer; null: as long as the brokers allow.",
    invisible_default_ms="For how long a gRPC receive that names no time hides messages; null: it is refused.",
)
AT_LEAST = "The lag is at least this: a part is not known, or told by a replica that is not the master."


class WaitingGroupSerializer(FactSerializer):
    fact = WaitingMessageGroup
    help_texts = told(
        until_ms="It waits until then, in milliseconds since 1970, unless a consumer finishes the message before.",
        waiting="How many messages wait behind the one that is with a consumer.",
    )


class GroupQueueSerializer(FactSerializer):
    fact = ConsumedQueue
    help_texts = told(
        start_offset="Where the group will begin; null when it has an offset, or that is not known.",
        lag="Counted from the consumer offset, or else from the start offset; null when neither is known.",
        pending_reset="Where the group goes on as soon as a consumer asks; null when no reset waits.",
        coming_back="How many of the messages in flight wait to be received again; null when none do.",
        held_since_ms="When the oldest message that a consumer has was taken, in milliseconds since 1970; null without any.",
        blocked_until_ms="An ordered queue gives nothing until then, unless a consumer finishes what it has of it.",
        waiting_groups="The message groups that wait for a message that is with a consumer; of very many some.",
        cold="How many messages of the lag come from the tier; null when that is not known.",
    )


class GateSerializer(FactSerializer):
    fact = GateState
    help_texts = told(
        version="Of the topic's placement, whose change brought the messages there.",
        since_ms="Since when the group waits for them, in milliseconds since 1970.",
        sources="The broker groups in which it has not finished what came before.",
        silent="Those of them that do not answer.",
        queue_ids="The queues here that hold messages back.",
    )


class TopicGateSerializer(FactSerializer):
    fact = ConsumedTopicGate
    help_texts = told(group="The broker group that holds messages back, so that an ordered group gets them in order.")


class GroupTopicSerializer(FactSerializer):
    fact = ConsumedTopic
    help_texts = told(lag_at_least=AT_LEAST, gates="Where new messages wait until earlier ones are finished elsewhere.")


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
    help_texts = told(
        order_scope=ORDER_SCOPE,
        forbidden="Topics that the group may not read.",
        lag_at_least=AT_LEAST,
        **INVISIBLE_TIMES,
    )
    returns = ReturnsSerializer(many=True, help_text="Retries and dead letters.")
    client_times = ClientTimesSerializer(many=True, help_text="What its clients measured in the last minutes.")


def _bound(help_text: str) -> serializers.Field:
    return Int64Field(required=False, allow_blank=True, help_text=help_text)


class CreateConsumerGroupSerializer(serializers.Serializer):
    name = serializers.CharField()
    fifo = serializers.BooleanField(required=False, help_text="Deliver the messages of one message group in order.")
    retry_max_times = serializers.IntegerField(required=False, help_text="Attempts before the dead-letter topic.")
    order_scope = serializers.ChoiceField(choices=list(ORDER_SCOPES), required=False, help_text=ORDER_SCOPE)
    invisible_min_ms, invisible_max_ms, invisible_default_ms = map(_bound, INVISIBLE_TIMES.values())


class ChangeConsumerGroupSerializer(serializers.Serializer):
    """What is not named stays as it is. A bound that is null or empty is taken away."""

    order_scope = serializers.ChoiceField(choices=list(ORDER_SCOPES), required=False, help_text=ORDER_SCOPE)
    invisible_min_ms, invisible_max_ms, invisible_default_ms = map(_bound, INVISIBLE_TIMES.values())


def _with_returns(group: ConsumerGroup, present: snapshot.Snapshot) -> dict[str, Any]:
    return {each.name: getattr(group, each.name) for each in fields(group)} | {
        "returns": returns(group, present.topics),
        "client_times": present.client_times_of(group=group.name),
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

    patch = changing("consumer_group_change", "Change a consumer group", "group.update", ChangeConsumerGroupSerializer)
    delete = changing("consumer_group_delete", "Delete a consumer group and its offsets", "group.delete")
