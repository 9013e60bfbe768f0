"""The cluster over REST: the snapshot whole and in parts, and elections."""

from __future__ import annotations

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from remoting.facts.words import Health
from webapp import snapshot
from webapp.api.base import Int64Field, body_of, change, changes, reads


class ReasonSerializer(serializers.Serializer):
    code = serializers.CharField()
    severity = serializers.CharField()
    text = serializers.CharField()
    link = serializers.CharField(allow_null=True)


class VerdictSerializer(serializers.Serializer):
    status = serializers.ChoiceField(choices=[each.value for each in Health])
    reasons = ReasonSerializer(many=True)


class ControllerSerializer(serializers.Serializer):
    id = serializers.CharField()
    address = serializers.CharField()
    role = serializers.ChoiceField(choices=["leader", "follower", "candidate", "unreachable"])
    member = serializers.CharField(required=False, help_text="voter, learner, leaving or unknown.")
    term = Int64Field()
    commit_index = Int64Field()
    applied_index = Int64Field()


class EpochSerializer(serializers.Serializer):
    epoch = Int64Field()
    start_offset = Int64Field()


class ReplicaSerializer(serializers.Serializer):
    id = serializers.IntegerField()
    address = serializers.CharField(allow_null=True)
    grpc_address = serializers.CharField(allow_null=True)
    ha_address = serializers.CharField(allow_null=True)
    alive = serializers.BooleanField(allow_null=True)
    role = serializers.ChoiceField(choices=["master", "replica", "fenced", "unreachable"])
    in_sync = serializers.BooleanField(allow_null=True)
    learner = serializers.BooleanField(
        allow_null=True,
        required=False,
        help_text="Copies the log, but never counts for an acknowledgement and never leads.",
    )
    epoch = Int64Field()
    max_offset = Int64Field()
    flushed_offset = Int64Field()
    confirm_offset = Int64Field()
    gap_bytes = Int64Field()
    eligible = serializers.BooleanField(allow_null=True)
    eligibility_reason = serializers.CharField(allow_null=True, allow_blank=True)
    last_heartbeat_ms = Int64Field(help_text="Milliseconds since the last heartbeat.")
    epochs = EpochSerializer(many=True, required=False)


class MissingReplicaSerializer(serializers.Serializer):
    broker_id = serializers.IntegerField()
    reason = serializers.CharField()
    stalls = serializers.BooleanField(help_text="It is still required: sends wait for it.")
    since_ms = Int64Field(help_text="Milliseconds since 1970.")


class QuorumSerializer(serializers.Serializer):
    """What an acknowledgement means at the moment, by the master's own word."""

    kind = serializers.ChoiceField(choices=["controllers", "acting-master", "fixed"])
    copies = serializers.IntegerField(allow_null=True, help_text="Copies that an acknowledged message has now.")
    wanted_copies = serializers.IntegerField(allow_null=True, help_text="Copies it would have if nobody were missing.")
    min_copies = serializers.IntegerField(allow_null=True)
    refused = serializers.BooleanField(help_text="Too few replicas are in sync: messages are refused.")
    downgraded = serializers.BooleanField()
    missing = MissingReplicaSerializer(many=True)


class TransactionsSerializer(serializers.Serializer):
    """Transactions of a broker group, by its master's word; totals are since that master started."""

    open = Int64Field()
    open_bytes = Int64Field()
    max_open = Int64Field()
    oldest_since_ms = Int64Field(help_text="Milliseconds since 1970; null when none is open.")
    oldest_age_ms = Int64Field()
    oldest_checks = Int64Field(help_text="How often the oldest was checked.")
    max_checks = Int64Field(help_text="After so many checks a transaction is given up.")
    overdue = serializers.BooleanField(help_text="The oldest was checked, and is not decided all the same.")
    committed = Int64Field()
    rolled_back = Int64Field()
    given_up = Int64Field(help_text="Kept in TRANS_CHECK_MAX_TIME_TOPIC.")


