"""Messages over REST: browsing a queue, one message, sending a test message."""

from __future__ import annotations

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from webapp import gateway
from webapp.accounts.permissions import actor_of
from webapp.api.base import Int64Field, changing, reads
from webapp.messages import browse
from webapp.messages.reading import shown_to
from webapp.messages.types import DECISIONS


class MessageSerializer(serializers.Serializer):
    group = serializers.CharField()
    queue_id = serializers.IntegerField(source="record.queue_id")
    offset = Int64Field()
    physical_offset = Int64Field(source="record.physical_offset")
    message_id = serializers.CharField()
    offset_message_id = serializers.CharField()
    born_at = serializers.DateTimeField()
    stored_at = serializers.DateTimeField()
    born_host = serializers.CharField()
    store_host = serializers.CharField()
    keys = serializers.CharField(allow_blank=True)
    tag = serializers.CharField(allow_blank=True)
    reconsume_times = serializers.IntegerField(source="record.reconsume_times")
    properties = serializers.DictField(child=serializers.CharField())
    body_hidden = serializers.BooleanField(
        source="is_hidden",
        help_text="What it says is not in this answer: that needs messages.bodies, and a right to read the topic.",
    )
    body_bytes = serializers.IntegerField(source="body.stored_bytes", help_text="As stored.")
    body_compression = serializers.CharField(source="body.compression")
    body_truncated = serializers.BooleanField(
        source="body.truncated", help_text="Only its beginning is in this answer."
    )
    body_text = serializers.CharField(
        source="body.utf8", allow_null=True, help_text="null when the body is not UTF-8 text."
    )
    body_base64 = serializers.CharField(source="body.base64")
    crc_ok = serializers.BooleanField(source="intact")


class BrowseSerializer(serializers.Serializer):
    items = MessageSerializer(many=True)
    next_offset = Int64Field(help_text="Ask again from here.")
    min_offset = Int64Field()
    max_offset = Int64Field()
    complete = serializers.BooleanField(help_text="Nothing is stored after these.")
    scanned = serializers.IntegerField()


class SendSerializer(serializers.Serializer):
    body = serializers.CharField(required=False, trim_whitespace=False, help_text="Text; or give body_base64.")
    body_base64 = serializers.CharField(required=False)
    keys = serializers.CharField(required=False, allow_blank=True)
    tag = serializers.CharField(required=False, allow_blank=True)
    properties = serializers.DictField(child=serializers.CharField(), required=False)
    group = serializers.CharField(required=False, allow_null=True, help_text="Broker group; any if absent.")
    message_group = serializers.CharField(
        required=False, allow_blank=True, help_text="A FIFO topic needs it: within one the order is kept."
    )
    delay_level = serializers.IntegerField(
        required=False, help_text="A DELAY topic needs it, or deliver_at: 1 is the first of the brokers' levels."
    )
    deliver_at = serializers.CharField(
        required=False,
        allow_blank=True,
        help_text="When a message of a DELAY topic is delivered: RFC 3339 or milliseconds since 1970.",
    )
    decision = serializers.ChoiceField(
        choices=list(DECISIONS), required=False, help_text="A TRANSACTION topic needs it."
    )


class MessagesView(APIView):
    read_permission = "messages.read"

    @reads(
        "messages",
        "Browse a queue by offset or time",
        BrowseSerializer,
        [
            OpenApiParameter("group", OpenApiTypes.STR, required=True, description="Broker group."),
            OpenApiParameter("queue_id", OpenApiTypes.INT, description="0 if absent."),
            OpenApiParameter("offset", OpenApiTypes.STR, description="First queue offset; 0 if absent."),
            OpenApiParameter(
                "time", OpenApiTypes.STR, description="Instead of offset: RFC 3339 or milliseconds since 1970."
            ),
            OpenApiParameter("count", OpenApiTypes.INT, description=f"1 to {gateway.MAX_BROWSE}."),
        ],
    )
    def get(self, request: Request, name: str) -> Response:
        browsed, messages = browse.ask(browse.read_question(name, request.query_params))
        document = {
            "items": shown_to(actor_of(request), messages),
            "next_offset": browsed.next_offset,
            "min_offset": browsed.min_offset,
            "max_offset": browsed.max_offset,
            "complete": browsed.next_offset >= browsed.max_offset,
            "scanned": len(messages),
        }
        return Response(BrowseSerializer(document).data)

    post = changing("message_send", "Send a test message", "message.send", SendSerializer, {"name": "topic"})


class FoundSerializer(serializers.Serializer):
    items = MessageSerializer(many=True, help_text="The newest first.")


class MessagesByKeyView(APIView):
    read_permission = "messages.read"

    @reads(
        "messages_by_key",
        "Find messages by a key or by their unique id",
        FoundSerializer,
        [
            OpenApiParameter("key", OpenApiTypes.STR, required=True, description="One word of KEYS, or a UNIQ_KEY."),
            OpenApiParameter("count", OpenApiTypes.INT, description=f"1 to {gateway.MAX_BROWSE}."),
        ],
    )
    def get(self, request: Request, name: str) -> Response:
        found = shown_to(actor_of(request), browse.by_key(name, request.query_params))
        return Response(FoundSerializer({"items": found}).data)


class MessageView(APIView):
    read_permission = "messages.read"

    @reads("message", "One message", MessageSerializer)
    def get(self, request: Request, name: str, group: str, queue_id: int, offset: int) -> Response:
        (found,) = shown_to(actor_of(request), [browse.one(name, group, queue_id, offset)])
        return Response(MessageSerializer(found).data)
