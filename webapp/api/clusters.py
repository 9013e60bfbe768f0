"""The cluster over REST: the snapshot whole and in parts, and elections."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from remoting.facts.broker_state import RetentionState
from remoting.facts.snapshot import (
    ClusterSnapshot,
    Controller,
    DelayLevel,
    Delays,
    Group,
    KeyIndex,
    MissingCopy,
    Process,
    Quorum,
    Rates,
    Replica,
    Scrub,
    Timers,
    Transactions,
    Verdict,
)
from remoting.facts.tier_state import TierState
from remoting.facts.words import GroupKind, Health, TierCondition
from webapp import snapshot
from webapp.api.base import Int64Field, asked, changing, observed, reads, showing
from webapp.api.facts import FactSerializer, told
from webapp.clusters.changes import eligibility
from webapp.clusters.switching import switched_groups
from webapp.wishes import Wish


class VerdictSerializer(FactSerializer):
    fact = Verdict
    status = serializers.ChoiceField(choices=[each.value for each in Health])


class ControllerSerializer(FactSerializer):
    fact = Controller
    role = serializers.ChoiceField(choices=["leader", "follower", "candidate", "unreachable"])
    help_texts = told(member="voter, learner, leaving or unknown.")


class ReplicaSerializer(FactSerializer):
    fact = Replica
    role = serializers.ChoiceField(choices=["master", "replica", "fenced", "unreachable"])
    help_texts = told(
        process="What the appliance's supervisor calls its process; null when it runs elsewhere.",
        pid="That process's id; null while it is down.",
        learner="Copies the log, but never counts for an acknowledgement and never leads.",
        gap_bytes="What it had not acknowledged of its master's log, by the master's own count; null when that does not "
        "answer, or the replica is not connected to it.",
        last_heartbeat_ms="Milliseconds since the last heartbeat.",
        absence="What the controllers say of one that is not alive.",
        controllers_error="What is wrong between it and its controllers, by its own word; null when nothing is.",
        stale_view="What is wrong with what the controllers tell it of its role; null when nothing is.",
        cut_off_since_ms="Milliseconds since 1970; since when the one or the other stands.",
        claimed_by="Where another process runs under its identity, on a copy of its data directory, and is refused.",
        scrub="Null when it does not answer.",
        retention="Null when it does not answer.",
    )


class RetentionSerializer(FactSerializer):
    """For how long files of a replica's log stay; counts of what went are since that replica started."""

    fact = RetentionState
    help_texts = told(
        reserved_ms="All files stay for so long.",
        kept_files="Files that are older, and stay since topics want messages in them.",
        kept_topic="For which topic the oldest of them stays.",
        overruled_files="Files that went as the disk was full, although topics wanted messages in them.",
        overruled_topic="Which topic wanted the last of them.",
        overruled_ms="Milliseconds since 1970; when that went.",
    )


class ScrubSerializer(FactSerializer):
    """What looking for damage in a replica's files found; counts are since that replica started."""

    fact = Scrub
    help_texts = told(
        percent="Of the present round over all data; 100 when it has ended, null before the first.",
        found="Ranges of the log that were damaged.",
        repaired="Those that were written again with another replica's bytes.",
        units_repaired="Units of consume queues that did not fit the log, and were written again.",
        index_repaired="How often files of the index of keys were made again.",
        last_damage_ms="Milliseconds since 1970.",
        unrepaired="What is damaged now, the first twenty of them.",
    )


class MissingReplicaSerializer(FactSerializer):
    fact = MissingCopy
    help_texts = told(stalls="It is still required: sends wait for it.", since_ms="Milliseconds since 1970.")


class QuorumSerializer(FactSerializer):
    """What an acknowledgement means at the moment, by the master's own word."""

    fact = Quorum
    kind = serializers.ChoiceField(choices=["controllers", "acting-master", "fixed"])
    help_texts = told(
        copies="Copies that an acknowledged message has now.",
        wanted_copies="Copies it would have if nobody were missing.",
        refused="Too few replicas are in sync: messages are refused.",
    )


