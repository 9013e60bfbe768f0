"""Heartbeats and membership: codes 34, 35, 38, 46, and the notice 40 to members of a group that changed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from brokerd.consuming.read_place import PullSettings
from brokerd.filters.message_filter import compile_filter
from brokerd.members.consumer_groups import (
    CONSUME_FROM,
    CONSUME_TYPES,
    MAX_SUBSCRIPTIONS,
    MESSAGE_MODELS,
    ClientInfo,
    ConsumerData,
    Subscription,
)
from brokerd.members.registry import MAX_GROUPS_OF_CLIENT, ClientRegistry
from brokerd.metadata.groups import ensure_group
from brokerd.metadata.service import MetadataService
from brokerd.processors import bodies, fields
from brokerd.processors.bodies import encode
from remoting import codes
from remoting.access.signature import access_key
from remoting.errors import RequestError
from remoting.frame import Command
from remoting.names import RETRY_PREFIX
from remoting.settings import Live
from remoting.transport.connection import RemotingConnection

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClientProcessor:
    """The handlers. `is_master`: a replica takes heartbeats too, but makes no groups or topics for them.

    `settings` say whether members are told at once of others that join or leave, in groups that want that.
    """

    metadata: MetadataService
    clients: ClientRegistry
    is_master: Callable[[], bool]
    settings: Live[PullSettings]
    auto_create_groups: bool = True

    def __post_init__(self) -> None:
        self.clients.group_listeners.append(self._group_changed)

    def heartbeat(self, connection: RemotingConnection, request: Command) -> None:
        """Code 34. Members are visible before the answer leaves.

        With a fingerprint (version 2) the answer tells whether the subscriptions must be sent again; without one they always are.
        """
        document = bodies.decode_object(request.body, "heartbeat data")
        fingerprint = bodies.integer(document, "heartbeatFingerprint")
        without_subscriptions = fingerprint != 0 and bodies.boolean(document, "withoutSub", False)
        client = ClientInfo(
            bodies.name(document, "clientID"),
            connection.peer,
            request.language,
            str(request.version),
            user=access_key(request),
        )
        producers = bodies.objects(document, "producerDataSet", MAX_GROUPS_OF_CLIENT)
        consumers = bodies.objects(document, "consumerDataSet", MAX_GROUPS_OF_CLIENT)
        wanted = [data for data in map(decode_consumer, consumers) if self._group_is_there(data.group)]
        names = filter(None, (bodies.text(each, "groupName") for each in producers))
        known = self.clients.remoting_heartbeat(
            connection, client, names, wanted, fingerprint, without_subscriptions=without_subscriptions
        )
        changed = fingerprint == 0 or not known
        ext = {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true" if changed else "false"}
        connection.respond(request, ext=ext)

    def unregister(self, connection: RemotingConnection, request: Command) -> None:
        """Code 35."""
        ext = request.ext
        self.clients.leave(connection, ext.get("producerGroup", ""), ext.get("consumerGroup", ""))
        connection.respond(request)

    def consumer_ids(self, connection: RemotingConnection, request: Command) -> None:
        """Code 38: who shares the group's queues. Members of the other protocol take no queues of their own."""
        group = fields.text(request.ext, "consumerGroup")
        ids = sorted({member.info.client_id for member in self.clients.remoting_members(group)})
        if not ids:
            raise RequestError(codes.SYSTEM_ERROR, f"no consumer of {group} is connected")
        connection.respond(request, body=encode({"consumerIdList": ids}))

    def check_subscription(self, connection: RemotingConnection, request: Command) -> None:
        """Code 46: whether an expression can be evaluated here."""
        document = bodies.decode_object(request.body, "a client's configuration")
        subscription = document.get("subscriptionData")
        if isinstance(subscription, dict):
            compile_filter(bodies.text(subscription, "expressionType"), bodies.text(subscription, "subString"))
        connection.respond(request)

    # ---- inside

    def _group_is_there(self, group: str) -> bool:
        """Make the group and its retry topic if they are missing and may be made; else the heartbeat leaves it out."""
        master = self.is_master()
        try:
            config = ensure_group(self.metadata, group, self.auto_create_groups and master)
        except RequestError:
            log.debug("a heartbeat names the unknown group %s", group)
            return False
        if master and config.retry_queue_nums > 0:
            error = self.metadata.ensure_topic(f"{RETRY_PREFIX}{group}", config.retry_queue_nums)
            if error is not None:
                log.warning("the retry topic of %s could not be made: %s", group, error)
        return True

    def _group_changed(self, group: str) -> None:
        """Let every member see for itself who is there."""
        present = self.clients.consumer_group(group)
        config = self.metadata.group(group)
        if not self.settings.value.notify_ids_changed or present is None or present.message_model == "BROADCASTING":
            return
        if config is not None and not config.notify_ids_changed:
            return
        for member in list(self.clients.remoting_members(group)):
            if member.connection is not None:
                member.connection.notify(codes.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group})


def decode_consumer(document: dict[str, Any]) -> ConsumerData:
    """One consumer group of a heartbeat. Hashes of tags that it brings are ignored: some clients send wrong ones."""
    subscriptions: dict[str, Subscription] = {}
    for each in bodies.objects(document, "subscriptionDataSet", MAX_SUBSCRIPTIONS):
        topic = bodies.text(each, "topic")
        found = Subscription(
            topic,
            bodies.text(each, "subString", "*"),
            bodies.text(each, "expressionType") or "TAG",
            bodies.integer(each, "subVersion"),
        )
        known = subscriptions.get(topic)
        if known is None or found.version >= known.version:
            subscriptions[topic] = found
    return ConsumerData(
        bodies.text(document, "groupName"),
        bodies.enumeration(document, "consumeType", CONSUME_TYPES, CONSUME_TYPES[1]),
        bodies.enumeration(document, "messageModel", MESSAGE_MODELS, MESSAGE_MODELS[1]),
        bodies.enumeration(document, "consumeFromWhere", CONSUME_FROM, CONSUME_FROM[0]),
        subscriptions,
    )
