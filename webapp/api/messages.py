"""Messages over REST: browsing a queue, one message, sending a test message."""

from __future__ import annotations

import base64
from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from webapp import gateway
from webapp.api.base import Int64Field, body_of, change, changes, reads
from webapp.messages import browse


class MessageSerializer(serializers.Serializer):
    group = serializers.CharField()
    queue_id = serializers.IntegerField()
    offset = Int64Field()
    physical_offset = Int64Field()
    message_id = serializers.CharField()
    offset_message_id = serializers.CharField()
    born_at = serializers.DateTimeField()
    stored_at = serializers.DateTimeField()
    born_host = serializers.CharField()
    store_host = serializers.CharField()
    keys = serializers.CharField(allow_blank=True)
    tag = serializers.CharField(allow_blank=True)
    reconsume_times = serializers.IntegerField()
    properties = serializers.DictField(child=serializers.CharField())
    body_bytes = serializers.IntegerField(help_text="As stored.")
    body_compression = serializers.CharField()
    body_truncated = serializers.BooleanField(help_text="Only its beginning is in this answer.")
    body_text = serializers.CharField(allow_null=True, help_text="null when the body is not UTF-8 text.")
    body_base64 = serializers.CharField()
    crc_ok = serializers.BooleanField()


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


def _document(message: browse.Message) -> dict[str, Any]:
    record, body = message.record, message.body
    return {
        "group": message.group,
        "queue_id": record.queue_id,
        "offset": record.queue_offset,
        "physical_offset": record.physical_offset,
        "message_id": message.message_id,
        "offset_message_id": message.offset_message_id,
        "born_at": message.born_at,
        "stored_at": message.stored_at,
        "born_host": message.born_host,
        "store_host": message.store_host,
        "keys": message.keys,
        "tag": message.tag,
        "reconsume_times": record.reconsume_times,
        "properties": message.properties,
        "body_bytes": body.stored_bytes,
        "body_compression": body.compression,
        "body_truncated": body.truncated,
        "body_text": body.text() if body.encoding == "utf-8" else None,
        "body_base64": base64.b64encode(body.content).decode("ascii"),
        "crc_ok": message.intact,
    }


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
            "items": [_document(message) for message in messages],
            "next_offset": browsed.next_offset,
            "min_offset": browsed.min_offset,
            "max_offset": browsed.max_offset,
            "complete": browsed.next_offset >= browsed.max_offset,
            "scanned": len(messages),
        }
        return Response(BrowseSerializer(document).data)

    @changes("message_send", "Send a test message", SendSerializer)
    def post(self, request: Request, name: str) -> Response:
        return change(request, "message.send", {**body_of(request, SendSerializer), "topic": name})


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
        found = browse.by_key(name, request.query_params)
        return Response(FoundSerializer({"items": [_document(message) for message in found]}).data)


class MessageView(APIView):
    read_permission = "messages.read"

    @reads("message", "One message", MessageSerializer)
    def get(self, request: Request, name: str, group: str, queue_id: int, offset: int) -> Response:
        return Response(MessageSerializer(_document(browse.one(name, group, queue_id, offset))).data)
