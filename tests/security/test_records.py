"""What a request names by its place in the log is a message of some topic, and that topic's rights count: not those of the topic
that the request says."""

from __future__ import annotations

import pytest

from remoting import codes
from remoting.access.signature import Credentials
from remoting.client.access_admin import AccessAdmin
from remoting.client.socket_connection import SocketConnection
from remoting.errors import RequestError
from remoting.frame import Command
from remoting.record.codec import decode_record
from remoting.record.hosts import decode_offset_message_id
from remoting.transport.identity import Identity
from tests.support.cluster import Cluster, eventually

PASSWORD = "correct horse battery"
FOREIGN, OWN, GROUP = "salaries", "orders", "mallorys"


@pytest.fixture(scope="module")
def cluster(secured: Cluster) -> Cluster:
    for topic in (FOREIGN, OWN):
        secured.admin.create_topic(topic, 1)
    secured.admin.create_group(GROUP)
    admin = AccessAdmin(secured.admin)
    admin.create_user("mallory", PASSWORD, "Normal", "enable")
    # what is waited for comes last: brokers take changes in the order in which they were made
    for resource, actions in ((f"Group:{GROUP}", ("Sub",)), (f"Topic:{OWN}", ("Pub", "Sub"))):
        admin.put_permission("mallory", {"resource": resource, "actions": list(actions), "decision": "Allow"})
    eventually("mallory may use orders", lambda: mallory_sees(secured, OWN))
    return secured


def mallory_asks(cluster: Cluster, code: int, ext: dict[str, str]) -> Command:
    identity = Identity(Credentials("mallory", PASSWORD.encode()))
    with SocketConnection(cluster.broker_addresses[cluster.master()], identity=identity) as connection:
        return connection.call(code, ext)


def mallory_sees(cluster: Cluster, topic: str) -> bool:
    try:
        mallory_asks(cluster, codes.GET_MAX_OFFSET, {"topic": topic, "queueId": "0"})
    except RequestError as error:
        if error.code != codes.NO_PERMISSION:
            raise
        return False
    return True


def sent(cluster: Cluster, topic: str, properties: str = "") -> tuple[int, int]:
    """A message of somebody else's: its place in the log and in its queue."""
    ext = {
        "a": "g",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": "0",
        "f": "0",
        "g": "0",
        "h": "0",
        "i": properties,
        "j": "0",
    }
    with SocketConnection(cluster.broker_addresses[cluster.master()], identity=cluster.identity) as connection:
        answer = connection.call(codes.SEND_MESSAGE_V2, ext, b"a secret")
    return decode_offset_message_id(answer.ext["msgId"])[2], int(answer.ext["queueOffset"])


def refused(cluster: Cluster, code: int, ext: dict[str, str]) -> str:
    with pytest.raises(RequestError) as caught:
        mallory_asks(cluster, code, ext)
    assert caught.value.code == codes.NO_PERMISSION
    return caught.value.message


def test_a_message_is_viewed_by_who_may_read_its_own_topic(cluster: Cluster) -> None:
    foreign, own = sent(cluster, FOREIGN)[0], sent(cluster, OWN)[0]
    view = codes.VIEW_MESSAGE_BY_ID
    assert f"Topic:{FOREIGN}" in refused(cluster, view, {"offset": str(foreign), "topic": OWN})
    assert (
        decode_record(bytes(mallory_asks(cluster, view, {"offset": str(own), "topic": OWN}).body)).body == b"a secret"
    )


def test_what_waits_in_a_topic_of_the_brokers_is_of_the_topic_it_is_for(cluster: Cluster) -> None:
    delayed = sent(cluster, FOREIGN, "DELAY\x0118\x02")[0]
    half = sent(cluster, FOREIGN, "TRAN_MSG\x01true\x02PGROUP\x01g\x02UNIQ_KEY\x01k\x02")[0]
    for offset in (delayed, half):
        answer = refused(cluster, codes.VIEW_MESSAGE_BY_ID, {"offset": str(offset), "topic": OWN})
        assert f"Topic:{FOREIGN}" in answer


def test_a_foreign_message_is_not_given_back_to_ones_own_group(cluster: Cluster) -> None:
    foreign, own = sent(cluster, FOREIGN)[0], sent(cluster, OWN)[0]
    back = {"group": GROUP, "delayLevel": "-1", "originTopic": OWN, "originMsgId": "", "unitMode": "false"}
    assert f"Topic:{FOREIGN}" in refused(cluster, codes.CONSUMER_SEND_MSG_BACK, {**back, "offset": str(foreign)})
    mallory_asks(cluster, codes.CONSUMER_SEND_MSG_BACK, {**back, "offset": str(own)})


def test_a_foreign_transaction_is_ended_by_nobody_who_may_not_publish_its_topic(cluster: Cluster) -> None:
    properties = "TRAN_MSG\x01true\x02PGROUP\x01g\x02UNIQ_KEY\x01k2\x02"
    place, number = sent(cluster, FOREIGN, properties)
    own_place, own_number = sent(cluster, OWN, properties)
    rollback = {"producerGroup": "g", "commitOrRollback": "12", "fromTransactionCheck": "false", "msgId": "k2"}
    for topic in ({}, {"topic": OWN}):
        ext = {**rollback, "tranStateTableOffset": str(number), "commitLogOffset": str(place), **topic}
        assert f"Topic:{FOREIGN}" in refused(cluster, codes.END_TRANSACTION, ext)
    ext = {**rollback, "tranStateTableOffset": str(own_number), "commitLogOffset": str(own_place)}
    mallory_asks(cluster, codes.END_TRANSACTION, ext)
