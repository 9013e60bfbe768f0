"""Who is connected, for tools: codes 203 (a consumer group), 204 (a producer group), 328 (all producers)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from brokerd.filters.message_filter import split_tags
from brokerd.members.consumer_groups import ClientInfo, Subscription
from brokerd.members.registry import ClientRegistry
from brokerd.processors import fields
from brokerd.processors.bodies import encode
from remoting import codes
from remoting.errors import RequestError
from remoting.frame import Command
from remoting.java_hash import java_hash
from remoting.transport.connection import RemotingConnection


@dataclass(frozen=True, slots=True)
class ConnectionProcessor:
    clients: ClientRegistry

    def consumers(self, connection: RemotingConnection, request: Command) -> None:
        """Code 203: the members of a group and what they want; CONSUMER_NOT_ONLINE when there are none."""
        name = fields.text(request.ext, "consumerGroup")
        group = self.clients.consumer_group(name)
        if group is None:
            raise RequestError(codes.CONSUMER_NOT_ONLINE, f"no consumer of {name} is connected to this broker")
        body = {
            "connectionSet": [connection_json(each) for each in self.clients.members(name)],
            "consumeFromWhere": group.consume_from,
            "consumeType": group.consume_type,
            "messageModel": group.message_model,
            "subscriptionTable": {topic: subscription_json(each) for topic, each in group.subscriptions.items()},
        }
        connection.respond(request, body=encode(body))

    def producers(self, connection: RemotingConnection, request: Command) -> None:
        """Code 204; SYSTEM_ERROR when there are none."""
        name = fields.text(request.ext, "producerGroup")
        found = self.clients.producers(name)
        if not found:
            raise RequestError(codes.SYSTEM_ERROR, f"no producer of {name} is connected to this broker")
        connection.respond(request, body=encode({"connectionSet": [connection_json(each) for each in found]}))

    def all_producers(self, connection: RemotingConnection, request: Command) -> None:
        """Code 328."""
        data = {
            name: [
                {
                    "clientId": each.info.client_id,
                    "language": language_of(each.info),
                    "lastUpdateTimestamp": self.clients.heard_at_ms(each),
                    "remoteIP": each.info.address,
                    "version": version_of(each.info),
                }
                for each in members
            ]
            for name, members in self.clients.producer_groups()
        }
        connection.respond(request, body=encode({"data": data}))


def connection_json(info: ClientInfo) -> dict[str, Any]:
    """A client as the protocol writes it."""
    return {
        "clientAddr": info.address,
        "clientId": info.client_id,
        "language": language_of(info),
        "version": version_of(info),
    }


def subscription_json(subscription: Subscription) -> dict[str, Any]:
    """A subscription as the protocol writes it, with the hashes that the broker compares."""
    tags = sorted(split_tags(subscription.expression)) if subscription.expression_type == "TAG" else []
    return {
        "classFilterMode": False,
        "codeSet": [java_hash(tag) for tag in tags],
        "expressionType": subscription.expression_type,
        "subString": subscription.expression,
        "subVersion": subscription.version,
        "tagsSet": tags,
        "topic": subscription.topic,
    }


def language_of(info: ClientInfo) -> str:
    """A name that readers of the protocol know."""
    return info.language if info.language in codes.LANGUAGES else "OTHER"


def version_of(info: ClientInfo) -> int:
    """The place of the client's release in Apache RocketMQ's list of releases (`MQVersion`), which tools write as its name.

    gRPC clients tell text in its stead; like there, they count as of the release that the broker itself answers as.
    """
    return int(info.version) if info.version.isdecimal() and len(info.version) < 10 else codes.VERSION