class DelayLevelSerializer(serializers.Serializer):
    level = Int64Field()
    delay_ms = Int64Field()
    waiting = Int64Field()
    late_ms = Int64Field(help_text="How late the last message of the level was delivered.")


class DelaysSerializer(serializers.Serializer):
    """Delayed messages and those that consumers gave back; totals are since the master started."""

    waiting = Int64Field()
    last_late_ms = Int64Field(help_text="How late the last delivery was; null before the first.")
    last_ago_ms = Int64Field(help_text="How long ago that was.")
    overdue_ms = Int64Field(help_text="For how long a message that still waits could have been delivered.")
    late = serializers.BooleanField(
        help_text="A delivery of the last minutes was some seconds late, or one is due that long."
    )
    delivered = Int64Field()
    failures = Int64Field(help_text="Attempts that were repeated.")
    lost = Int64Field(help_text="Dropped: their topic or group was removed while they waited, or their data is gone.")
    returned = Int64Field(help_text="Messages that consumers gave back.")
    dead_lettered = Int64Field()
    levels = DelayLevelSerializer(many=True)


class IndexSerializer(serializers.Serializer):
    """The index of keys, which is made behind what is stored."""

    lag_bytes = Int64Field()
    behind = serializers.BooleanField(help_text="It lacks more than a burst leaves.")


class GroupSerializer(serializers.Serializer):
    cluster = serializers.CharField()
    name = serializers.CharField()
    kind = serializers.ChoiceField(
        choices=["controllers", "fixed"],
        required=False,
        help_text="Who decides the roles: the controllers elect, or they are fixed by settings.",
    )
    master_id = serializers.IntegerField(allow_null=True)
    master_epoch = Int64Field()
    sync_state_set = serializers.ListField(child=serializers.IntegerField())
    sync_state_set_epoch = Int64Field()
    quorum = QuorumSerializer(allow_null=True, required=False)
    weaknesses = serializers.ListField(
        child=serializers.CharField(), required=False, help_text="What the brokers' settings give up of the promise."
    )
    transactions = TransactionsSerializer(
        allow_null=True, required=False, help_text="Null when the master does not answer."
    )
    delays = DelaysSerializer(allow_null=True, required=False)
    index = IndexSerializer(allow_null=True, required=False)
    replicas = ReplicaSerializer(many=True)


class RatesSerializer(serializers.Serializer):
    in_messages_per_s = serializers.FloatField(allow_null=True, required=False)
    out_messages_per_s = serializers.FloatField(allow_null=True, required=False)
    in_bytes_per_s = serializers.FloatField(allow_null=True, required=False)
    out_bytes_per_s = serializers.FloatField(allow_null=True, required=False)


class EventSerializer(serializers.Serializer):
    at = serializers.CharField()
    kind = serializers.CharField()
    text = serializers.CharField()


class ProcessSerializer(serializers.Serializer):
    name = serializers.CharField()
    state = serializers.CharField()
    pid = serializers.IntegerField(allow_null=True)
    restarts = serializers.IntegerField(allow_null=True)
    since = serializers.CharField(allow_null=True)


class SparkSerializer(serializers.Serializer):
    state = serializers.CharField(required=False)
    detail = serializers.CharField(allow_null=True, allow_blank=True, required=False)


class ClusterSerializer(serializers.Serializer):
    """The collector's last snapshot; the websocket `/ws/snapshot` sends the same as it changes."""

    seq = Int64Field()
    as_of = serializers.CharField(allow_null=True)
    freshness = serializers.ChoiceField(choices=["fresh", "stale", "unavailable"])
    verdict = VerdictSerializer()
    controllers = ControllerSerializer(many=True)
    groups = GroupSerializer(many=True)
    rates = RatesSerializer()
    timeline = EventSerializer(many=True)
    processes = ProcessSerializer(many=True)
    spark = SparkSerializer()


class ControllersSerializer(serializers.Serializer):
    as_of = serializers.CharField(allow_null=True)
    items = ControllerSerializer(many=True)


class GroupsSerializer(serializers.Serializer):
    as_of = serializers.CharField(allow_null=True)
    items = GroupSerializer(many=True)


