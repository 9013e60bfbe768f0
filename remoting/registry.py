"""Every request of the protocol, a row each: who answers it, and what its sender must be allowed to do.

The rows are three things at once: the dispatch table of both daemons (`bind` holds their handlers against it at start), the table
of permissions (`access/guard.py` reads it in front of every handler), and the page docs/PROTOCOL.md, which is made from it. So a
new request code is a row here and a handler. Codes without a row are answered as not supported by the connection itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Flag, auto
from typing import Final

from remoting import codes
from remoting.access import demands
from remoting.access.decision import Demand
from remoting.access.demands import CHANGE_CLUSTER, READ_CLUSTER, Need, fields, super_user
from remoting.access.model import CREATE, DELETE, GET, PUB, SUB, UPDATE
from remoting.frame import Command
from remoting.transport.connection import Handler


class By(Flag):
    """Who answers a request."""

    BROKER = auto()  # any broker; what takes a master, its handler refuses on a replica
    MASTER = auto()  # the master of a group; a replica refuses
    MASTER_ASKED = auto()  # the master of a group; a replica passes the request on to it
    MASTER_AWAITED = auto()  # the same, and while no master is known the request waits for one
    CONTROLLER = auto()
    LEADER = auto()  # the controller that leads; the others refuse
    NAME_SERVER = auto()  # any controller, as all of them are name servers
    CLIENT = auto()  # clients, whom brokers ask


BROKERS: Final = By.BROKER | By.MASTER | By.MASTER_ASKED | By.MASTER_AWAITED
CONTROLLERS: Final = By.CONTROLLER | By.LEADER | By.NAME_SERVER


@dataclass(frozen=True, slots=True)
class Row:
    """One request code."""

    code: int
    by: By
    need: Need

    @property
    def name(self) -> str:
        return codes.REQUESTS[self.code]


_RECEIVE: Final = fields(SUB, topic="topic", group="consumerGroup")
_TOPIC_READ: Final = fields(SUB, GET, topic="topic")
_GROUP_READ: Final = fields(GET, topic="topic", group="group")

_TABLE: Final = (
    # clients, and tools that ask a broker
    Row(codes.SEND_MESSAGE, By.BROKER, demands.send("topic")),
    Row(codes.PULL_MESSAGE, By.BROKER, demands.pull),
    Row(codes.QUERY_MESSAGE, By.BROKER, _TOPIC_READ),
    Row(codes.QUERY_CONSUMER_OFFSET, By.MASTER_AWAITED, fields(SUB, GET, topic="topic", group="consumerGroup")),
    Row(codes.UPDATE_CONSUMER_OFFSET, By.MASTER, fields(SUB, UPDATE, topic="topic", group="consumerGroup")),
    Row(codes.UPDATE_AND_CREATE_TOPIC, By.MASTER_ASKED, fields(CREATE, topic="topic")),
    Row(codes.UPDATE_AND_CREATE_TOPIC_LIST, By.MASTER_ASKED, demands.put_topics),
    Row(codes.GET_ALL_TOPIC_CONFIG, By.BROKER, READ_CLUSTER),
    Row(codes.UPDATE_BROKER_CONFIG, By.BROKER, CHANGE_CLUSTER),
    Row(codes.GET_BROKER_CONFIG, By.BROKER, READ_CLUSTER),
    Row(codes.GET_BROKER_RUNTIME_INFO, By.BROKER, READ_CLUSTER),
    Row(codes.SEARCH_OFFSET_BY_TIMESTAMP, By.MASTER_AWAITED, _TOPIC_READ),
    Row(codes.GET_MAX_OFFSET, By.MASTER_AWAITED, _TOPIC_READ),
    Row(codes.GET_MIN_OFFSET, By.MASTER_AWAITED, _TOPIC_READ),
    Row(codes.GET_EARLIEST_MSG_STORETIME, By.MASTER_AWAITED, _TOPIC_READ),
    Row(codes.VIEW_MESSAGE_BY_ID, By.BROKER, _TOPIC_READ),
    Row(codes.HEART_BEAT, By.BROKER, demands.heartbeat),
    Row(codes.UNREGISTER_CLIENT, By.BROKER, demands.unregister),
    Row(codes.CONSUMER_SEND_MSG_BACK, By.MASTER, fields(SUB, group="group")),
    Row(codes.END_TRANSACTION, By.BROKER, demands.end_transaction),
    Row(codes.GET_CONSUMER_LIST_BY_GROUP, By.BROKER, fields(SUB, GET, group="consumerGroup")),
    Row(codes.CHECK_TRANSACTION_STATE, By.CLIENT, demands.OF_CLIENT),
    Row(codes.NOTIFY_CONSUMER_IDS_CHANGED, By.CLIENT, demands.OF_CLIENT),
    Row(codes.LOCK_BATCH_MQ, By.BROKER, demands.locks),
    Row(codes.UNLOCK_BATCH_MQ, By.BROKER, demands.locks),
    Row(codes.GET_ALL_CONSUMER_OFFSET, By.BROKER, READ_CLUSTER),
    Row(codes.GET_ALL_DELAY_OFFSET, By.BROKER, READ_CLUSTER),
    Row(codes.CHECK_CLIENT_CONFIG, By.BROKER, demands.client_config),
    Row(codes.GET_TIMER_CHECK_POINT, By.BROKER, READ_CLUSTER),
    Row(codes.GET_TIMER_METRICS, By.BROKER, READ_CLUSTER),
    Row(codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, By.MASTER_ASKED, demands.put_group),
    Row(codes.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, By.BROKER, READ_CLUSTER),
    Row(codes.GET_TOPIC_STATS_INFO, By.BROKER, fields(GET, topic="topic")),
    Row(codes.GET_CONSUMER_CONNECTION_LIST, By.BROKER, fields(GET, group="consumerGroup")),
    Row(codes.GET_PRODUCER_CONNECTION_LIST, By.BROKER, READ_CLUSTER),
    Row(codes.DELETE_SUBSCRIPTIONGROUP, By.MASTER_ASKED, fields(DELETE, group="groupName")),
    Row(codes.GET_CONSUME_STATS, By.BROKER, fields(GET, topic="topic", group="consumerGroup", topics="topicList")),
    Row(codes.DELETE_TOPIC_IN_BROKER, By.MASTER_ASKED, fields(DELETE, topic="topic")),
    Row(codes.RESET_CONSUMER_CLIENT_OFFSET, By.CLIENT, demands.OF_CLIENT),
    Row(codes.GET_CONSUMER_STATUS_FROM_CLIENT, By.CLIENT, demands.OF_CLIENT),
    Row(codes.INVOKE_BROKER_TO_RESET_OFFSET, By.MASTER_ASKED, fields(UPDATE, topic="topic", group="group")),
    Row(codes.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, By.BROKER, _GROUP_READ),
    Row(codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, By.MASTER_ASKED, demands.put_groups),
    Row(codes.QUERY_TOPIC_CONSUME_BY_WHO, By.BROKER, fields(GET, topic="topic")),
    Row(codes.QUERY_CONSUME_TIME_SPAN, By.BROKER, _GROUP_READ),
    Row(codes.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, By.BROKER, READ_CLUSTER),
    Row(codes.CLEAN_EXPIRED_CONSUMEQUEUE, By.BROKER, CHANGE_CLUSTER),
    Row(codes.GET_CONSUMER_RUNNING_INFO, By.BROKER | By.CLIENT, fields(GET, group="consumerGroup")),
    Row(
        codes.QUERY_CORRECTION_OFFSET,
        By.BROKER,
        fields(GET, topic="topic", group="compareGroup", groups="filterGroups"),
    ),
    Row(codes.CONSUME_MESSAGE_DIRECTLY, By.BROKER | By.CLIENT, fields(SUB, topic="topic", group="consumerGroup")),
    Row(codes.SEND_MESSAGE_V2, By.BROKER, demands.send("b")),
    Row(codes.CLONE_GROUP_OFFSET, By.MASTER_ASKED, demands.clone_offset),
    Row(codes.VIEW_BROKER_STATS_DATA, By.BROKER, READ_CLUSTER),
    Row(codes.CLEAN_UNUSED_TOPIC, By.BROKER, CHANGE_CLUSTER),
    Row(codes.GET_BROKER_CONSUME_STATS, By.BROKER, READ_CLUSTER),
    Row(codes.SEND_BATCH_MESSAGE, By.BROKER, demands.send("b")),
    Row(codes.QUERY_CONSUME_QUEUE, By.BROKER, fields(GET, topic="topic", group="consumerGroup")),
    Row(codes.RESUME_CHECK_HALF_MESSAGE, By.BROKER, fields(UPDATE, topic="topic")),
    Row(codes.SEND_REPLY_MESSAGE, By.BROKER, fields(PUB, topic="topic")),
    Row(codes.SEND_REPLY_MESSAGE_V2, By.BROKER, fields(PUB, topic="b")),
    Row(codes.PUSH_REPLY_MESSAGE_TO_CLIENT, By.CLIENT, demands.OF_CLIENT),
    Row(codes.GET_ALL_PRODUCER_INFO, By.BROKER, READ_CLUSTER),
    Row(codes.DELETE_EXPIRED_COMMITLOG, By.BROKER, CHANGE_CLUSTER),
    Row(codes.QUERY_TOPICS_BY_CONSUMER, By.BROKER, _GROUP_READ),
    Row(codes.QUERY_SUBSCRIPTION_BY_CONSUMER, By.BROKER, _GROUP_READ),
    Row(codes.GET_TOPIC_CONFIG, By.BROKER, fields(GET, topic="topic")),
    Row(codes.GET_SUBSCRIPTIONGROUP_CONFIG, By.BROKER, fields(GET, group="group")),
    Row(codes.UPDATE_AND_GET_GROUP_FORBIDDEN, By.MASTER_ASKED, fields(UPDATE, topic="topic", group="group")),
    Row(codes.LITE_PULL_MESSAGE, By.BROKER, demands.pull),
    Row(codes.RECALL_MESSAGE, By.MASTER, fields(PUB, topic="topic")),
    Row(codes.QUERY_ASSIGNMENT, By.BROKER, demands.body_names(SUB)),
    Row(codes.SET_MESSAGE_REQUEST_MODE, By.MASTER_ASKED, demands.body_names(UPDATE)),
    Row(codes.GET_ALL_MESSAGE_REQUEST_MODE, By.BROKER, READ_CLUSTER),
    Row(codes.POP_MESSAGE, By.MASTER, _RECEIVE),
    Row(codes.ACK_MESSAGE, By.MASTER, _RECEIVE),
    Row(codes.PEEK_MESSAGE, By.MASTER, _RECEIVE),
    Row(codes.CHANGE_MESSAGE_INVISIBLETIME, By.MASTER, _RECEIVE),
    Row(codes.NOTIFICATION, By.MASTER, _RECEIVE),
    Row(codes.POLLING_INFO, By.MASTER, fields(SUB, GET, topic="topic", group="consumerGroup")),
    Row(codes.BATCH_ACK_MESSAGE, By.MASTER, demands.batch_ack),
    # users and permissions
    Row(codes.AUTH_CREATE_USER, By.BROKER | By.LEADER, super_user(CHANGE_CLUSTER)),
    Row(codes.AUTH_UPDATE_USER, By.BROKER | By.LEADER, super_user(CHANGE_CLUSTER)),
    Row(codes.AUTH_DELETE_USER, By.BROKER | By.LEADER, super_user(CHANGE_CLUSTER)),
    Row(codes.AUTH_GET_USER, By.BROKER | By.LEADER, super_user(READ_CLUSTER)),
    Row(codes.AUTH_LIST_USERS, By.BROKER | By.LEADER, super_user(READ_CLUSTER)),
    Row(codes.AUTH_CREATE_ACL, By.BROKER | By.LEADER, super_user(CHANGE_CLUSTER)),
    Row(codes.AUTH_UPDATE_ACL, By.BROKER | By.LEADER, super_user(CHANGE_CLUSTER)),
    Row(codes.AUTH_DELETE_ACL, By.BROKER | By.LEADER, super_user(CHANGE_CLUSTER)),
    Row(codes.AUTH_GET_ACL, By.BROKER | By.LEADER, super_user(READ_CLUSTER)),
    Row(codes.AUTH_LIST_ACLS, By.BROKER | By.LEADER, super_user(READ_CLUSTER)),
    # name server
    Row(codes.PUT_KV_CONFIG, By.NAME_SERVER, CHANGE_CLUSTER),
    Row(codes.GET_KV_CONFIG, By.NAME_SERVER, READ_CLUSTER),
    Row(codes.DELETE_KV_CONFIG, By.NAME_SERVER, CHANGE_CLUSTER),
    Row(codes.REGISTER_BROKER, By.NAME_SERVER, CHANGE_CLUSTER),
    Row(codes.UNREGISTER_BROKER, By.NAME_SERVER, CHANGE_CLUSTER),
    Row(codes.GET_ROUTEINFO_BY_TOPIC, By.NAME_SERVER, demands.route),
    Row(codes.GET_BROKER_CLUSTER_INFO, By.NAME_SERVER, READ_CLUSTER),
    Row(codes.WIPE_WRITE_PERM_OF_BROKER, By.NAME_SERVER, CHANGE_CLUSTER),
    Row(codes.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, By.NAME_SERVER, READ_CLUSTER),
    Row(codes.DELETE_TOPIC_IN_NAMESRV, By.NAME_SERVER, CHANGE_CLUSTER),
    Row(codes.REGISTER_TOPIC_IN_NAMESRV, By.NAME_SERVER, CHANGE_CLUSTER),
    Row(codes.GET_KVLIST_BY_NAMESPACE, By.NAME_SERVER, READ_CLUSTER),
    Row(codes.GET_TOPICS_BY_CLUSTER, By.NAME_SERVER, READ_CLUSTER),
    Row(codes.GET_SYSTEM_TOPIC_LIST_FROM_NS, By.NAME_SERVER, READ_CLUSTER),
    Row(codes.GET_UNIT_TOPIC_LIST, By.NAME_SERVER, READ_CLUSTER),
    Row(codes.GET_HAS_UNIT_SUB_TOPIC_LIST, By.NAME_SERVER, READ_CLUSTER),
    Row(codes.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, By.NAME_SERVER, READ_CLUSTER),
    Row(codes.UPDATE_NAMESRV_CONFIG, By.NAME_SERVER, CHANGE_CLUSTER),
    Row(codes.GET_NAMESRV_CONFIG, By.NAME_SERVER, READ_CLUSTER),
    Row(codes.QUERY_DATA_VERSION, By.NAME_SERVER, READ_CLUSTER),
    Row(codes.ADD_WRITE_PERM_OF_BROKER, By.NAME_SERVER, CHANGE_CLUSTER),
    Row(codes.GET_BROKER_MEMBER_GROUP, By.NAME_SERVER, READ_CLUSTER),
    Row(codes.BROKER_HEARTBEAT, By.CONTROLLER | By.NAME_SERVER, CHANGE_CLUSTER),
    Row(codes.NOTIFY_MIN_BROKER_ID_CHANGE, By.BROKER, CHANGE_CLUSTER),
    # controller and replication
    Row(codes.EXCHANGE_BROKER_HA_INFO, By.BROKER, CHANGE_CLUSTER),
    Row(codes.GET_BROKER_HA_STATUS, By.BROKER, READ_CLUSTER),
    Row(codes.RESET_MASTER_FLUSH_OFFSET, By.BROKER, CHANGE_CLUSTER),
    Row(codes.CONTROLLER_ALTER_SYNC_STATE_SET, By.LEADER, CHANGE_CLUSTER),
    Row(codes.CONTROLLER_ELECT_MASTER, By.LEADER, CHANGE_CLUSTER),
    Row(codes.CONTROLLER_REGISTER_BROKER, By.LEADER, CHANGE_CLUSTER),
    Row(codes.CONTROLLER_GET_REPLICA_INFO, By.LEADER, READ_CLUSTER),
    Row(codes.CONTROLLER_GET_METADATA_INFO, By.CONTROLLER, READ_CLUSTER),
    Row(codes.CONTROLLER_GET_SYNC_STATE_DATA, By.LEADER, READ_CLUSTER),
    Row(codes.GET_BROKER_EPOCH_CACHE, By.BROKER, READ_CLUSTER),
    Row(codes.NOTIFY_BROKER_ROLE_CHANGED, By.BROKER, CHANGE_CLUSTER),
    Row(codes.UPDATE_CONTROLLER_CONFIG, By.CONTROLLER, CHANGE_CLUSTER),
    Row(codes.GET_CONTROLLER_CONFIG, By.CONTROLLER, READ_CLUSTER),
    Row(codes.CLEAN_BROKER_DATA, By.LEADER, CHANGE_CLUSTER),
    Row(codes.CONTROLLER_GET_NEXT_BROKER_ID, By.LEADER, READ_CLUSTER),
    Row(codes.CONTROLLER_APPLY_BROKER_ID, By.LEADER, CHANGE_CLUSTER),
    # ours, never sent by clients of the protocol
    Row(codes.CLUSTER_VIEW, By.CONTROLLER, READ_CLUSTER),
    Row(codes.BROKER_STATE, By.BROKER, READ_CLUSTER),
    Row(codes.PROXY_CALL, By.BROKER, demands.COMPONENT),
    Row(codes.CONTROLLER_MEMBERS, By.CONTROLLER, READ_CLUSTER),
    Row(codes.CHANGE_CONTROLLER_MEMBERS, By.LEADER, CHANGE_CLUSTER),
    Row(codes.TRANSFER_CONTROLLER_LEADER, By.LEADER, CHANGE_CLUSTER),
    Row(codes.BULK_READ, By.BROKER, demands.pull),
    Row(codes.HAND_OVER_MASTER, By.BROKER, CHANGE_CLUSTER),
    Row(codes.ACCESS_STATE, By.LEADER, demands.COMPONENT),
    Row(codes.RAFT_MESSAGE, By.CONTROLLER, demands.INTRODUCED),
    Row(codes.RAFT_HELLO, By.CONTROLLER, demands.COMPONENT),
    Row(codes.RAFT_SNAPSHOT, By.CONTROLLER, demands.INTRODUCED),
    Row(codes.READ_LOG_RANGE, By.BROKER, demands.COMPONENT),
    Row(codes.RAFT_RETURN, By.LEADER, demands.COMPONENT),
    Row(codes.GIVEN_UP_TRANSACTIONS, By.MASTER, READ_CLUSTER),
    Row(codes.END_GIVEN_UP_TRANSACTION, By.MASTER, CHANGE_CLUSTER),
    Row(codes.REPORT_PLACEMENTS, By.LEADER, demands.COMPONENT),
    Row(codes.PLACEMENTS_CHANGED, By.BROKER, CHANGE_CLUSTER),
    Row(codes.TOPIC_PLACEMENT, By.CONTROLLER, fields(GET, topic="topic")),
    Row(codes.HANDOVER_PASSED, By.MASTER, demands.COMPONENT),
    Row(codes.OPEN_GATE, By.MASTER, CHANGE_CLUSTER),
    Row(codes.FIND_TIMERS, By.MASTER, READ_CLUSTER),
    Row(codes.RECALL_TIMERS, By.MASTER, CHANGE_CLUSTER),
    Row(codes.KEEP_ANCHOR, By.LEADER, demands.COMPONENT),
    Row(codes.GET_ANCHOR, By.LEADER, demands.COMPONENT),
)
ROWS: Final[Mapping[int, Row]] = {row.code: row for row in _TABLE}
assert len(ROWS) == len(_TABLE), "a code has two rows"


def demands_of(request: Command, cluster: str) -> list[Demand]:
    """What the sender of a request must be allowed to do: for a code without a row, to change the cluster.

    Raises RequestError NO_PERMISSION when the request does not say what it is about.
    """
    row = ROWS.get(request.code)
    return (row.need if row is not None else CHANGE_CLUSTER).demands(request, cluster)


def bind(side: By, *tables: Mapping[int, Handler]) -> dict[int, Handler]:
    """The handlers of a daemon (`BROKERS` or `CONTROLLERS`) in one table: one for each of its rows, and none beside them."""
    handlers: dict[int, Handler] = {}
    for table in tables:
        assert handlers.keys().isdisjoint(table), f"two handlers for {sorted(handlers.keys() & table.keys())}"
        handlers |= table
    answered = {row.code for row in _TABLE if row.by & side}
    assert answered == handlers.keys(), f"a row and no handler, or the reverse: {sorted(answered ^ handlers.keys())}"
    return handlers
