"""Users of the cluster's clients over REST: their permissions, and what these decide."""

from __future__ import annotations

from operator import itemgetter

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from remoting.access.model import ACTIONS, TYPES
from webapp.access.changes import DECISIONS, POLICIES, STATUSES, USER_TYPES
from webapp.access.overview import client_users, explain, one_of
from webapp.api.base import LIST_PARAMETERS, changing, listed, page_by_name, reads, showing


class PermissionSerializer(serializers.Serializer):
    resource = serializers.CharField(
        help_text="Topic:NAME, Group:NAME or Cluster:NAME; a * may end the name; * is all."
    )
    actions = serializers.ListField(child=serializers.ChoiceField(choices=ACTIONS))
    sources = serializers.ListField(
        child=serializers.CharField(), required=False, help_text="IP addresses or ranges; none = every address."
    )
    decision = serializers.ChoiceField(choices=DECISIONS, required=False, help_text="Allow if absent.")
    policy = serializers.ChoiceField(
        choices=POLICIES, required=False, help_text="Default entries count when no Custom one fits."
    )


class ClientUserSerializer(serializers.Serializer):
    name = serializers.CharField()
    type = serializers.ChoiceField(choices=USER_TYPES)
    status = serializers.ChoiceField(choices=STATUSES)
    permissions = PermissionSerializer(many=True)


class ChangeClientUserSerializer(serializers.Serializer):
    password = serializers.CharField(
        help_text="The secret key of its clients; it is never shown again.", trim_whitespace=False
    )
    type = serializers.ChoiceField(choices=USER_TYPES, required=False)
    status = serializers.ChoiceField(choices=STATUSES, required=False)


class CreateClientUserSerializer(ChangeClientUserSerializer):
    name = serializers.CharField(help_text="The access key of its clients.")


class RemovePermissionSerializer(serializers.Serializer):
    resource = serializers.CharField()
    policy = serializers.ChoiceField(choices=POLICIES, required=False)


class DecisionSerializer(serializers.Serializer):
    user = serializers.CharField()
    type = serializers.ChoiceField(choices=TYPES)
    resource = serializers.CharField()
    action = serializers.ChoiceField(choices=ACTIONS)
    source = serializers.CharField()
    allowed = serializers.BooleanField()
    reason = serializers.CharField()
    entry = PermissionSerializer(allow_null=True, help_text="The entry that decides; null when none does.")


ClientUserPage = listed("ClientUserPage", ClientUserSerializer)


class ClientUsersView(APIView):
    read_permission = "access.read"

    @reads(
        "client_users", "The users of the cluster's clients, with their permissions", ClientUserPage, LIST_PARAMETERS
    )
    def get(self, request: Request) -> Response:
        items, following = page_by_name(request, client_users(), itemgetter("name"))
        return Response(ClientUserPage({"items": items, "next": following}).data)

    post = changing("client_user_create", "Create a client user", "client-user.create", CreateClientUserSerializer)


class ClientUserView(APIView):
    read_permission = "access.read"

    get = showing(
        "client_user",
        "One client user with its permissions",
        ClientUserSerializer,
        lambda name: one_of(client_users(), name),
    )
    patch = changing(
        "client_user_change",
        "Change a client user; what is absent stays",
        "client-user.update",
        ChangeClientUserSerializer,
    )
    delete = changing("client_user_delete", "Delete a client user and its permissions", "client-user.delete")


class PermissionsView(APIView):
    read_permission = "access.read"

    put = changing(
        "permission_put",
        "Add a permission, or change the one for the same resource",
        "permission.put",
        PermissionSerializer,
    )


class RemovePermissionView(APIView):
    post = changing("permission_remove", "Remove a permission", "permission.remove", RemovePermissionSerializer)


class ExplainView(APIView):
    read_permission = "access.read"

    @reads(
        "access_explain",
        "What the permissions decide, and why",
        DecisionSerializer,
        [
            OpenApiParameter("user", OpenApiTypes.STR, required=True),
            OpenApiParameter("type", OpenApiTypes.STR, enum=TYPES),
            OpenApiParameter("resource", OpenApiTypes.STR, required=True, description="The name alone."),
            OpenApiParameter("action", OpenApiTypes.STR, enum=ACTIONS[1:]),
            OpenApiParameter("source", OpenApiTypes.STR, description="The client's IP address; 127.0.0.1 if absent."),
        ],
    )
    def get(self, request: Request) -> Response:
        return Response(DecisionSerializer(explain(client_users(), request.query_params)).data)