class ReplicasSerializer(serializers.Serializer):
    as_of = serializers.CharField(allow_null=True)
    items = ReplicaSerializer(many=True)


class CandidateSerializer(serializers.Serializer):
    broker_id = serializers.IntegerField(source="id")
    role = serializers.CharField()
    eligible = serializers.BooleanField(allow_null=True)
    reason = serializers.CharField(source="eligibility_reason", allow_null=True)
    gap_bytes = Int64Field()


class EligibilitySerializer(serializers.Serializer):
    cluster = serializers.CharField()
    group = serializers.CharField(source="name")
    master_id = serializers.IntegerField(allow_null=True)
    master_epoch = Int64Field()
    candidates = CandidateSerializer(many=True, source="replicas")


class EligibilitiesSerializer(serializers.Serializer):
    as_of = serializers.CharField(allow_null=True)
    items = EligibilitySerializer(many=True)


class ElectionRequestSerializer(serializers.Serializer):
    cluster = serializers.CharField()
    group = serializers.CharField()
    broker_id = serializers.IntegerField()


_PARTS = ("controllers", "groups", "rates", "timeline", "processes", "spark")


def cluster_document(present: snapshot.Snapshot) -> dict[str, Any]:
    """The snapshot as REST and the websocket show it."""
    document = {
        "seq": present.seq,
        "as_of": present.as_of,
        "freshness": str(present.freshness),
        "verdict": present.verdict,
        **{name: getattr(present.facts, name) for name in _PARTS},
    }
    return dict(ClusterSerializer(document).data)


class ClusterView(APIView):
    read_permission = "cluster.read"

    @reads("cluster", "The whole snapshot", ClusterSerializer)
    def get(self, request: Request) -> Response:
        return Response(cluster_document(snapshot.current()))


class ControllersView(APIView):
    read_permission = "cluster.read"

    @reads("controllers", "The controllers", ControllersSerializer)
    def get(self, request: Request) -> Response:
        present = snapshot.current()
        return Response(ControllersSerializer({"as_of": present.as_of, "items": present.facts.controllers}).data)


class GroupsView(APIView):
    read_permission = "cluster.read"

    @reads("groups", "The broker groups", GroupsSerializer)
    def get(self, request: Request) -> Response:
        present = snapshot.current()
        return Response(GroupsSerializer({"as_of": present.as_of, "items": present.facts.groups}).data)


class GroupView(APIView):
    read_permission = "cluster.read"

    @reads("group", "One broker group", GroupSerializer)
    def get(self, request: Request, cluster: str, group: str) -> Response:
        return Response(GroupSerializer(snapshot.current().group(cluster, group)).data)


class ReplicasView(APIView):
    read_permission = "cluster.read"

    @reads("replicas", "The replicas of a broker group", ReplicasSerializer)
    def get(self, request: Request, cluster: str, group: str) -> Response:
        present = snapshot.current()
        replicas = present.group(cluster, group).replicas
        return Response(ReplicasSerializer({"as_of": present.as_of, "items": replicas}).data)


class ElectionsView(APIView):
    read_permission = "cluster.read"

    @reads(
        "eligibility",
        "Who may become master, and why",
        EligibilitiesSerializer,
        [OpenApiParameter("cluster", OpenApiTypes.STR), OpenApiParameter("group", OpenApiTypes.STR)],
    )
    def get(self, request: Request) -> Response:
        present = snapshot.current()
        wanted_cluster, wanted_group = request.query_params.get("cluster"), request.query_params.get("group")
        groups = [
            group
            for group in present.facts.groups
            if wanted_cluster in (None, group.cluster) and wanted_group in (None, group.name)
        ]
        return Response(EligibilitiesSerializer({"as_of": present.as_of, "items": groups}).data)

    @changes("elect", "Make a replica the master", ElectionRequestSerializer)
    def post(self, request: Request) -> Response:
        return change(request, "election.elect", body_of(request, ElectionRequestSerializer))
