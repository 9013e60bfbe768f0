"""The name server's requests: decode, ask the tables, encode. Each is answered at once from memory."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import orjson

from controllerd.nameserver import documents
from controllerd.nameserver.kv_config import KvConfig
from controllerd.nameserver.records import MASTER_ID, MinIdChange
from controllerd.nameserver.registration import decode_data_version, decode_registration, decode_topic_queues
from controllerd.nameserver.routes import RouteTable
from controllerd.nameserver.settings import NameServerSettings
from remoting import codes
from remoting.errors import InvalidParameter, RequestError
from remoting.frame import Command
from remoting.settings import Live
from remoting.transport.connection import Handler, RemotingConnection
from remoting.transport.server import each

log = logging.getLogger(__name__)

_ORDER_TOPICS = "ORDER_TOPIC_CONFIG"


class NameServer:
    """Handlers over one route table and one key-value configuration. `now_ms` is monotonic.

    `push` sends a one-way request to an
    address; a newer one to the same address takes the place of one that is still on its way.
    """

    def __init__(
        self,
        routes: RouteTable,
        kv_config: KvConfig,
        settings: Live[NameServerSettings],
        push: Callable[[str, int, dict[str, str]], None],
        now_ms: Callable[[], int],
    ) -> None:
        self._routes = routes
        self._kv = kv_config
        self._settings = settings
        self._push = push
        self._now_ms = now_ms
        self._started_ms = now_ms()

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler, without the heartbeat (904), which the controller shares: see `heartbeat`."""
        return {
            codes.REGISTER_BROKER: each(self._register),
            codes.UNREGISTER_BROKER: each(self._unregister),
            codes.GET_ROUTEINFO_BY_TOPIC: each(self._route),
            codes.GET_BROKER_CLUSTER_INFO: self._shown(documents.cluster_info),
            codes.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._shown(documents.topic_list),
            codes.GET_TOPICS_BY_CLUSTER: each(self._topics_of_cluster),
            codes.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._shown(documents.system_topics),
            codes.GET_UNIT_TOPIC_LIST: self._shown(partial(documents.unit_topics, subscribed=False)),
            codes.GET_HAS_UNIT_SUB_TOPIC_LIST: self._shown(partial(documents.unit_topics, subscribed=True)),
            codes.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._shown(
                partial(documents.unit_topics, subscribed=True, ununited_only=True)
            ),
            codes.DELETE_TOPIC_IN_NAMESRV: each(self._delete_topic),
            codes.REGISTER_TOPIC_IN_NAMESRV: each(self._register_topic),
            codes.WIPE_WRITE_PERM_OF_BROKER: each(self._wipe_write_permission),
            codes.ADD_WRITE_PERM_OF_BROKER: each(self._add_write_permission),
            codes.QUERY_DATA_VERSION: each(self._query_data_version),
            codes.GET_BROKER_MEMBER_GROUP: each(self._members),
            codes.PUT_KV_CONFIG: each(self._put_kv),
            codes.GET_KV_CONFIG: each(self._get_kv),
            codes.DELETE_KV_CONFIG: each(self._delete_kv),
            codes.GET_KVLIST_BY_NAMESPACE: each(self._list_kv),
        }

    def heartbeat(self, connection: RemotingConnection, request: Command) -> None:
        """A light heartbeat (904): the broker lives. Answered with success always."""
        ext = request.ext
        self._routes.heard_from(ext.get("brokerName", ""), ext.get("brokerAddr", ""), self._now_ms())
        connection.respond(request)

    def connection_closed(self, connection: RemotingConnection) -> None:
        """Forget who registered over it."""
        for gone in self._routes.connection_closed(connection):
            log.info(
                "%s (id %d of %s) left the routes: its connection closed",
                gone.address,
                gone.broker_id,
                gone.broker_name,
            )
        self._tell_min_ids()

    def expire(self) -> None:
        """Forget who was silent for too long; called every few seconds."""
        for gone in self._routes.expire(self._now_ms()):
            log.info("%s (id %d of %s) left the routes: it was silent", gone.address, gone.broker_id, gone.broker_name)
        self._tell_min_ids()

    # ---- brokers

    def _register(self, connection: RemotingConnection, request: Command) -> None:
        registration = decode_registration(request.ext, request.body)
        twin = self._routes.twin_of(registration, self._now_ms())
        if twin is not None:
            sentence = (
                f"two processes have the identity of broker {twin.broker_id} of {twin.broker_name}: the one at {twin.address} is "
                f"registered and alive, the one at {registration.address} is refused until that is gone; stop the one that runs "
                "on a copy of the data directory"
            )
            log.warning("%s", sentence)
            connection.respond(request, codes.NO_PERMISSION, {"twinAddress": twin.address}, remark=sentence)
            return
        master = self._routes.register(registration, connection, self._now_ms())
        self._tell_min_ids()
        ext = {}
        if master is not None and registration.broker_id != MASTER_ID:
            ext = {"haServerAddr": master.ha_address, "masterAddr": master.address}
        body = orjson.dumps({"table": self._order_topics()}) if self._settings.value.order_topics else b""
        connection.respond(request, ext=ext, body=body)

    def _order_topics(self) -> dict[str, str]:
        try:
            return self._kv.table(_ORDER_TOPICS)
        except RequestError:
            return {}

    def _unregister(self, connection: RemotingConnection, request: Command) -> None:
        broker_id = _number(request, "brokerId")
        self._routes.unregister(_field(request, "brokerName"), broker_id, _field(request, "brokerAddr"))
        self._tell_min_ids()
        connection.respond(request)

    def _query_data_version(self, connection: RemotingConnection, request: Command) -> None:
        name, address = _field(request, "brokerName"), _field(request, "brokerAddr")
        known = self._routes.data_version(name, address)
        changed = known is None or known != decode_data_version(request.body)
        if not changed:
            self._routes.heard_from(name, address, self._now_ms())
        body = orjson.dumps(known.as_json()) if known is not None else b""
        connection.respond(request, ext={"changed": str(changed).lower()}, body=body)

    def _members(self, connection: RemotingConnection, request: Command) -> None:
        name, cluster = _field(request, "brokerName"), request.ext.get("clusterName", "")
        _respond_json(connection, request, documents.member_group(self._routes, name, cluster))

    def _wipe_write_permission(self, connection: RemotingConnection, request: Command) -> None:
        count = self._routes.set_write_permission(_field(request, "brokerName"), writable=False)
        connection.respond(request, ext={"wipeTopicCount": str(count)})

    def _add_write_permission(self, connection: RemotingConnection, request: Command) -> None:
        count = self._routes.set_write_permission(_field(request, "brokerName"), writable=True)
        connection.respond(request, ext={"addTopicCount": str(count)})

    def _tell_min_ids(self) -> None:
        for change in self._routes.take_min_id_changes():
            if self._settings.value.notify_min_broker_id:
                for address in change.notify:
                    self._push(address, codes.NOTIFY_MIN_BROKER_ID_CHANGE, _min_id_fields(change))

    # ---- clients and tools

    def _route(self, connection: RemotingConnection, request: Command) -> None:
        topic, settings = _field(request, "topic"), self._settings.value
        if self._now_ms() - self._started_ms < settings.wait_s * 1000:
            raise RequestError(
                codes.SYSTEM_ERROR, "this name server has just started and waits for brokers; ask another one"
            )
        zone = request.ext.get("__ZONE_NAME") if request.ext.get("__ZONE_MODE", "").lower() == "true" else None
        route = documents.route(self._routes, topic, acting_master=settings.acting_master, zone=zone or None)
        if route is None:
            raise RequestError(
                codes.TOPIC_NOT_EXIST, f"no route for topic {topic!r}: create it first, or wait for its broker"
            )
        if settings.order_topics and (order := self._order_topics().get(topic)):
            route["orderTopicConf"] = order
        _respond_json(connection, request, route)

    def _shown(self, document: Callable[[RouteTable], dict[str, Any]]) -> Handler:
        """Answers with what a document shows of the routes, whatever the request says."""
        return each(lambda connection, request: _respond_json(connection, request, document(self._routes)))

    def _topics_of_cluster(self, connection: RemotingConnection, request: Command) -> None:
        _respond_json(connection, request, documents.topic_list(self._routes, cluster=_field(request, "cluster")))

    def _delete_topic(self, connection: RemotingConnection, request: Command) -> None:
        self._routes.delete_topic(_field(request, "topic"), request.ext.get("clusterName") or None)
        connection.respond(request)

    def _register_topic(self, connection: RemotingConnection, request: Command) -> None:
        self._routes.register_topic(_field(request, "topic"), decode_topic_queues(request.body))
        connection.respond(request)

    # ---- key-value configuration

    def _put_kv(self, connection: RemotingConnection, request: Command) -> None:
        ext = request.ext
        self._kv.put(ext.get("namespace", ""), ext.get("key", ""), _field(request, "value"))
        connection.respond(request)

    def _get_kv(self, connection: RemotingConnection, request: Command) -> None:
        value = self._kv.get(_field(request, "namespace"), _field(request, "key"))
        connection.respond(request, ext={"value": value})

    def _delete_kv(self, connection: RemotingConnection, request: Command) -> None:
        self._kv.delete(_field(request, "namespace"), _field(request, "key"))
        connection.respond(request)

    def _list_kv(self, connection: RemotingConnection, request: Command) -> None:
        _respond_json(connection, request, {"table": self._kv.table(_field(request, "namespace"))})


def _min_id_fields(change: MinIdChange) -> dict[str, str]:
    fields = {
        "minBrokerId": str(change.min_broker_id),
        "brokerName": change.broker_name,
        "minBrokerAddr": change.min_address,
        "offlineBrokerAddr": change.offline_address,
        "haBrokerAddr": change.ha_address,
    }
    return {key: value for key, value in fields.items() if value}


def _respond_json(connection: RemotingConnection, request: Command, document: dict[str, Any]) -> None:
    connection.respond(request, body=orjson.dumps(document))


def _field(request: Command, name: str) -> str:
    value = request.ext.get(name)
    if value is None:
        raise InvalidParameter(f"request {request.code} needs the field {name}")
    return value


def _number(request: Command, name: str) -> int:
    try:
        return int(_field(request, name))
    except ValueError as error:
        raise InvalidParameter(f"the field {name} of request {request.code} must be a number") from error
