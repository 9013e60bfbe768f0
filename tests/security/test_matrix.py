"""Every request of the protocol, asked by a user who may do everything with one topic and one group, and nothing else.

The user names what is its own; a foreign topic; a foreign group; a foreign message by its place; a topic of the brokers' own; or
nothing at all. What is expected is written down, so a new request needs a row here before it is answered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import orjson
import pytest

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.errors import ConnectionLost
from remoting.frame import Command
from remoting.record.hosts import decode_offset_message_id
from remoting.registry import BROKERS, CONTROLLERS, ROWS
from remoting.transport.identity import Identity
from tests.security.people import Person, send
from tests.support.cluster import Cluster

OWN, FOREIGN, INTERNAL = "matrix-own", "matrix-foreign", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
GROUP, FOREIGN_GROUP = "matrix-group", "matrix-foreign-group"
COLUMNS: Final = ("own", "foreign topic", "foreign group", "foreign offset", "internal topic", "missing field")

LET_IN, REFUSED, UNSUPPORTED, HUNG_UP, STRANGER = "+", "-", "?", "x", "s"
# expected in each column -> the codes
EXPECTED: Final[Mapping[str, str]] = {
    # by its topic; one that names none is for who may read or change the cluster
    "+ - + + - -": """
        SEND_MESSAGE SEND_MESSAGE_V2 SEND_BATCH_MESSAGE SEND_REPLY_MESSAGE SEND_REPLY_MESSAGE_V2 RECALL_MESSAGE
        QUERY_MESSAGE SEARCH_OFFSET_BY_TIMESTAMP GET_MAX_OFFSET GET_MIN_OFFSET GET_EARLIEST_MSG_STORETIME
        GET_TOPIC_CONFIG GET_TOPIC_STATS_INFO QUERY_TOPIC_CONSUME_BY_WHO GET_ROUTEINFO_BY_TOPIC TOPIC_PLACEMENT
        UPDATE_AND_CREATE_TOPIC UPDATE_AND_CREATE_TOPIC_LIST DELETE_TOPIC_IN_BROKER""",
    # by its group
    "+ + - + + -": """
        GET_CONSUMER_LIST_BY_GROUP GET_CONSUMER_CONNECTION_LIST GET_CONSUMER_RUNNING_INFO GET_SUBSCRIPTIONGROUP_CONFIG
        UPDATE_AND_CREATE_SUBSCRIPTIONGROUP UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST DELETE_SUBSCRIPTIONGROUP""",
    # by both
    "+ - - + - -": """
        PULL_MESSAGE LITE_PULL_MESSAGE BULK_READ POP_MESSAGE PEEK_MESSAGE NOTIFICATION POLLING_INFO ACK_MESSAGE
        BATCH_ACK_MESSAGE CHANGE_MESSAGE_INVISIBLETIME HEART_BEAT CHECK_CLIENT_CONFIG LOCK_BATCH_MQ UNLOCK_BATCH_MQ
        QUERY_ASSIGNMENT SET_MESSAGE_REQUEST_MODE QUERY_CONSUMER_OFFSET UPDATE_CONSUMER_OFFSET QUERY_CONSUME_QUEUE
        INVOKE_BROKER_TO_RESET_OFFSET INVOKE_BROKER_TO_GET_CONSUMER_STATUS CLONE_GROUP_OFFSET GET_CONSUME_STATS
        QUERY_CONSUME_TIME_SPAN QUERY_CORRECTION_OFFSET QUERY_TOPICS_BY_CONSUMER QUERY_SUBSCRIPTION_BY_CONSUMER
        UPDATE_AND_GET_GROUP_FORBIDDEN""",
    # by what it says, and by the message that it names
    "+ - + - - -": "VIEW_MESSAGE_BY_ID RESUME_CHECK_HALF_MESSAGE",
    "+ - - - - -": "CONSUME_MESSAGE_DIRECTLY",
    "+ + - - + -": "CONSUMER_SEND_MSG_BACK",
    "+ - + - - +": "END_TRANSACTION",  # older clients do not say the topic
    "+ + - + + +": "UNREGISTER_CLIENT",  # producers name no group of consumers
    # for who may read or change the cluster, or for components, whatever it says
    "- - - - - -": """
        GET_ALL_TOPIC_CONFIG UPDATE_BROKER_CONFIG GET_BROKER_CONFIG GET_BROKER_RUNTIME_INFO GET_ALL_CONSUMER_OFFSET
        GET_ALL_DELAY_OFFSET GET_TIMER_CHECK_POINT GET_TIMER_METRICS GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        GET_PRODUCER_CONNECTION_LIST GET_SYSTEM_TOPIC_LIST_FROM_BROKER CLEAN_EXPIRED_CONSUMEQUEUE VIEW_BROKER_STATS_DATA
        CLEAN_UNUSED_TOPIC GET_BROKER_CONSUME_STATS GET_ALL_PRODUCER_INFO DELETE_EXPIRED_COMMITLOG
        GET_ALL_MESSAGE_REQUEST_MODE AUTH_CREATE_USER AUTH_UPDATE_USER AUTH_DELETE_USER AUTH_GET_USER AUTH_LIST_USERS
        AUTH_CREATE_ACL AUTH_UPDATE_ACL AUTH_DELETE_ACL AUTH_GET_ACL AUTH_LIST_ACLS PUT_KV_CONFIG GET_KV_CONFIG
        DELETE_KV_CONFIG REGISTER_BROKER UNREGISTER_BROKER GET_BROKER_CLUSTER_INFO WIPE_WRITE_PERM_OF_BROKER
        GET_ALL_TOPIC_LIST_FROM_NAMESERVER DELETE_TOPIC_IN_NAMESRV REGISTER_TOPIC_IN_NAMESRV GET_KVLIST_BY_NAMESPACE
        GET_TOPICS_BY_CLUSTER GET_SYSTEM_TOPIC_LIST_FROM_NS GET_UNIT_TOPIC_LIST GET_HAS_UNIT_SUB_TOPIC_LIST
        GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST UPDATE_NAMESRV_CONFIG GET_NAMESRV_CONFIG QUERY_DATA_VERSION
        ADD_WRITE_PERM_OF_BROKER GET_BROKER_MEMBER_GROUP BROKER_HEARTBEAT NOTIFY_MIN_BROKER_ID_CHANGE
        EXCHANGE_BROKER_HA_INFO GET_BROKER_HA_STATUS RESET_MASTER_FLUSH_OFFSET CONTROLLER_ALTER_SYNC_STATE_SET
        CONTROLLER_ELECT_MASTER CONTROLLER_REGISTER_BROKER CONTROLLER_GET_REPLICA_INFO CONTROLLER_GET_METADATA_INFO
        CONTROLLER_GET_SYNC_STATE_DATA GET_BROKER_EPOCH_CACHE NOTIFY_BROKER_ROLE_CHANGED UPDATE_CONTROLLER_CONFIG
        GET_CONTROLLER_CONFIG CLEAN_BROKER_DATA CONTROLLER_GET_NEXT_BROKER_ID CONTROLLER_APPLY_BROKER_ID CLUSTER_VIEW
        BROKER_STATE PROXY_CALL CONTROLLER_MEMBERS CHANGE_CONTROLLER_MEMBERS TRANSFER_CONTROLLER_LEADER HAND_OVER_MASTER
        ACCESS_STATE RAFT_HELLO READ_LOG_RANGE RAFT_RETURN GIVEN_UP_TRANSACTIONS END_GIVEN_UP_TRANSACTION
        REPORT_PLACEMENTS PLACEMENTS_CHANGED HANDOVER_PASSED OPEN_GATE FIND_TIMERS RECALL_TIMERS
        KEEP_ANCHOR GET_ANCHOR""",
    # brokers ask clients: no daemon answers
    "? ? ? ? ? ?": """
        CHECK_TRANSACTION_STATE NOTIFY_CONSUMER_IDS_CHANGED RESET_CONSUMER_CLIENT_OFFSET GET_CONSUMER_STATUS_FROM_CLIENT
        PUSH_REPLY_MESSAGE_TO_CLIENT""",
    # nobody introduced the connection as a controller's
    "x x x x x x": "RAFT_MESSAGE",
    "s s s s s s": "RAFT_SNAPSHOT",
}
_EXPECTED_OF: Final = {name: expected for expected, names in EXPECTED.items() for name in names.split()}
_LAST: Final = (codes.DELETE_SUBSCRIPTIONGROUP, codes.DELETE_TOPIC_IN_BROKER)
_HALF: Final = (codes.END_TRANSACTION, codes.RESUME_CHECK_HALF_MESSAGE)


def test_every_request_is_in_the_table() -> None:
    assert sorted(name for names in EXPECTED.values() for name in names.split()) == sorted(
        row.name for row in ROWS.values()
    )


class Place(NamedTuple):
    """Where a message is."""

    message_id: str
    offset: str
    queue_offset: str

    @classmethod
    def of(cls, sent: Command) -> Place:
        message_id = sent.ext["msgId"]
        return cls(message_id, str(decode_offset_message_id(message_id)[2]), sent.ext["queueOffset"])


class Asker:
    """Asks as one user, on connections that stay open while daemons leave them open."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._connections: dict[str, SocketConnection] = {}

    def ask(self, address: str, code: int, ext: Mapping[str, str], body: bytes) -> str:
        if address not in self._connections:
            self._connections[address] = SocketConnection(address, identity=self._identity)
        try:
            answer = self._connections[address].call(
                code, ext, body, accept=tuple(range(-1, 10_000)), timeout_ms=10_000
            )
        except ConnectionLost:
            del self._connections[address]
            return HUNG_UP
        if answer.code == codes.REQUEST_CODE_NOT_SUPPORTED:
            return UNSUPPORTED
        if "introduce yourself" in (answer.remark or ""):
            return STRANGER
        return REFUSED if answer.code == codes.NO_PERMISSION else LET_IN

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()