class TransactionsSerializer(FactSerializer):
    """Transactions of a broker group, by its master's word; totals are since that master started."""

    fact = Transactions
    help_texts = told(
        oldest_since_ms="Milliseconds since 1970; null when none is open.",
        oldest_checks="How often the oldest was checked.",
        max_checks="After so many checks a transaction is given up.",
        overdue="The oldest was checked, and is not decided all the same.",
        given_up="Kept in TRANS_CHECK_MAX_TIME_TOPIC.",
    )


class DelayLevelSerializer(FactSerializer):
    fact = DelayLevel
    help_texts = told(late_ms="How late the last message of the level was delivered.")


class DelaysSerializer(FactSerializer):
    """Delayed messages and those that consumers gave back; totals are since the master started."""

    fact = Delays
    help_texts = told(
        last_late_ms="How late the last delivery was; null before the first.",
        last_ago_ms="How long ago that was.",
        overdue_ms="For how long a message that still waits could have been delivered.",
        late="A delivery of the last minutes was some seconds late, or one is due that long.",
        failures="Attempts that were repeated.",
        lost="Dropped: their topic or group was removed while they waited, or their data is gone.",
        returned="Messages that consumers gave back.",
    )


class IndexSerializer(FactSerializer):
    """The index of keys, which is made behind what is stored."""

    fact = KeyIndex
    help_texts = told(behind="It lacks more than a burst leaves.")


class GroupTimersSerializer(FactSerializer):
    """Messages that wait for a moment of their own; totals are since the master started. /timers has the rest."""

    fact = Timers
    hidden = ("topics", "late_bounds_ms", "late_counts", "set_aside")
    help_texts = told(
        waiting="Delete markers among them.",
        near="What the master has in memory, since it is due soon.",
        aside="What cannot be read or stored now, and is tried again.",
        overdue_ms="For how long the first could have been delivered.",
        last_late_ms="How late the last delivery was; null before the first.",
        rolled="Appended again on their way.",
        moved="Of these, before their time, since their files of the log were to go.",
        recalled="Were due and had been recalled.",
        failures="Attempts that were repeated.",
        lost="Dropped: their topic or group was removed while they waited, or they could not be read for long.",
        left="Parts of what is late that newer ones overtook; each waits beside these.",
        uncounted="Entries that the topics' counts lack so far.",
        in_tier="Of those that wait, what is in the object store.",
        tier_trouble="Why timers do not go there or do not come back now; empty when all is well.",
    )


class TierSerializer(FactSerializer):
    """The tier of a broker group, by its master's word; what was uploaded and read is counted since that started."""

    fact = TierState
    condition = serializers.ChoiceField(choices=[each.value for each in TierCondition])
    help_texts = told(
        trouble="Why nothing is uploaded, and what to do; null when all is well.",
        trouble_since_ms="Milliseconds since 1970.",
        waiting_messages="Not uploaded yet.",
        waiting_log_bytes="The log from the first of them on.",
        gone_log_bytes="Of that, what went with its files because the disk was full.",
        oldest_waiting_ms="For how long the first of them waits.",
        bytes="Of all objects of segments.",
        missing_messages="Between segments; their files went before they were uploaded.",
        expiring_objects="Objects that nobody names any more, and that are removed soon.",
        reserved_time_ms="For topics that say nothing else; 0 = for ever.",
    )


class GroupSerializer(FactSerializer):
    fact = Group
    kind = serializers.ChoiceField(
        choices=[each.value for each in GroupKind],
        help_text="Who decides the roles: the controllers elect, or they are fixed by settings.",
    )
    help_texts = told(
        weaknesses="What the brokers' settings give up of the promise.",
        transactions="Null when the master does not answer.",
        tier="Null when the master does not answer, and without a tier.",
    )


class RatesSerializer(FactSerializer):
    fact = Rates
    hidden = ("history",)


class ProcessSerializer(FactSerializer):
    fact = Process
    hidden = ("kind", "address", "last_exit")


class ClusterSerializer(FactSerializer):
    """The collector's last snapshot; the websocket `/ws/snapshot` sends the same as it changes."""

    fact = ClusterSnapshot
    hidden = ("version", "topics", "consumer_groups", "client_times")
    as_of = serializers.CharField(allow_null=True)
    freshness = serializers.ChoiceField(choices=[each.value for each in snapshot.Freshness])


