"""The group of controllers over REST: its members as the leader sees them now, and changes of them."""

from __future__ import annotations

from rest_framework import serializers
from rest_framework.views import APIView

from webapp import gateway
from webapp.api.base import Int64Field, changing, showing


class ControllerMemberSerializer(serializers.Serializer):
    id = serializers.CharField()
    address = serializers.CharField(allow_blank=True)
    role = serializers.ChoiceField(
        choices=["voter", "learner", "leaving", "unknown"],
        help_text="A learner receives everything and has no vote; who is leaving votes until the change is complete.",
    )
    leader = serializers.BooleanField()
    alive = serializers.BooleanField(allow_null=True, help_text="Heard by the leader lately; null when there is none.")
    behind = Int64Field(help_text="Decided entries that it does not hold yet.")


class ControllerMembersSerializer(serializers.Serializer):
    group = serializers.CharField()
    cluster = serializers.CharField(allow_blank=True, help_text="Tells groups of the same name apart.")
    leader_id = serializers.CharField(source="leaderId", allow_null=True)
    changing = serializers.BooleanField(help_text="A change of several members is under way.")
    items = ControllerMemberSerializer(many=True, source="members")
    retired = serializers.ListField(child=serializers.CharField(), help_text="Ids that are never used again.")


class NewControllerSerializer(serializers.Serializer):
    id = serializers.CharField()
    address = serializers.CharField(help_text="host:port where it listens.")


class LeaderSerializer(serializers.Serializer):
    id = serializers.CharField()


class ControllerMembersView(APIView):
    read_permission = "cluster.read"

    get = showing(
        "controller_members",
        "Who belongs to the group of controllers",
        ControllerMembersSerializer,
        gateway.controller_members,
    )
    post = changing("controller_add", "Add a controller as a learner", "controller.add", NewControllerSerializer)


class ControllerMemberView(APIView):
    delete = changing("controller_remove", "Remove a controller for good", "controller.remove", renamed={"name": "id"})


class PromoteControllerView(APIView):
    post = changing("controller_promote", "Give a learner its vote", "controller.promote", renamed={"name": "id"})


class ControllerLeaderView(APIView):
    put = changing("controller_transfer", "Let a controller lead", "controller.transfer", LeaderSerializer)