@pytest.fixture(scope="module")
def asker(secured: Cluster) -> Iterator[Asker]:
    for topic in (OWN, FOREIGN):
        secured.admin.create_topic(topic, 1)
    for group in (GROUP, FOREIGN_GROUP):
        secured.admin.create_group(group)
    own = (f"Topic:{OWN}", f"Group:{GROUP}", f"Topic:{INTERNAL}")  # the last of which no entry gives
    person = Person(secured, "mia", dict.fromkeys(own, ("All",)))
    asker = Asker(person.identity)
    yield asker
    asker.close()


def test_what_is_ones_own_is_let_in_and_nothing_else(secured: Cluster, asker: Asker) -> None:
    half = "TRAN_MSG\x01true\x02PGROUP\x01g\x02UNIQ_KEY\x01k\x02"
    places = {
        (topic, properties): Place.of(send(secured, topic, properties))
        for topic in (OWN, FOREIGN)
        for properties in ("", half)
    }
    sides = ((BROKERS, secured.broker_addresses[secured.master()]), (CONTROLLERS, secured.controller_addresses[0]))
    wrong = []
    for row in sorted(ROWS.values(), key=lambda row: (row.code in _LAST, row.code)):
        properties = half if row.code in _HALF else ""
        own, foreign = places[OWN, properties], places[FOREIGN, properties]
        requests = (
            request(OWN, GROUP, own),
            request(FOREIGN, GROUP, own),
            request(OWN, FOREIGN_GROUP, own),
            request(OWN, GROUP, foreign),
            request(INTERNAL, GROUP, own),
            ({}, b""),
        )
        addresses = [address for side, address in sides if row.by & side] or [address for _, address in sides]
        for address in addresses:
            found = [asker.ask(address, row.code, *each) for each in requests]
            expected = _EXPECTED_OF[row.name].split()
            wrong += [
                f"{row.name} at {address}: {column} is {is_so}, not {ought}"
                for column, is_so, ought in zip(COLUMNS, found, expected, strict=True)
                if is_so != ought
            ]
    assert "\n".join(wrong) == ""