class HealthSerializer(serializers.Serializer):
    status = serializers.ChoiceField(choices=[each.value for each in Health])


class CandidateSerializer(serializers.Serializer):
    broker_id = serializers.IntegerField(source="id")
    role = serializers.CharField()
    eligible = serializers.SerializerMethodField()
    reason = serializers.SerializerMethodField()
    gap_bytes = Int64Field()

    def get_eligible(self, replica: Replica) -> bool:
        return eligibility(replica)[0]

    def get_reason(self, replica: Replica) -> str:
        return eligibility(replica)[1]


class EligibilitySerializer(serializers.Serializer):
    cluster = serializers.CharField()
    group = serializers.CharField(source="name")
    master_id = serializers.IntegerField(allow_null=True)
    master_epoch = Int64Field()
    candidates = CandidateSerializer(many=True, source="replicas")


class ElectionRequestSerializer(serializers.Serializer):
    cluster = serializers.CharField()
    group = serializers.CharField()
    broker_id = serializers.IntegerField()


ControllersSerializer = observed("Controllers", ControllerSerializer)
GroupsSerializer = observed("Groups", GroupSerializer)
ReplicasSerializer = observed("Replicas", ReplicaSerializer)
EligibilitiesSerializer = observed("Eligibilities", EligibilitySerializer)


def cluster_document(present: snapshot.Snapshot) -> dict[str, Any]:
    """The snapshot as REST and the websocket show it; its age counts for the verdict."""
    document = {
        **{each.name: getattr(present.facts, each.name) for each in fields(ClusterSnapshot)},
        "as_of": present.as_of,
        "freshness": str(present.freshness),
        "verdict": present.verdict,
    }
    return dict(ClusterSerializer(document).data)


class ClusterView(APIView):
    read_permission = "cluster.read"

    @reads("cluster", "The whole snapshot", ClusterSerializer)
    def get(self, request: Request) -> Response:
        return Response(cluster_document(snapshot.current()))


class HealthView(APIView):
    # without login, so it says one word and nothing about the cluster
    authentication_classes = ()
    permission_classes = (AllowAny,)

    @extend_schema(operation_id="health", summary="Whether the cluster works", responses=HealthSerializer, auth=[])
    def get(self, request: Request) -> Response:
        return Response({"status": snapshot.current().verdict.status})


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

    get = showing(
        "group", "One broker group", GroupSerializer, lambda cluster, group: snapshot.current().group(cluster, group)
    )


class RetireView(APIView):
    post = changing("retire", "Retire a broker group: nobody sends there, and nothing waits", "broker-group.retire")


class DownView(APIView):
    post = changing("switch-off", "Switch a broker group off: its brokers stop, and stay off", "broker-group.down")


class UpView(APIView):
    post = changing("switch-on", "Switch a broker group on again", "broker-group.up")


class MountView(APIView):
    post = changing("mount", "Serve a broker group that is off read-only from its tier", "broker-group.mount")


class UnmountView(APIView):
    post = changing("unmount", "End that, and give the group's lease back", "broker-group.unmount")


class SwitchedGroupSerializer(serializers.Serializer):
    cluster = serializers.CharField(help_text="Empty when what is wanted cannot be read.")
    group = serializers.CharField()
    wish = serializers.ChoiceField(
        choices=["", *(each.value for each in Wish)],
        help_text="down, mounted, released: off after a mount was given back, or first: the broker that has a log starts alone.",
    )
    process = serializers.CharField(help_text="Of its mount; empty without one.")
    state = serializers.CharField(help_text="That process's.")
    why = serializers.CharField(help_text="What that process waits for or lacks, or why the wish cannot be read.")


SwitchedGroupsSerializer = observed("SwitchedGroups", SwitchedGroupSerializer)


class SwitchedGroupsView(APIView):
    read_permission = "cluster.read"

    @reads("group-wishes", "The broker groups that do not run their own brokers", SwitchedGroupsSerializer)
    def get(self, request: Request) -> Response:
        present = snapshot.current()
        items = switched_groups(present.facts.processes)
        return Response(SwitchedGroupsSerializer({"as_of": present.as_of, "items": items}).data)


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
        asked("cluster", "group"),
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

    post = changing("elect", "Make a replica the master", "election.elect", ElectionRequestSerializer)
