"""Tokens, users and their rights to read, over REST."""

from __future__ import annotations

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from remoting.names import MAX_RETRY_TOPIC_LENGTH
from webapp.accounts import read_rights
from webapp.accounts.models import ApiToken, ReadRight, User
from webapp.accounts.permissions import PERMISSIONS, ROLE_NAMES, actor_of, given_role, role_of
from webapp.accounts.read_rights import ALLOW, DENY, ROLES
from webapp.api.base import LIST_PARAMETERS, changing, listed, page_by_time, reads
from webapp.errors import NotFound
from webapp.rules import Rules


class TokenSerializer(serializers.ModelSerializer):
    owner = serializers.CharField(source="owner.username")
    scopes = serializers.ListField(child=serializers.CharField())

    class Meta:
        model = ApiToken
        fields = ("id", "name", "owner", "prefix", "scopes", "created_at", "expires_at", "revoked_at", "last_used_at")


class CreateTokenSerializer(serializers.Serializer):
    name = serializers.CharField()
    scopes = serializers.ListField(child=serializers.ChoiceField(choices=list(PERMISSIONS)))
    expires_in_days = serializers.IntegerField(required=False, allow_null=True)


class UserSerializer(serializers.ModelSerializer):
    role = serializers.SerializerMethodField()

    class Meta:
        model = User
        fields = ("id", "username", "role", "is_active", "time_zone", "last_login", "date_joined")

    @extend_schema_field(serializers.ChoiceField(choices=["none", *ROLE_NAMES]))
    def get_role(self, user: User) -> str:
        return given_role(user).label


class MeSerializer(serializers.Serializer):
    username = serializers.CharField()
    role = serializers.CharField()
    permissions = serializers.ListField(child=serializers.CharField())
    token = serializers.CharField(allow_null=True, help_text="Prefix of the token in use.")


class CreateUserSerializer(serializers.Serializer):
    username = serializers.CharField()
    role = serializers.ChoiceField(choices=ROLE_NAMES)
    password = serializers.CharField(write_only=True, trim_whitespace=False)


class ChangeUserSerializer(serializers.Serializer):
    role = serializers.ChoiceField(choices=ROLE_NAMES, required=False)
    active = serializers.BooleanField(required=False)


class ReadRightSerializer(serializers.ModelSerializer):
    role = serializers.SerializerMethodField(help_text="null: the user's own.")
    user = serializers.CharField(source="user.username", allow_null=True, default=None)
    decision = serializers.ChoiceField(choices=(ALLOW, DENY))

    class Meta:
        model = ReadRight
        fields = ("id", "topics", "role", "user", "decision")

    @extend_schema_field(serializers.ChoiceField(choices=ROLES, allow_null=True))
    def get_role(self, right: ReadRight) -> str | None:
        return right.role or None


class PutReadRightSerializer(serializers.Serializer):
    topics = serializers.CharField(help_text="A topic's name, or the beginning of names and a *.")
    role = serializers.ChoiceField(choices=ROLES, required=False, help_text="Give either role or user.")
    user = serializers.CharField(required=False)
    decision = serializers.ChoiceField(choices=(ALLOW, DENY))


class ReadRightsSerializer(serializers.Serializer):
    items = ReadRightSerializer(many=True)


class ReadVerdictSerializer(serializers.Serializer):
    user = serializers.CharField()
    topic = serializers.CharField()
    allowed = serializers.BooleanField()
    reason = serializers.CharField()


class UsersSerializer(serializers.Serializer):
    items = UserSerializer(many=True)


TokenPage = listed("TokenPage", TokenSerializer)


class TokensView(APIView):
    read_permission = "tokens.write"

    @reads("tokens", "One's own tokens; all for who manages users", TokenPage, LIST_PARAMETERS)
    def get(self, request: Request) -> Response:
        rows = ApiToken.objects.select_related("owner")
        if not actor_of(request).may("users.write"):
            rows = rows.filter(owner=request.user)
        found, following = page_by_time(request, rows)
        return Response({"items": TokenSerializer(found, many=True).data, "next": following})

    post = changing(
        "token_create",
        "Make a token; `once.token` is shown in this answer only",
        "token.create",
        CreateTokenSerializer,
    )


class TokenView(APIView):
    delete = changing("token_revoke", "Revoke a token", "token.revoke")


class MeView(APIView):
    @reads("me", "Who one is and what one may do", MeSerializer)
    def get(self, request: Request) -> Response:
        actor = actor_of(request)
        assert isinstance(actor.user, User)
        return Response(
            {
                "username": actor.name,
                "role": role_of(actor.user).label,
                "permissions": sorted(actor.permissions),
                "token": actor.token.prefix if actor.token else None,
            }
        )


class UsersView(APIView):
    read_permission = "users.write"

    @reads("users", "The users", UsersSerializer)
    def get(self, request: Request) -> Response:
        users = User.objects.order_by("username").prefetch_related("groups")
        return Response({"items": UserSerializer(users, many=True).data})

    post = changing("user_create", "Create a user", "user.create", CreateUserSerializer)


class UserView(APIView):
    patch = changing("user_change", "Change a user's role, or lock the user out", "user.change", ChangeUserSerializer)


class ReadRightsView(APIView):
    read_permission = "users.write"

    @reads("read_rights", "Who reads what messages say", ReadRightsSerializer)
    def get(self, request: Request) -> Response:
        return Response({"items": ReadRightSerializer(read_rights.all_rights(), many=True).data})

    put = changing(
        "read_right_put",
        "Give a role or a user the right to read what messages of topics say, or deny it; one for the same is replaced",
        "read-right.put",
        PutReadRightSerializer,
    )


class ReadRightView(APIView):
    delete = changing("read_right_remove", "Remove a right to read", "read-right.remove")


class ExplainReadingView(APIView):
    read_permission = "users.write"

    @reads(
        "read_rights_explain",
        "Whether somebody reads what messages of a topic say, and why",
        ReadVerdictSerializer,
        [OpenApiParameter(name, OpenApiTypes.STR, required=True) for name in ("user", "topic")],
    )
    def get(self, request: Request) -> Response:
        rules = Rules(request.query_params)
        name, topic = (
            rules.text("user", least=1, most=150),
            rules.name("topic", most=MAX_RETRY_TOPIC_LENGTH, what="topic"),
        )
        rules.finish()
        user = User.objects.filter(username=name).first()
        if user is None:
            raise NotFound(f"There is no user {name}.", code="user-not-found")
        verdict = read_rights.explain(user, topic)
        return Response({"user": name, "topic": topic, "allowed": verdict.allowed, "reason": verdict.reason})