def request(topic: str, group: str, place: Place) -> tuple[Mapping[str, str], bytes]:
    """What says these by all the names that requests have for them."""
    ext = {
        **dict.fromkeys(("topic", "b", "originTopic"), topic),
        **dict.fromkeys(("group", "consumerGroup", "groupName", "srcGroup", "destGroup", "compareGroup"), group),
        **dict.fromkeys(("offset", "commitLogOffset"), place.offset),
        **dict.fromkeys(("msgId", "offsetMsgId"), place.message_id),
        **dict.fromkeys(("a", "producerGroup"), "g"),
        **dict.fromkeys(("c", "defaultTopic"), "TBW102"),
        **dict.fromkeys(("d", "defaultTopicQueueNums", "maxNum", "maxMsgNums"), "1"),
        **dict.fromkeys(
            ("e", "queueId", "f", "sysFlag", "g", "bornTimestamp", "h", "flag", "j", "reconsumeTimes"), "0"
        ),
        **dict.fromkeys(("queueOffset", "commitOffset", "suspendTimeoutMillis", "pollTime"), "0"),
        **dict.fromkeys(("i", "properties"), ""),
        "tranStateTableOffset": place.queue_offset,
        "delayLevel": "-1",
        "commitOrRollback": "12",
        "fromTransactionCheck": "false",
    }
    body = {
        **dict.fromkeys(("group", "groupName", "consumerGroup"), group),
        "topic": topic,
        "subscriptionData": {"topic": topic},
        "topicConfigList": [{"topicName": topic}],
        "groupConfigList": [{"groupName": group}],
        "clientID": "mia",
        "consumerDataSet": [{"groupName": group, "subscriptionDataSet": [{"topic": topic, "subString": "*"}]}],
        "mqSet": [{"topic": topic, "brokerName": "broker-a", "queueId": 0}],
        "acks": [{"c": group, "t": topic}],
    }
    return ext, orjson.dumps(body)
