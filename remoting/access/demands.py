"""What each remoting request needs: one table from request code to resources and actions (pure)

A row reads the request's fields (or body) and gives the demands, all of which must be met. Rows follow the original's
annotations; where it checks nothing (settings, consumer groups, batch acks), this table does. Codes without a row need the right
to change the cluster. `INNER` codes are for the components of the cluster alone; `OPEN` ones carry no signature, as a signed
request introduced their connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import orjson

from remoting import codes
from remoting.access.decision import Demand
from remoting.access.model import CLUSTER, CREATE, DELETE, GET, GROUP, LIST, PUB, SUB, TOPIC, UPDATE
from remoting.errors import RequestError
from remoting.frame import Command
from remoting.names import DEAD_LETTER_PREFIX, RETRY_PREFIX

_MAX_DEMANDS: Final = 10_000

Row = Callable[[Command, str], list[Demand]]  # (request, the cluster's name)


def group_demand(name: str, *actions: str) -> Demand:
    return Demand(GROUP, name.removeprefix(RETRY_PREFIX).removeprefix(DEAD_LETTER_PREFIX), actions)


def topic_demand(name: str, *actions: str) -> Demand:
    """A retry or dead-letter topic belongs to its group."""
    if name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
        return group_demand(name, *actions)
    return Demand(TOPIC, name, actions)


def demands_of(request: Command, cluster: str) -> list[Demand]:
    """What the sender of a request must be allowed to do.

    Raises RequestError NO_PERMISSION when the request does not say what it is about.
    """
    return ROWS.get(request.code, _DEFAULT)(request, cluster)


# ---- rows


def _cluster(*actions: str) -> Row:
    return lambda _request, cluster: [Demand(CLUSTER, cluster, actions)]


def _fields(*actions: str, topic: str = "", group: str = "", topics: str = "", groups: str = "") -> Row:
    """Fields that name a topic and a group; `topics` and `groups` hold several names. An absent field demands nothing, unless all
    are absent."""

    def row(request: Command, cluster: str) -> list[Demand]:
        ext = request.ext
        found = [topic_demand(ext[topic], *actions)] if topic and ext.get(topic) else []
        if group and ext.get(group):
            found.append(group_demand(ext[group], *actions))
        found += [topic_demand(each, *actions) for each in ext.get(topics, "").split(";") if each] if topics else []
        found += [group_demand(each, *actions) for each in ext.get(groups, "").split(",") if each] if groups else []
        return found or [Demand(CLUSTER, cluster, actions)]

    return row


def _send(topic: str, group: str) -> Row:
    def row(request: Command, cluster: str) -> list[Demand]:
        name = request.ext.get(topic, "")
        if name.startswith(RETRY_PREFIX):
            return [group_demand(request.ext.get(group) or name, SUB)]
        return [topic_demand(name, PUB)]

    return row


def _pull(request: Command, cluster: str) -> list[Demand]:
    topic, group = request.ext.get("topic", ""), request.ext.get("consumerGroup", "")
    found = [group_demand(group, SUB)]
    return found if topic.startswith(RETRY_PREFIX) else [topic_demand(topic, SUB), *found]


def _route(request: Command, cluster: str) -> list[Demand]:
    return [topic_demand(request.ext.get("topic", ""), PUB, SUB, GET)]


def _end_transaction(request: Command, cluster: str) -> list[Demand]:
    topic = request.ext.get(
        "topic"
    )  # clients up to 4.9 do not say it; the half message they name is proof of having sent it
    return [topic_demand(topic, PUB)] if topic else []


def _unregister(request: Command, cluster: str) -> list[Demand]:
    group = request.ext.get("consumerGroup")
    return [group_demand(group, SUB)] if group else []


def _clone_offset(request: Command, cluster: str) -> list[Demand]:
    ext = request.ext
    found = [group_demand(ext.get("srcGroup", ""), GET), group_demand(ext.get("destGroup", ""), UPDATE)]
    return [*found, topic_demand(ext["topic"], UPDATE)] if ext.get("topic") else found


def _heartbeat(request: Command, cluster: str) -> list[Demand]:
    found = []
    for consumer in _objects(_body(request), "consumerDataSet"):
        found.append(group_demand(_text(consumer, "groupName"), SUB))
        for subscription in _objects(consumer, "subscriptionDataSet"):
            topic = _text(subscription, "topic")
            if not topic.startswith(RETRY_PREFIX):
                found.append(topic_demand(topic, SUB))
            _bound(found)
    return found


def _locks(request: Command, cluster: str) -> list[Demand]:
    body = _body(request)
    topics = {_text(each, "topic") for each in _objects(body, "mqSet")}
    found = [topic_demand(each, SUB) for each in sorted(topics) if not each.startswith(RETRY_PREFIX)]
    return [group_demand(_text(body, "consumerGroup"), SUB), *_bound(found)]


def _batch_ack(request: Command, cluster: str) -> list[Demand]:
    named = {(_text(each, "c"), _text(each, "t")) for each in _objects(_body(request), "acks")}
    return _bound(
        [demand for group, topic in sorted(named) for demand in (group_demand(group, SUB), topic_demand(topic, SUB))]
    )


def _client_config(request: Command, cluster: str) -> list[Demand]:
    body = _body(request)
    found = [group_demand(_text(body, "group"), SUB)]
    subscription = body.get("subscriptionData")
    return [*found, topic_demand(_text(subscription, "topic"), SUB)] if isinstance(subscription, dict) else found


def _body_names(*actions: str) -> Row:
    """A body that names a topic and a consumer group."""

    def row(request: Command, cluster: str) -> list[Demand]:
        body = _body(request)
        return [topic_demand(_text(body, "topic"), *actions), group_demand(_text(body, "consumerGroup"), *actions)]

    return row


def _one_group(request: Command, cluster: str) -> list[Demand]:
    return [group_demand(_text(_body(request), "groupName"), CREATE, UPDATE)]


def _groups(request: Command, cluster: str) -> list[Demand]:
    return _bound(
        [group_demand(_text(each, "groupName"), CREATE, UPDATE) for each in _objects(_body(request), "groupConfigList")]
    )


def _topics(request: Command, cluster: str) -> list[Demand]:
    return _bound(
        [topic_demand(_text(each, "topicName"), CREATE) for each in _objects(_body(request), "topicConfigList")]
    )


# ---- bodies


def _body(request: Command) -> dict[str, Any]:
    try:
        body = orjson.loads(request.body)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise _unclear(request.code)
    return body


def _objects(body: Mapping[str, Any], key: str) -> Iterable[dict[str, Any]]:
    value = body.get(key) or []
    if not isinstance(value, list) or len(value) > _MAX_DEMANDS or not all(isinstance(each, dict) for each in value):
        raise RequestError(codes.NO_PERMISSION, f"{key} must be a list of at most {_MAX_DEMANDS} objects")
    return value


def _text(body: Mapping[str, Any], key: str) -> str:
    value = body.get(key)
    return value if isinstance(value, str) else ""


def _bound(demands: list[Demand]) -> list[Demand]:
    if len(demands) > _MAX_DEMANDS:
        raise RequestError(codes.NO_PERMISSION, f"a request may be about {_MAX_DEMANDS} topics and groups at most")
    return demands


def _unclear(code: int) -> RequestError:
    return RequestError(
        codes.NO_PERMISSION, f"the body of request {code} must be JSON: what it is about cannot be told"
    )


_DEFAULT: Final = _cluster(UPDATE)
_READ: Final = _cluster(GET, LIST)
_TOPIC_READ: Final = _fields(SUB, GET, topic="topic")
_RECEIVE: Final = _fields(SUB, topic="topic", group="consumerGroup")
_GROUP_READ: Final = _fields(GET, topic="topic", group="group")

# Only components of this cluster send these; no user may, not even a super user.
INNER: Final = frozenset({codes.PROXY_CALL, codes.RAFT_HELLO, codes.ACCESS_STATE})
# Taken on connections that a signed RAFT_HELLO introduced, and on no others.
OPEN: Final = frozenset({codes.RAFT_MESSAGE, codes.RAFT_SNAPSHOT})

_CLUSTER_READS: Final = (
    codes.GET_ALL_TOPIC_CONFIG,
    codes.GET_BROKER_CONFIG,
    codes.GET_BROKER_RUNTIME_INFO,
    codes.GET_ALL_CONSUMER_OFFSET,
    codes.GET_ALL_DELAY_OFFSET,
    codes.GET_TIMER_CHECK_POINT,
    codes.GET_TIMER_METRICS,
    codes.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    codes.GET_PRODUCER_CONNECTION_LIST,
    codes.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
    codes.VIEW_BROKER_STATS_DATA,
    codes.GET_BROKER_CONSUME_STATS,
    codes.GET_ALL_PRODUCER_INFO,
    codes.GET_ALL_MESSAGE_REQUEST_MODE,
    codes.AUTH_GET_USER,
    codes.AUTH_LIST_USERS,
    codes.AUTH_GET_ACL,
    codes.AUTH_LIST_ACLS,
    codes.GET_KV_CONFIG,
    codes.GET_BROKER_CLUSTER_INFO,
    codes.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    codes.GET_KVLIST_BY_NAMESPACE,
    codes.GET_TOPICS_BY_CLUSTER,
    codes.GET_SYSTEM_TOPIC_LIST_FROM_NS,
    codes.GET_UNIT_TOPIC_LIST,
    codes.GET_HAS_UNIT_SUB_TOPIC_LIST,
    codes.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
    codes.GET_NAMESRV_CONFIG,
    codes.QUERY_DATA_VERSION,
    codes.GET_BROKER_MEMBER_GROUP,
    codes.GET_BROKER_HA_STATUS,
    codes.CONTROLLER_GET_REPLICA_INFO,
    codes.CONTROLLER_GET_METADATA_INFO,
    codes.CONTROLLER_GET_SYNC_STATE_DATA,
    codes.GET_BROKER_EPOCH_CACHE,
    codes.GET_CONTROLLER_CONFIG,
    codes.CONTROLLER_GET_NEXT_BROKER_ID,
    codes.CLUSTER_VIEW,
    codes.BROKER_STATE,
    codes.CONTROLLER_MEMBERS,
)
_CLUSTER_CHANGES: Final = (
    codes.UPDATE_BROKER_CONFIG,
    codes.CLEAN_EXPIRED_CONSUMEQUEUE,
    codes.CLEAN_UNUSED_TOPIC,
    codes.DELETE_EXPIRED_COMMITLOG,
    codes.AUTH_CREATE_USER,
    codes.AUTH_UPDATE_USER,
    codes.AUTH_DELETE_USER,
    codes.AUTH_CREATE_ACL,
    codes.AUTH_UPDATE_ACL,
    codes.AUTH_DELETE_ACL,
    codes.PUT_KV_CONFIG,
    codes.DELETE_KV_CONFIG,
    codes.REGISTER_BROKER,
    codes.UNREGISTER_BROKER,
    codes.WIPE_WRITE_PERM_OF_BROKER,
    codes.DELETE_TOPIC_IN_NAMESRV,
    codes.REGISTER_TOPIC_IN_NAMESRV,
    codes.UPDATE_NAMESRV_CONFIG,
    codes.ADD_WRITE_PERM_OF_BROKER,
    codes.BROKER_HEARTBEAT,
    codes.NOTIFY_MIN_BROKER_ID_CHANGE,
    codes.EXCHANGE_BROKER_HA_INFO,
    codes.RESET_MASTER_FLUSH_OFFSET,
    codes.CONTROLLER_ALTER_SYNC_STATE_SET,
    codes.CONTROLLER_ELECT_MASTER,
    codes.CONTROLLER_REGISTER_BROKER,
    codes.NOTIFY_BROKER_ROLE_CHANGED,
    codes.UPDATE_CONTROLLER_CONFIG,
    codes.CLEAN_BROKER_DATA,
    codes.CONTROLLER_APPLY_BROKER_ID,
    codes.CHANGE_CONTROLLER_MEMBERS,
    codes.TRANSFER_CONTROLLER_LEADER,
    codes.HAND_OVER_MASTER,
)

ROWS: Final[Mapping[int, Row]] = {
    **dict.fromkeys(_CLUSTER_READS, _READ),
    **dict.fromkeys(_CLUSTER_CHANGES, _DEFAULT),
    **dict.fromkeys(INNER | OPEN, _DEFAULT),
    # producers
    codes.SEND_MESSAGE: _send("topic", "producerGroup"),
    codes.SEND_MESSAGE_V2: _send("b", "a"),
    codes.SEND_BATCH_MESSAGE: _send("b", "a"),
    codes.SEND_REPLY_MESSAGE: _fields(PUB, topic="topic"),
    codes.SEND_REPLY_MESSAGE_V2: _fields(PUB, topic="b"),
    codes.RECALL_MESSAGE: _fields(PUB, topic="topic"),
    codes.END_TRANSACTION: _end_transaction,
    # consumers
    codes.CONSUMER_SEND_MSG_BACK: _fields(SUB, group="group"),
    codes.PULL_MESSAGE: _pull,
    codes.LITE_PULL_MESSAGE: _pull,
    codes.POP_MESSAGE: _RECEIVE,
    codes.PEEK_MESSAGE: _RECEIVE,
    codes.ACK_MESSAGE: _RECEIVE,
    codes.BATCH_ACK_MESSAGE: _batch_ack,
    codes.CHANGE_MESSAGE_INVISIBLETIME: _RECEIVE,
    codes.NOTIFICATION: _RECEIVE,
    codes.POLLING_INFO: _fields(SUB, GET, topic="topic", group="consumerGroup"),
    codes.QUERY_ASSIGNMENT: _body_names(SUB),
    codes.QUERY_CONSUMER_OFFSET: _fields(SUB, GET, topic="topic", group="consumerGroup"),
    codes.UPDATE_CONSUMER_OFFSET: _fields(SUB, UPDATE, topic="topic", group="consumerGroup"),
    codes.GET_CONSUMER_LIST_BY_GROUP: _fields(SUB, GET, group="consumerGroup"),
    codes.LOCK_BATCH_MQ: _locks,
    codes.UNLOCK_BATCH_MQ: _locks,
    # both
    codes.GET_ROUTEINFO_BY_TOPIC: _route,
    codes.HEART_BEAT: _heartbeat,
    codes.UNREGISTER_CLIENT: _unregister,
    codes.CHECK_CLIENT_CONFIG: _client_config,
    # topics
    codes.QUERY_MESSAGE: _TOPIC_READ,
    codes.SEARCH_OFFSET_BY_TIMESTAMP: _TOPIC_READ,
    codes.GET_MAX_OFFSET: _TOPIC_READ,
    codes.GET_MIN_OFFSET: _TOPIC_READ,
    codes.GET_EARLIEST_MSG_STORETIME: _TOPIC_READ,
    codes.VIEW_MESSAGE_BY_ID: _TOPIC_READ,
    codes.GET_TOPIC_STATS_INFO: _fields(GET, topic="topic"),
    codes.GET_TOPIC_CONFIG: _fields(GET, topic="topic"),
    codes.QUERY_TOPIC_CONSUME_BY_WHO: _fields(GET, topic="topic"),
    codes.QUERY_CONSUME_QUEUE: _fields(GET, topic="topic", group="consumerGroup"),
    codes.UPDATE_AND_CREATE_TOPIC: _fields(CREATE, topic="topic"),
    codes.UPDATE_AND_CREATE_TOPIC_LIST: _topics,
    codes.DELETE_TOPIC_IN_BROKER: _fields(DELETE, topic="topic"),
    codes.RESUME_CHECK_HALF_MESSAGE: _fields(UPDATE, topic="topic"),
    # groups
    codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _one_group,
    codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _groups,
    codes.DELETE_SUBSCRIPTIONGROUP: _fields(DELETE, group="groupName"),
    codes.GET_SUBSCRIPTIONGROUP_CONFIG: _fields(GET, group="group"),
    codes.GET_CONSUMER_CONNECTION_LIST: _fields(GET, group="consumerGroup"),
    codes.GET_CONSUMER_RUNNING_INFO: _fields(GET, group="consumerGroup"),
    codes.GET_CONSUME_STATS: _fields(GET, topic="topic", group="consumerGroup", topics="topicList"),
    codes.QUERY_CORRECTION_OFFSET: _fields(GET, topic="topic", group="compareGroup", groups="filterGroups"),
    codes.QUERY_CONSUME_TIME_SPAN: _GROUP_READ,
    codes.QUERY_TOPICS_BY_CONSUMER: _GROUP_READ,
    codes.QUERY_SUBSCRIPTION_BY_CONSUMER: _GROUP_READ,
    codes.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _GROUP_READ,
    codes.INVOKE_BROKER_TO_RESET_OFFSET: _fields(UPDATE, topic="topic", group="group"),
    codes.UPDATE_AND_GET_GROUP_FORBIDDEN: _fields(UPDATE, topic="topic", group="group"),
    codes.CONSUME_MESSAGE_DIRECTLY: _fields(SUB, topic="topic", group="consumerGroup"),
    codes.CLONE_GROUP_OFFSET: _clone_offset,
    codes.SET_MESSAGE_REQUEST_MODE: _body_names(UPDATE),
}
